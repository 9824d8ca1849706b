"""What does a bench run on? A broker and a Redis of its own, processes of the product, and their CPU time.

Services listen on loopback, on free ports, in a temporary directory, and are ended by the process ids that were
started. Not here: traffic (`traffic.py`), and what is measured.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec
import psutil

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection, RedisSection

ROOT = Path(__file__).resolve().parent.parent
RUN_KAFKA = ROOT.parent / "shared" / "kafka" / "run-kafka"
EXTRAS = ROOT / "var" / "extras"  # pip install --target var/extras quixstreams==3.28.1 starlette==1.10.0
BROKERS = ("tansu", "apache")


class Stack(msgspec.Struct, frozen=True):
    """Addresses, and the process ids whose CPU time counts as the broker's and as Redis'."""

    bootstrap: str
    redis_url: str
    directory: Path
    broker_pid: int
    redis_pid: int

    def kafka(self, prefix: str) -> KafkaSection:
        """Which Kafka does a process of the bench use, with its own topic and group names?"""
        return KafkaSection(bootstrap=self.bootstrap, prefix=prefix)

    def redis(self, prefix: str) -> RedisSection:
        """Which Redis does a process of the bench use, with its own keys?"""
        return RedisSection(url=self.redis_url, prefix=prefix)


@contextmanager
def stack(broker: str) -> Iterator[Stack]:
    """Run a broker and a Redis for the time of a `with` block; SIGTERM ends it, and leaves nothing running."""
    signal.signal(signal.SIGTERM, _end)
    directory = Path(tempfile.mkdtemp(prefix="intentloop-bench-"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        broker_port, redis_port = embedded.free_port(), embedded.free_port()
        started.append(_start_broker(broker, broker_port, directory))
        started.append(embedded.start_redis(redis_port, directory / "redis", directory / "redis.log"))
        yield Stack(
            f"127.0.0.1:{broker_port}",
            f"redis://127.0.0.1:{redis_port}/0",
            directory,
            started[0].pid,
            started[1].pid,
        )
    finally:
        for process in reversed(started):
            embedded.stop(process, timeout_s=20)
        shutil.rmtree(directory, ignore_errors=True)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _start_broker(broker: str, port: int, directory: Path) -> subprocess.Popen[bytes]:
    log = directory / "broker.log"
    if broker == "tansu":
        return embedded.start_broker(port, log)
    if not RUN_KAFKA.is_file() or shutil.which("java") is None:
        sys.exit(f"--broker apache needs {RUN_KAFKA} and Java 17 on PATH; use --broker tansu")
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(RUN_KAFKA), "--data", str(directory / "kafka"), "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=sink,
        )
    assert process.stdout is not None
    if not process.stdout.readline():
        sys.exit(f"Apache Kafka did not start: {log.read_text()[-2000:]}")
    process.stdout.close()
    return process


def fresh() -> str:
    """A prefix that nobody used before."""
    return f"b{secrets.token_hex(3)}"


def environment(kafka: KafkaSection, redis: RedisSection, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Which environment does a process of the product get?"""
    return {
        **os.environ,
        "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
        "INTENTLOOP_REDIS__URL": redis.url,
        "INTENTLOOP_REDIS__PREFIX": redis.prefix,
        "INTENTLOOP_STREAMS__SESSION_TIMEOUT_S": "6",
        **(extra or {}),
    }


@contextmanager
def running(arguments: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m <arguments>` for the time of a `with` block."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=dict(env), stdout=sink, stderr=subprocess.STDOUT, cwd=ROOT
        )
    try:
        yield process
    finally:
        embedded.stop(process, timeout_s=15)


def cpu_s(pid: int) -> float:
    """How much CPU time have this process and its children taken?"""
    try:
        process = psutil.Process(pid)
        return sum(one.cpu_times().user + one.cpu_times().system for one in (process, *process.children(True)))
    except psutil.NoSuchProcess:
        return 0.0


def percentile(values: Sequence[float], ratio: float) -> float:
    """Which value do `ratio` of the values not exceed? 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))] if ordered else 0.0


def say(line: str) -> None:
    """Tell a person how it goes, on stderr."""
    print(line, file=sys.stderr, flush=True)


def finish(figures: Mapping[str, Any]) -> None:
    """Print the last line: one JSON object."""
    load_1m, cores = os.getloadavg()[0], os.cpu_count()
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({**rounded, "cores": cores, "load_average_1m": round(load_1m, 1)}, ensure_ascii=False), flush=True)


def wait_until(ready: Any, what: str, timeout_s: float = 60.0) -> None:
    """Poll until `ready()` is true.

    Raises:
        TimeoutError: it did not become so.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {timeout_s:g} s")
        time.sleep(0.02)
