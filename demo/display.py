"""What does a person see while a demo runs? One line a stage, and bars that move; plain lines without a screen."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 10.0


class Display:
    """Shows stages and bars. Use as a context manager.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<30}"),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}
        self._texts: dict[str, str] = {}
        self._began_s = time.monotonic()
        self._plain_s = self._began_s

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        """Say what begins or is done."""
        self._console.print(
            f"[dim]{time.monotonic() - self._began_s:6.1f} s[/dim]  {text}", highlight=False, soft_wrap=True
        )

    def bar(self, name: str, done: float, total: float, text: str) -> None:
        """Move a bar; made at its first move."""
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total or None, text=text)
        self._texts[name] = text
        self._progress.update(self._bars[name], completed=min(done, total), total=total or None, text=text)

    def tick(self) -> None:
        """Where there is no screen to draw bars on, say now and then how they stand."""
        now_s = time.monotonic()
        if not self._console.is_terminal and self._texts and now_s - self._plain_s >= PLAIN_EVERY_S:
            self._plain_s = now_s
            self.stage("; ".join(f"{name}: {text}" for name, text in self._texts.items()))
