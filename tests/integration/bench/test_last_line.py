"""Every bench ends with one JSON object that names what was compared; here at sizes that mean nothing."""

import json
import subprocess
import sys
from typing import Any

import pytest

TINY = {
    "streams": ["--events", "2000", "--users", "40", "--only", "aiokafka", "--no-crews"],
    "latency": ["--seconds", "0.5", "--warm-seconds", "0.5"],
    "state": ["--users", "2000", "--lives", "2", "--life-seconds", "1"],
    "influence": ["--layers", "3", "--hidden", "128", "--rows", "1", "--tokens", "32", "--rounds", "1"],
    "engine": ["--lengths", "128", "--each", "2", "--rounds", "1", "--samples", "20"],
    "gateway": ["--seconds", "0.5", "--connections", "4", "--only", "gateway", "asgi ours bare"],
}


def last_line(subject: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{subject}", *TINY[subject]], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("subject", TINY)
def test_a_bench_ends_with_its_figures(subject: str) -> None:
    figures = last_line(subject)
    assert figures["bench"] == subject
    assert figures["ours"] > 0
    assert figures["peer"] > 0
    assert figures["ratio"] == pytest.approx(figures["ours"] / figures["peer"], rel=0.01)
    if subject == "influence":
        assert float(figures["max_difference"]) <= 1e-6
        assert set(figures["memory_mb"]) == {"plain", "ours", "keep_all"}
    if subject == "engine":
        assert figures["same_answers"]
        assert set(figures["buckets"]) == {"128"}
    if subject == "latency":
        assert figures["lost"] == 0
    if subject == "streams":
        assert set(figures["phases_us_event"]) >= {"decode", "state_read", "fold", "send", "state_write"}
