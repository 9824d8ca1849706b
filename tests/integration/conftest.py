"""A real Apache Kafka beside the embedded broker, for tests that must hold on what production runs."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intentloop.adapters import embedded

RUN_KAFKA = Path(__file__).resolve().parents[3] / "shared" / "kafka" / "run-kafka"


def start_apache_kafka(port: int, data: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start one broker; SIGTERM stops it with its Java child. Skips the test where it cannot run."""
    if not RUN_KAFKA.is_file() or shutil.which("java") is None:
        pytest.skip(f"Apache Kafka needs {RUN_KAFKA.name} in ../shared/kafka and Java 17 on PATH")
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(RUN_KAFKA), "--data", str(data), "--port", str(port)], stdout=subprocess.PIPE, stderr=sink
        )
    assert process.stdout is not None
    started_s, line = time.monotonic(), process.stdout.readline()
    if not line and process.wait() == 69:
        pytest.skip("Apache Kafka 4 needs Java 17 or newer")
    assert line, f"Apache Kafka ended after {time.monotonic() - started_s:.0f} s; see {log}"
    return process


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a real Apache Kafka on loopback."""
    directory, port = tmp_path_factory.mktemp("apache_kafka"), embedded.free_port()
    process = start_apache_kafka(port, directory / "data", directory / "kafka.log")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        embedded.stop(process, timeout_s=20)
        if process.stdout is not None:
            process.stdout.close()
