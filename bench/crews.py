"""How do several stream workers share the work, and what if one dies? Parts of `bench.streams`.

Each crew has a topic of its own: its workers share out the partitions, are stopped, find all messages at once, and go
on. On two cores, which broker and Redis use as well, a third worker shows that it does no harm, not that it helps.
"""

import signal
import subprocess
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import redis

from bench import traffic
from bench.stack import Stack, environment, fresh, running, wait_until
from intentloop.adapters.keys import Keys
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY

SESSION_S = 10.0  # longer than filling a topic takes, while all workers stand still
WAIT_S = 120.0


class Crew(NamedTuple):
    """Workers that have shared out the partitions, and the watermarks that they move."""

    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]
    keys: Keys


class TakenOver(NamedTuple):
    """What a killed worker's peers did: seconds until its partitions moved again, and until all was applied."""

    takeover_s: float
    finished_s: float


def start_crew(services: Stack, workers: int, envelopes: int, users: int, stop: ExitStack) -> Crew:
    """Start workers and fill their topic while they stand still; they go on when this returns."""
    prefix = fresh()
    kafka = services.kafka(f"{prefix}.")
    ensure_topics(kafka)
    env = environment(kafka, services.redis(prefix), {"INTENTLOOP_STREAMS__SESSION_TIMEOUT_S": str(SESSION_S)})
    logs = [services.directory / f"{prefix}-{number}.log" for number in range(workers)]
    started = [stop.enter_context(running(["streams"], env, log)) for log in logs]
    wait_until(lambda: _shared_out(logs), f"{workers} workers did not share out the partitions", WAIT_S)
    for process in started:
        process.send_signal(signal.SIGSTOP)
    traffic.fill(kafka, envelopes, users)
    for process in started:
        process.send_signal(signal.SIGCONT)
    return Crew(started, logs, Keys(prefix))


def _shared_out(logs: list[Path]) -> bool:
    """Has every worker its share, and nobody what another has?"""
    shares = [partitions(log) for log in logs]
    return all(shares) and sorted(chain.from_iterable(shares)) == list(range(TELEMETRY.partitions))


def partitions(log: Path) -> list[int]:
    """Which partitions was this worker given last?"""
    lines = [line for line in log.read_text().splitlines() if "partitions begin at offsets" in line]
    places = lines[-1].partition("offsets {")[2].rstrip("}") if lines else ""
    return [int(place.partition(":")[0]) for place in places.split(", ") if place]


def kill_one(services: Stack, envelopes: int, users: int) -> TakenOver:
    """Let three workers run, kill one with SIGKILL a third of the way, and wait until the others have done all."""
    with ExitStack() as stop, redis.Redis.from_url(services.redis_url) as client:
        crew = start_crew(services, 3, envelopes, users, stop)
        wait_until(lambda: sum(_marks(client, crew.keys)) >= envelopes / 3, "three workers did not begin", WAIT_S)
        lost = partitions(crew.logs[0])
        crew.processes[0].kill()
        crew.processes[0].wait()
        killed_s, before = time.monotonic(), [_marks(client, crew.keys)[place] for place in lost]
        wait_until(lambda: [_marks(client, crew.keys)[place] for place in lost] != before, "nobody took over", WAIT_S)
        takeover_s = time.monotonic() - killed_s
        wait_until(lambda: sum(_marks(client, crew.keys)) >= envelopes, "records are missing", WAIT_S)
        return TakenOver(takeover_s, time.monotonic() - killed_s)


def _marks(client: "redis.Redis", keys: Keys) -> list[int]:
    """How many records of each partition are applied?"""
    found: Any = client.mget([keys.watermark(number) for number in range(TELEMETRY.partitions)])
    return [int(mark or -1) + 1 for mark in found]
