"""Where does a stream worker's CPU time go? `python -m streams` with a clock around each step of the protocol.

CPU of the main thread is counted in each step, not what runs while the step waits (Redis, broker). What is left of the
process's CPU is fetching and Faust: librdkafka's threads, queues, acknowledgements, and the clients' own reading and
writing of sockets. Written to the file named by `BENCH_PHASES` when the worker stops.
"""

import atexit
import json
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

from intentloop.adapters.state_store import StateStore
from streams import __main__ as worker
from streams import apply_batch
from streams.apply_batch import BatchApplier

PHASES = ("decode", "state_read", "fold", "send", "state_write")


class _Clocked:
    """Runs a coroutine and tells the CPU seconds of each stretch between two waits."""

    def __init__(self, body: Coroutine[Any, Any, Any], tell: Callable[[float], None]) -> None:
        self._body, self._tell = body, tell

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._body.__await__()
        while True:
            begun_s = time.thread_time()
            try:
                waited_for = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self._tell(time.thread_time() - begun_s)
            yield waited_for


class Phases:
    """CPU seconds by step, from the first batch's end to the last batch's end."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = defaultdict(float)
        self.events = self.batches = 0
        self.began_s = self.ended_s = 0.0

    def timed(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        """Clock a step that computes."""

        def clocked(*arguments: Any) -> Any:
            begun_s = time.thread_time()
            try:
                return step(*arguments)
            finally:
                self.spent_s[name] += time.thread_time() - begun_s

        return clocked

    def awaited(self, name: str, step: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Awaitable[Any]]:
        """Clock a step that waits: its own time only, not that of whoever runs meanwhile."""

        def clocked(*arguments: Any) -> Any:
            return _Clocked(step(*arguments), partial(self.add, name))

        return clocked

    def add(self, name: str, spent_s: float) -> None:
        """Note that a step took so long."""
        self.spent_s[name] += spent_s

    def round_off(self, finish: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Note where each batch ends; the first one, with its cold caches and connections, is not counted."""

        async def rounded(applier: BatchApplier, folded: Any, confirmed: Awaitable[None]) -> None:
            before = applier.counts["events_in"]
            await finish(applier, folded, confirmed)
            self.ended_s = time.process_time()
            if self.batches == 0:
                self.began_s = self.ended_s
                self.spent_s.clear()
            else:
                self.events += applier.counts["events_in"] - before
            self.batches += 1

        return rounded

    def write(self) -> None:
        """Write µs an event by step."""
        per_event = 1e6 / max(1, self.events)
        found = {name: self.spent_s[name] * per_event for name in PHASES}
        total = (self.ended_s - self.began_s) * per_event
        found["fetch_and_faust"] = total - sum(found.values())
        report = {"events": self.events, "batches": self.batches, "total_us": total, "phases_us": found}
        Path(os.environ["BENCH_PHASES"]).write_text(json.dumps(report))


def main() -> None:
    """Put the clocks in, then be the worker."""
    phases = Phases()
    for function, name in (("decode", "decode"), ("fold_batch", "fold")):
        setattr(apply_batch, function, phases.timed(name, getattr(apply_batch, function)))
    for owner, method, name in (
        (StateStore, "load", "state_read"),
        (BatchApplier, "_send", "send"),
        (StateStore, "apply", "state_write"),
    ):
        setattr(owner, method, phases.awaited(name, getattr(owner, method)))
    BatchApplier.finish = phases.round_off(BatchApplier.finish)  # type: ignore[method-assign,assignment]
    atexit.register(phases.write)
    worker.main()


if __name__ == "__main__":
    main()
