"""Where does a stream worker's CPU time go? `python -m streams` with a clock around each step of the protocol.

CPU of the main thread is counted in each step; what is left of the process's CPU is fetching and Faust: the consumer's
thread, queues, acknowledgements. While a step waits (Redis, broker), Faust's tasks run on the same thread and count in
that step. Written to the file named by `BENCH_PHASES` when the worker stops.
"""

import atexit
import json
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from intentloop.adapters.state_store import StateStore
from streams import __main__ as worker
from streams import apply_batch
from streams.apply_batch import BatchApplier

PHASES = ("decode", "state_read", "fold", "send", "state_write")


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

    def awaited(self, name: str, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Clock a step that waits."""

        async def clocked(*arguments: Any) -> Any:
            begun_s = time.thread_time()
            try:
                return await step(*arguments)
            finally:
                self.spent_s[name] += time.thread_time() - begun_s

        return clocked

    def round_off(self, apply: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
        """Note where each batch ends; the first one, with its cold caches and connections, is not counted."""

        async def rounded(applier: BatchApplier, records: Sequence[Any], confirmed: Awaitable[None]) -> int:
            before = applier.counts["events_in"]
            applied = await apply(applier, records, confirmed)
            self.ended_s = time.process_time()
            if self.batches == 0:
                self.began_s = self.ended_s
                self.spent_s.clear()
            else:
                self.events += applier.counts["events_in"] - before
            self.batches += 1
            return applied

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
    BatchApplier.apply = phases.round_off(BatchApplier.apply)  # type: ignore[method-assign,assignment]
    atexit.register(phases.write)
    worker.main()


if __name__ == "__main__":
    main()
