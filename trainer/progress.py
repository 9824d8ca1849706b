"""How far is a long piece of work, and how long will it still take? A bar for people, about ten lines for a log."""

import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("trainer")

LINES = 10  # told of one piece of work


class Advance:
    """Tells of work that comes in `total` equal pieces; use it as a context.

    Args:
        name: What is being done.
        clock: Seconds; another one in tests.
    """

    def __init__(self, name: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._total, self._clock = name, total, clock
        self._started = clock()
        self._told = 0
        self._bar = _bar() if sys.stderr.isatty() else None

    def __enter__(self) -> "Advance":
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._name, total=self._total, said="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def to(self, done: int, said: str = "") -> None:
        """So many pieces are done; a line is told when another tenth is, and after the first."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, said=said)
        tenth = done * LINES // max(1, self._total)
        if done and (tenth > self._told or not self._told):
            self._told = max(1, tenth)
            log.info("  %s %d of %d, %s left%s", self._name, done, self._total, self._left(done), said and f": {said}")

    def _left(self, done: int) -> str:
        return duration((self._clock() - self._started) / done * (self._total - done))


def duration(seconds: float) -> str:
    """How is a duration told? To the second under a minute, to the minute from an hour on."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _bar() -> "Progress":
    """Make a bar; its library is loaded for people only, since processes whose memory is measured advance, too."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said = TextColumn("{task.fields[said]}")
    return Progress(*columns, said, console=Console(stderr=True), transient=True)
