"""How fast is the whole stream job, and against what? `python -m bench.streams`; the last line is one JSON object.

The real worker as a process: decode, clock, dedupe, compress, window, drift, inference, picks, outputs, and state in
Redis by the protocol. Beside it, on the same messages and services: the same functions in an aiokafka and a
confluent-kafka loop, Quix Streams where it is installed, and consuming and decoding alone. Each contestant runs alone,
after the other, in rounds; figures are medians of the rounds, rates are taken from the first tenth of the messages on.
"""

import argparse
import json
import statistics
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import redis

from bench import crews, traffic
from bench.stack import BROKERS, EXTRAS, Stack, cpu_s, environment, finish, fresh, running, say, stack
from intentloop.adapters.codec import DECODERS
from intentloop.adapters.keys import Keys
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY

TIMEOUT_S = 120.0
LOOPS = ("aiokafka", "confluent")
QUIX = ("quix", "quix_sink")
WORKERS = {"worker": ["streams"], "drift": ["bench.drift_worker"]}


class Measured(msgspec.Struct, frozen=True):
    """One contestant's run; CPU is µs an event, of the contestant, the broker and Redis."""

    events_s: float
    cpu_us: float
    broker_us: float = 0.0
    redis_us: float = 0.0


class Course(msgspec.Struct, frozen=True):
    """What all contestants run on: the services, and what lies on the topic."""

    services: Stack
    prefix: str
    sent: traffic.Sent
    extras: Path


def main() -> None:
    """Fill the topic once, let everyone run over it, print the table and the JSON."""
    options = _options()
    with stack(options.broker) as services:
        course = _course(services, options)
        runs: dict[str, list[Measured]] = {}
        _run(course, "worker")  # for the broker: a young JVM is slow, and takes the cores
        for number in range(options.rounds):
            names = deque([*_contestants(options, course), "drift"])
            names.rotate(number)  # nobody always comes after the same one
            for name in names:
                runs.setdefault(name, []).append(_run(course, name))
                say(f"round {number + 1} {name:18s} {_line(runs[name][-1])}")
        phases = _phases(course)
        rates = [_measure_crew(course, workers).events_s for workers in (1, 2, 3)] if options.crews else []
        taken = crews.kill_one(services, course.sent.envelopes, course.sent.users) if options.crews else None
    medians = {name: _median(found) for name, found in runs.items()}
    _table(medians)
    drift_us = medians.pop("drift").cpu_us
    scale = {
        "workers_events_s": [round(rate) for rate in rates],
        "two_workers_ratio": over(rates[1], rates[0]) if rates else None,
    }
    killed = {"takeover_s": taken.takeover_s, "after_kill_s": taken.finished_s} if taken else {}
    finish(
        {"bench": "streams", "broker": options.broker}
        | figures(medians, phases, drift_us, course.sent)
        | scale
        | killed
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--users", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--broker", choices=BROKERS, default="tansu")
    parser.add_argument("--extras", type=Path, default=EXTRAS, help="where quixstreams is installed, if it is")
    parser.add_argument("--only", nargs="*", default=None, help="these contestants, besides the worker")
    parser.add_argument("--crews", action=argparse.BooleanOptionalAction, default=True, help="also run 1 to 3 workers")
    return parser.parse_args()


