"""Does a worker's memory grow? `python -m bench.soak`; the last line is one JSON object.

One real worker takes steady traffic of shoppers who come, visit a few times and never come back, while their states
expire in Redis. Its resident memory is read every few seconds; the first sixth of the time is warming up and does not
count. Of the rest each minute has a median, and the slope through those is Theil and Sen's with its 95 % interval:
one burst moves neither. The peer is zero growth, so there is no ratio. Not here: bytes per user (`state.py`).
"""

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import psutil
import redis
from confluent_kafka import Producer
from scipy.stats import theilslopes

from bench import traffic
from bench.stack import BROKERS, Stack, environment, finish, fresh, running, say, stack, wait_until
from intentloop.adapters.keys import Keys
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY

COHORT = 500  # shoppers who are there at a time
VISITS = 6  # envelopes of each before the next ones come
SHELVES = 3  # different sets of goods; a cohort looks at one
MIN_MINUTES = 5  # a slope through fewer medians says nothing
MIB = 2**20


class Sample(msgspec.Struct, frozen=True):
    """Memory at one moment: minutes since the start, MiB of the worker, MiB and keys of Redis."""

    minute: float
    worker_mib: float
    redis_mib: float
    keys: int


class Traffic(threading.Thread):
    """Sends envelopes by the clock until told to stop; counts what the broker took, and remembers what went wrong."""

    def __init__(self, services: Stack, prefix: str, rate: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._topic, self._rate = f"{prefix}{TELEMETRY.name}", rate
        self._producer = Producer(
            {"bootstrap.servers": services.bootstrap, "acks": "all", "partitioner": "murmur2_random"}
        )
        self.stopping = threading.Event()
        self.sent = 0
        self.fault = ""

    def run(self) -> None:
        """Send."""
        began_s = time.monotonic()
        for number, (key, value) in enumerate(endless()):
            if self.stopping.wait(max(0.0, began_s + number / self._rate - time.monotonic())):
                break
            self._producer.produce(self._topic, value, key, on_delivery=self._taken)
            self._producer.poll(0)
        self._producer.flush(60)

    def _taken(self, error: object, _message: object) -> None:
        self.sent += error is None
        if error is not None:
            self.fault = str(error)


def main() -> None:
    """Run for `--minutes`, print the JSON."""
    options = _options()
    if options.minutes < MIN_MINUTES:
        sys.exit(f"--minutes {options.minutes:g} is too short for a slope; {MIN_MINUTES} at least")
    with stack(options.broker) as services:
        samples, sent, applied = _soak(services, options)
    finish({"bench": "soak", "broker": options.broker} | figures(samples) | _traffic(sent, applied))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--rate", type=float, default=40.0, help="envelopes of 25 events a second; tansu keeps them all"
    )
    parser.add_argument("--life-seconds", type=int, default=60, help="of a state after its last change")
    parser.add_argument("--every-seconds", type=float, default=5.0)
    parser.add_argument("--broker", choices=BROKERS, default="tansu")
    return parser.parse_args()


def endless() -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of envelopes: a cohort of shoppers visits, then the next one does, who were never here before.

    Goods repeat, so that a worker's bounded cache of their names is full while it warms up; shoppers do not.
    """
    for cohort in itertools.count():
        for key, value in traffic.messages(cohort % SHELVES, COHORT * VISITS, COHORT):
            user = b"%08x" % cohort + key[8:]
            yield user, value.replace(key, user)


def _soak(services: Stack, options: argparse.Namespace) -> tuple[list[Sample], int, int]:
    prefix = fresh()
    kafka = services.kafka(f"{prefix}.")
    ensure_topics(kafka)
    env = environment(kafka, services.redis(prefix), {"BENCH_LIFE_S": str(options.life_seconds)})
    sender, store = Traffic(services, kafka.prefix, options.rate), redis.Redis.from_url(services.redis_url)
    log = services.directory / "worker.log"
    with running(["bench.short_lives"], env, log) as worker:
        sender.start()
        samples = _watch(worker.pid, store, options)
        sender.stopping.set()
        sender.join(70)
        if sender.fault or worker.poll() is not None:
            raise RuntimeError(f"{sender.fault or 'the worker ended'}; its log ends:\n{log.read_text()[-2_000:]}")
        with suppress(TimeoutError):  # what is still missing then is in the figures
            wait_until(lambda: _applied(store, prefix) >= sender.sent, "all is applied")
    return samples, sender.sent, _applied(store, prefix)


def _watch(pid: int, store: Any, options: argparse.Namespace) -> list[Sample]:
    process, began_s = psutil.Process(pid), time.monotonic()
    samples: list[Sample] = []
    while (minute := (time.monotonic() - began_s) / 60) < options.minutes and process.status() != psutil.STATUS_ZOMBIE:
        used_mib = int(store.info("memory")["used_memory"]) / MIB
        samples.append(Sample(minute, process.memory_info().rss / MIB, used_mib, int(store.dbsize())))
        if len(samples) % 60 == 1:
            say(f"minute {minute:4.0f}: worker {samples[-1].worker_mib:.1f} MiB, Redis {used_mib:.1f} MiB")
        time.sleep(options.every_seconds)
    return samples


def _applied(store: Any, prefix: str) -> int:
    keys = Keys(prefix)
    return sum(max(int(store.get(keys.watermark(number)) or -1), -1) + 1 for number in range(TELEMETRY.partitions))


def figures(samples: list[Sample]) -> dict[str, Any]:
    """What do the samples say? Growth in MiB an hour after warming up with its interval, and the levels."""
    warm = [one for one in samples if one.minute >= samples[-1].minute / 6]
    minutes: dict[int, list[float]] = {}
    for one in warm:
        minutes.setdefault(int(one.minute), []).append(one.worker_mib)
    medians = {minute: statistics.median(found) for minute, found in minutes.items()}
    slope, _, low, high = theilslopes([*medians.values()], [minute / 60 for minute in medians], 0.95)
    return {
        "ours": float(slope),
        "low": float(low),
        "high": float(high),
        "flat": bool(low <= 0),
        "minutes": samples[-1].minute,
        "worker_first_mib": warm[0].worker_mib,
        "worker_last_mib": warm[-1].worker_mib,
        "worker_peak_mib": max(one.worker_mib for one in samples),
        "redis_first_mib": warm[0].redis_mib,
        "redis_last_mib": warm[-1].redis_mib,
        "redis_keys": warm[-1].keys,
    }


def _traffic(sent: int, applied: int) -> dict[str, int]:
    users = sent // VISITS
    return {"events": sent * traffic.PER_ENVELOPE, "users": users, "envelopes": sent, "behind": sent - applied}


if __name__ == "__main__":
    main()
