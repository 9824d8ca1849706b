"""How fast does a loop go that moves no watermark? It counts its events and prints lines that `bench.streams` reads."""

import time

TELL_S = 0.5


class Meter:
    """Counts events and time from the first batch on."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._told_s = 0.0
        self._events = 0

    def add(self, events: int) -> None:
        """Count the events of one batch."""
        if not events:
            return
        self._last = time.perf_counter(), time.process_time()
        if self._first is None:
            self._first = self._last  # the first batch waited for metadata and connections
        else:
            self._events += events

    def is_over(self) -> bool:
        """Has nothing come for a second?"""
        return self._first is not None and time.perf_counter() - self._last[0] > 1.0

    def tell(self) -> None:
        """Print events, seconds and CPU seconds."""
        if self._first is not None:
            wall_s, cpu_s = (last - first for last, first in zip(self._last, self._first, strict=True))
            print(f"METER {self._events} {wall_s:.6f} {cpu_s:.6f}", flush=True)

    def tell_now_and_then(self) -> None:
        """Print, at most twice a second."""
        if self._last[0] - self._told_s > TELL_S:
            self._told_s = self._last[0]
            self.tell()