def _course(services: Stack, options: argparse.Namespace) -> Course:
    prefix = f"{fresh()}."
    kafka = services.kafka(prefix)
    ensure_topics(kafka)
    envelopes = max(1, options.events // traffic.PER_ENVELOPE)
    begun_s = time.perf_counter()
    sent = traffic.fill(kafka, envelopes, min(options.users, envelopes))
    filled_s = time.perf_counter() - begun_s
    say(f"{sent.events} events in {sent.envelopes} envelopes on {options.broker}, sent in {filled_s:.1f} s")
    return Course(services, prefix, sent, options.extras)


def _contestants(options: argparse.Namespace, course: Course) -> list[str]:
    everyone = [*LOOPS, "decode", *(QUIX if (course.extras / "quixstreams").is_dir() else ())]
    if options.only is None and len(everyone) == 3:
        say(f"quixstreams is not in {course.extras}: left out")
    return ["worker", *(everyone if options.only is None else options.only)]


def _run(course: Course, name: str) -> Measured:
    if name in ("decode", "quix"):
        return _run_metered(course, name)
    if name in WORKERS:
        return _run_watched(course, WORKERS[name])
    return _run_watched(course, ["bench.loops", name], **_beside(course, name))


def _beside(course: Course, name: str) -> dict[str, str]:
    """Quix Streams is installed beside the project, with its own versions of what we share."""
    return {"PYTHONPATH": str(course.extras.resolve())} if name in QUIX else {}


def _run_metered(course: Course, name: str) -> Measured:
    """Run a loop that counts itself; the last METER line holds events, seconds, CPU seconds."""
    services = course.services
    log = services.directory / f"{fresh()}.log"
    env = _environment(course, fresh(), **_beside(course, name))
    before = cpu_s(services.broker_pid), cpu_s(services.redis_pid)
    with running(["bench.loops", name], env, log) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            lines = _meter_lines(log)
            if lines and (name == "decode" or lines[-1][0] >= course.sent.events * 0.97):
                break
            time.sleep(0.1)
        if name == "decode":
            process.wait(TIMEOUT_S)
    if not (lines := _meter_lines(log)):
        raise RuntimeError(f"{name} told nothing: {log.read_text()[-3000:]}")
    events, seconds, cpu = lines[-1]
    others = [cpu_s(pid) - then for pid, then in zip((services.broker_pid, services.redis_pid), before, strict=True)]
    return Measured(events / seconds, *(spent * 1e6 / events for spent in (cpu, *others)))


def _meter_lines(log: Path) -> list[tuple[float, ...]]:
    lines = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("METER ")]
    return [tuple(map(float, line)) for line in lines if len(line) == 3]


def _run_watched(course: Course, arguments: list[str], **extra: str) -> Measured:
    """Run a contestant that moves watermarks, and watch those."""
    services, keys = course.services, Keys(fresh())
    log = services.directory / f"{keys.prefix}.log"
    with (
        redis.Redis.from_url(services.redis_url) as client,
        running(arguments, _environment(course, keys.prefix, **extra), log) as process,
    ):
        pids = [process.pid, services.broker_pid, services.redis_pid]
        try:
            samples = _watch(client, keys, pids, course.sent.envelopes)
        except TimeoutError as error:
            raise RuntimeError(f"{arguments} did not finish: {log.read_text()[-3000:]}") from error
    return between(samples, course.sent.envelopes)


Sample = tuple[int, float, list[float]]  # records applied, when, CPU seconds of each process


def _watch(client: "redis.Redis", keys: Keys, pids: list[int], total: int) -> list[Sample]:
    """Look until all records are applied."""
    samples: list[Sample] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not samples or samples[-1][0] < total:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{samples[-1][0]} of {total} records after {TIMEOUT_S:g} s")
        samples.append((_applied(client, keys), time.perf_counter(), [cpu_s(pid) for pid in pids]))
        time.sleep(0.02)
    return samples


def _applied(client: "redis.Redis", keys: Keys) -> int:
    """How many records are applied, over all partitions?"""
    found: Any = client.mget([keys.watermark(number) for number in range(TELEMETRY.partitions)])
    return sum(int(mark) + 1 for mark in found if mark is not None)


def between(samples: list[Sample], total: int) -> Measured:
    """From the first sample at a tenth of the way to the end."""
    first = next(one for one in samples if one[0] >= total / 10)
    last = samples[-1]
    if first is last:
        first = samples[0]
    events = (last[0] - first[0]) * traffic.PER_ENVELOPE
    *own, broker, store = ((after - before) * 1e6 / events for before, after in zip(first[2], last[2], strict=True))
    return Measured(events / (last[1] - first[1]), sum(own), broker, store)


