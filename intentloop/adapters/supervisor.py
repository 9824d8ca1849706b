"""Do the processes that we started still run? Starts, watches, restarts and ends them; leaves none behind.

Every process writes its own log file. One that ends by itself is started again after a growing wait; one that keeps
ending is given up with the name of its log. On Linux the kernel ends them when we are killed. Not here: which
processes there are, or whether they are healthy.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from intentloop.errors import EXIT_CONFIGURATION, UnavailableError

_TERM_ON_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its name in logs, command line, and what its environment has beyond ours.

    `restart` is false for a process whose end loses what it held, such as a broker in memory.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    restart: bool = True


class RestartRule(msgspec.Struct, frozen=True, kw_only=True):
    """Waits double from `first_wait_s` to `longest_wait_s`; a run of `healthy_s` forgives all ends before it."""

    first_wait_s: float = 0.3
    longest_wait_s: float = 5.0
    healthy_s: float = 20.0
    max_ends: int = 8
    stop_s: float = 10.0


class _Running:
    """What we know of one process."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.next_start_s = 0.0
        self.ends = 0
        self.restarts = 0
        self.once = False


class Supervisor:
    """Keeps processes running. Start it from the main thread: the kernel ties children to the thread that made them.

    Args:
        logs: Directory of `<name>.log` files.
        rule: How patient to be with a process that ends.
    """

    def __init__(self, logs: Path, rule: RestartRule) -> None:
        self._logs = logs
        self._rule = rule
        self._running: dict[str, _Running] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, spec: ProcessSpec) -> None:
        """Start one process and keep it running from now on."""
        running = _Running(spec)
        self._running[spec.name] = running
        self._spawn(running)

    async def run(self, spec: ProcessSpec, tries: int = 3) -> None:
        """Run one process to its end, again when it failed: what it does must be the same twice as once.

        Raises:
            UnavailableError: it failed `tries` times.
        """
        for _ in range(tries):
            running = _Running(spec)
            running.once = True
            self._running[spec.name] = running
            self._spawn(running)
            while _alive(running):
                await asyncio.sleep(0.05)
            code = running.process.returncode if running.process else None
            self._running.pop(spec.name, None)
            if code == 0:
                return
        raise UnavailableError(f"{spec.name} failed {tries} times; see {self.log(spec.name)}")

    def names(self) -> tuple[str, ...]:
        """Which processes are kept running?"""
        return tuple(self._running)

    def pids(self) -> dict[str, int]:
        """Which processes run now?"""
        return {
            name: running.process.pid
            for name, running in self._running.items()
            if running.process is not None and running.process.poll() is None
        }

    def restarts(self) -> dict[str, int]:
        """How often was each process started again?"""
        return {name: running.restarts for name, running in self._running.items()}

    def log(self, name: str) -> Path:
        """Where does this process write?"""
        return self._logs / f"{name}.log"

    async def watch(self, pause_s: float = 0.1) -> None:
        """Restart what ends, until cancelled.

        Raises:
            UnavailableError: a process ended too often, or one that must not be restarted ended.
        """
        while True:
            for running in list(self._running.values()):
                self._look_after(running)
            await asyncio.sleep(pause_s)

    async def stop(self, names: tuple[str, ...] = ()) -> None:
        """End these processes (all: no names), last started first: politely, then for good, with their children."""
        chosen = [name for name in reversed(self._running) if not names or name in names]
        stopping = [running for name in chosen if (running := self._running.pop(name)).process is not None]
        for running in stopping:
            _signal(running, signal.SIGTERM)
        deadline = time.monotonic() + self._rule.stop_s
        while any(_alive(running) for running in stopping) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for running in stopping:
            _signal_group(running, signal.SIGKILL)
            if running.process is not None:
                running.process.wait()

    def _look_after(self, running: _Running) -> None:
        now_s = time.monotonic()
        if running.once:
            return
        if running.process is None:
            if now_s >= running.next_start_s:
                running.restarts += 1
                self._spawn(running)
        elif running.process.poll() is not None:
            self._note_end(running, now_s)

    def _note_end(self, running: _Running, now_s: float) -> None:
        assert running.process is not None
        code = running.process.returncode
        _signal_group(running, signal.SIGKILL)  # its own children must not outlive it
        running.process = None
        running.ends = 1 if now_s - running.started_s >= self._rule.healthy_s else running.ends + 1
        hopeless = not running.spec.restart or code == EXIT_CONFIGURATION
        if hopeless or running.ends > self._rule.max_ends:
            raise UnavailableError(
                f"{running.spec.name} ended with code {code} ({running.ends} times, limit {self._rule.max_ends}): "
                f"{self._last_words(running.spec.name)}; see {self.log(running.spec.name)}"
            )
        wait_s = min(self._rule.longest_wait_s, self._rule.first_wait_s * 2 ** (running.ends - 1))
        running.next_start_s = now_s + wait_s
        self._write(running, f"ended with code {code}; starting again in {wait_s:g} s")

    def _last_words(self, name: str) -> str:
        lines = self.log(name).read_bytes().decode("utf-8", "replace").splitlines()
        said = [line for line in lines if line.strip() and not line.startswith("supervisor: ")]
        return said[-1].strip()[:300] if said else "it said nothing"

    def _spawn(self, running: _Running) -> None:
        with self.log(running.spec.name).open("ab") as sink:
            running.process = subprocess.Popen(
                running.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **running.spec.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        running.started_s = time.monotonic()

    def _write(self, running: _Running, line: str) -> None:
        with self.log(running.spec.name).open("a") as sink:
            sink.write(f"supervisor: {running.spec.name} {line}\n")


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork: a child must not load


def _die_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_TERM_ON_PARENT_DEATH, signal.SIGTERM)


def _alive(running: _Running) -> bool:
    return running.process is not None and running.process.poll() is None


def _signal(running: _Running, number: signal.Signals) -> None:
    if running.process is not None and running.process.poll() is None:
        running.process.send_signal(number)


def _signal_group(running: _Running, number: signal.Signals) -> None:
    """Reach what the process itself started; its group has its own number, since it leads a session."""
    if running.process is not None:
        try:
            os.killpg(running.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
