"""Runs of the whole system as a person starts it, on embedded services or on a real Apache Kafka."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


class Run:
    """One `intentloop …` of a person, in a directory of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.report_file = directory / "report.json"
        self.output = directory / "output.txt"
        command = [sys.executable, "-m", "intentloop", *arguments, "--directory", str(directory / "run")]
        directory.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                command,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=_quiet_environment(),
                start_new_session=True,
            )

    def pids(self) -> dict[str, int]:
        """Which processes does the supervisor keep, by name?"""
        try:
            found = json.loads((self.directory / "run" / "processes.json").read_bytes())
        except FileNotFoundError:
            return {}
        return dict(found["pids"])

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.report_file.read_bytes())
        return found

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"ended before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s:\n{self.text()}"
            time.sleep(0.1)

    def tree(self) -> list[psutil.Process]:
        """This process and everything below it."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _quiet_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("INTENTLOOP_")}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a command; it is ended with the test."""
    runs: list[Run] = []

    def starter(*arguments: str) -> Run:
        run = Run(tmp_path / f"run{len(runs)}", *arguments)
        runs.append(run)
        return run

    yield starter
    for run in runs:
        run.end()