def over(ours: float, theirs: float) -> float | None:
    """By what factor do we differ? None where theirs is 0: a run shorter than the kernel's tick has no CPU time."""
    return ours / theirs if theirs else None


def _environment(course: Course, redis_prefix: str, **extra: str) -> dict[str, str]:
    services = course.services
    return environment(services.kafka(course.prefix), services.redis(redis_prefix), extra)


def _phases(course: Course) -> dict[str, Any]:
    """Run the worker with clocks in it, and read what they say once it has stopped."""
    path = course.services.directory / "phases.json"
    _run_watched(course, ["bench.measured_worker"], BENCH_PHASES=str(path))
    found: dict[str, Any] = json.loads(path.read_text())
    say(f"phases, µs CPU an event over {found['events']} events: {found['phases_us']}")
    return found


def _measure_crew(course: Course, workers: int) -> Measured:
    """How fast are so many workers together?"""
    services, sent = course.services, course.sent
    with ExitStack() as stop, redis.Redis.from_url(services.redis_url) as client:
        crew = crews.start_crew(services, workers, sent.envelopes, sent.users, stop)
        pids = [*(process.pid for process in crew.processes), services.broker_pid, services.redis_pid]
        return between(_watch(client, crew.keys, pids, sent.envelopes), sent.envelopes)


def _decode_us(values: list[bytes]) -> float:
    """What does decoding alone cost, µs an event? Median of nine over messages in memory."""
    decode_one = DECODERS[TELEMETRY.name].decode
    taken_s = []
    for _ in range(9):
        begun_s = time.process_time()
        for value in values:
            decode_one(value)
        taken_s.append(time.process_time() - begun_s)
    return statistics.median(taken_s) * 1e6 / (len(values) * traffic.PER_ENVELOPE)


def _median(found: list[Measured]) -> Measured:
    columns = zip(*(msgspec.structs.astuple(one) for one in found), strict=True)
    return Measured(*(statistics.median(column) for column in columns))


def _line(one: Measured) -> str:
    return (
        f"{one.events_s:10,.0f} events/s   µs CPU an event: own {one.cpu_us:6.2f}  "
        f"broker {one.broker_us:6.2f}  redis {one.redis_us:6.2f}"
    )


def _table(medians: dict[str, Measured]) -> None:
    say("")
    for name, one in medians.items():
        say(f"{name:18s} {_line(one)}   worker / this {medians['worker'].events_s / one.events_s:5.2f}")


def figures(
    medians: dict[str, Measured], phases: dict[str, Any], drift_us: float, sent: traffic.Sent
) -> dict[str, Any]:
    """Put the worker beside the best of the hand-written loops; what cannot be told is None."""
    worker = medians["worker"]
    values = [value for _, value in traffic.messages(seed=7, envelopes=traffic.TEMPLATES, users=traffic.TEMPLATES)]
    decode_us = _decode_us(values)
    loops = [medians[name] for name in LOOPS if name in medians]
    best = max((one.events_s for one in loops), default=0.0)
    cheapest_us = min((one.cpu_us for one in loops), default=0.0)
    return {
        "ours": worker.events_s,
        "peer": best,
        "ratio": over(worker.events_s, best),
        "cpu_ratio": over(cheapest_us, worker.cpu_us),
        "cpu_us_event": worker.cpu_us,
        "broker_cpu_us_event": worker.broker_us,
        "redis_cpu_us_event": worker.redis_us,
        "envelope_bytes": round(sum(map(len, values)) / len(values)),
        "phases_us_event": {name: round(us, 3) for name, us in phases["phases_us"].items()},
        "decode_us_event": decode_us,
        "drift_job_us_event": drift_us,
        "decode_multiple": over(drift_us, decode_us),
        "decode_multiple_whole": over(worker.cpu_us, decode_us),
        "events": sent.events,
        "events_s": {name: round(one.events_s) for name, one in medians.items()},
        "cpu_us_event_of": {name: round(one.cpu_us, 2) for name, one in medians.items()},
    }


if __name__ == "__main__":
    main()
