"""How long from a phone's post to the trigger? `python -m bench.latency`; the last line is one JSON object.

Envelopes of 25 events, the last one an inference that names an intent, are posted to the real gateway by the clock
(open loop); the real stream worker folds them, and a consumer reads the triggers. A trigger's time counts from when
its post was due. Also without HTTP: from handing the envelope to a Kafka producer to the trigger. Gateway, worker,
broker, Redis and the measuring process share the machine's cores.

Each rate has topics of its own: tansu lists all batches of a partition at every fetch, so its CPU time, and with it
everybody's latency, grows with the log (`docs/scaling.md`). `*_cores` in the JSON tell who was busy at 600/s.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from bench import traffic
from bench.gateway import HEAD, gateway_settings
from bench.load import open_loop
from bench.stack import BROKERS, Stack, cpu_s, environment, finish, fresh, percentile, running, say, stack
from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.telemetry_producer import TelemetryProducer
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY, TRIGGERED

NAMED = ("比价犹豫|{leaf}", "场景购物|{leaf}")  # every inference names an intent, so every envelope makes a trigger
WARM_S = 4.0
RATES = (200, 600)
READ_WAIT_MS = 5  # tansu holds every fetch for as long, also when it has records
SEEDS = iter(range(1, 1_000))


class Times(msgspec.Struct, frozen=True):
    """Milliseconds from due to trigger, how many triggers came, of how many envelopes, and who kept cores busy."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    triggers: int
    envelopes: int
    cores: dict[str, float]


class Triggers:
    """Reads triggers and notes when each came, by the inference that it follows from."""

    def __init__(self, kafka: KafkaSection) -> None:
        self._topic = f"{kafka.prefix}{TRIGGERED.name}"
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap, fetch_max_wait_ms=READ_WAIT_MS, auto_offset_reset="earliest"
        )
        self.came_s: dict[str, float] = {}

    async def follow(self) -> None:
        """Read until cancelled."""
        await self._consumer.start()
        self._consumer.assign([TopicPartition(self._topic, number) for number in range(TRIGGERED.partitions)])
        try:
            while True:
                found = await self._consumer.getmany(timeout_ms=100)
                now_s = time.perf_counter()
                for record in (one for records in found.values() for one in records):
                    self.came_s.setdefault(json.loads(record.value)["data"]["inference_id"], now_s)
        finally:
            await self._consumer.stop()


Send = Callable[[Sequence[tuple[str, bytes]], float, dict[str, float]], Coroutine[Any, Any, None]]


class Scene(msgspec.Struct, frozen=True):
    """What is running: where the gateway listens, the reader of triggers, and the process ids of all."""

    port: int
    triggers: Triggers
    producer: TelemetryProducer
    pids: dict[str, int]

    async def post(self, rate: float, seconds: float) -> Times:
        """Through HTTP."""

        async def send(made: Sequence[tuple[str, bytes]], rate: float, due_s: dict[str, float]) -> None:
            names = iter(name for name, _ in made)
            requests = (request for _, request in made)
            answered = await open_loop(self.port, requests, rate, lambda at_s: due_s.update({next(names): at_s}))
            if answered.wrong:
                raise RuntimeError(f"{answered.wrong} of {len(answered.seconds)} posts were not answered 202")

        made = traffic.posts(next(SEEDS), int(rate * seconds), _now_ms() - 300_000, HEAD, NAMED)
        return await self._measure(list(made), rate, send)

    async def produce(self, rate: float, seconds: float) -> Times:
        """Kafka to Kafka."""

        async def send(made: Sequence[tuple[str, bytes]], rate: float, due_s: dict[str, float]) -> None:
            begun_s, sent = time.perf_counter(), []
            for number, (name, value) in enumerate(made):
                due_s[name] = begun_s + number / rate
                if (pause_s := due_s[name] - time.perf_counter()) > 0:
                    await asyncio.sleep(pause_s)
                sent.append(asyncio.create_task(self.producer.send(TELEMETRY, name, value)))
            await asyncio.gather(*sent)

        made = traffic.envelopes(next(SEEDS), int(rate * seconds), _now_ms() - 300_000, NAMED)
        return await self._measure(list(made), rate, send)

    async def _measure(self, made: Sequence[tuple[str, bytes]], rate: float, send: Send) -> Times:
        due_s: dict[str, float] = {}
        begun_s, before = time.perf_counter(), self._cpu_s()
        await send(made, rate, due_s)
        wall_s = time.perf_counter() - begun_s
        cores = {name: round((cpu - before[name]) / wall_s, 3) for name, cpu in self._cpu_s().items()}
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while any(f"{name}-i" not in self.triggers.came_s for name in due_s):
                    await asyncio.sleep(0.05)
        found = [
            (self.triggers.came_s[f"{name}-i"] - at_s) * 1000
            for name, at_s in due_s.items()
            if f"{name}-i" in self.triggers.came_s
        ]
        figures = percentile(found, 0.5), percentile(found, 0.99), max(found, default=0.0)
        return Times(*figures, len(found), len(made), cores)

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self.pids.items()} | {"bench": time.process_time()}


def main() -> None:
    """Measure at each rate, print the table and the JSON."""
    options = _options()
    uvloop.install()
    with stack(options.broker) as services:
        found = asyncio.run(_measure_all(services, options))
    ours, bare = found["http_200"], found["kafka_200"]
    finish(
        {"bench": "latency", "broker": options.broker, "ours": ours.p99_ms, "peer": bare.p99_ms}
        | {"ratio": ours.p99_ms / bare.p99_ms if bare.p99_ms else None}
        | {f"{name}_{figure}": round(getattr(one, figure), 1) for name, one in found.items() for figure in FIGURES}
        | {f"http_600_{name}_cores": cores for name, cores in found["http_600"].cores.items()}
        | {"lost": sum(one.envelopes - one.triggers for one in found.values())}
    )


FIGURES = ("p50_ms", "p99_ms", "max_ms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each rate, after a warm-up")
    parser.add_argument("--warm-seconds", type=float, default=WARM_S)
    parser.add_argument("--broker", choices=BROKERS, default="tansu")
    return parser.parse_args()


async def _measure_all(services: Stack, options: argparse.Namespace) -> dict[str, Times]:
    found: dict[str, Times] = {}
    for rate in RATES:
        async with _scene(services) as scene:
            await scene.post(100, options.warm_seconds)
            for name, measure in (("http", scene.post), ("kafka", scene.produce)):
                found[f"{name}_{rate}"] = one = await measure(rate, options.seconds)
                say(
                    f"{name:5s} → trigger at {rate} envelopes/s: p50 {one.p50_ms:6.1f} ms  p99 {one.p99_ms:6.1f} ms  "
                    f"max {one.max_ms:6.1f} ms  {one.triggers} of {one.envelopes}  cores {one.cores}"
                )
    return found


@asynccontextmanager
async def _scene(services: Stack) -> AsyncIterator[Scene]:
    prefix, port = fresh(), embedded.free_port()
    kafka, redis = services.kafka(f"{prefix}."), services.redis(prefix)
    await asyncio.to_thread(ensure_topics, kafka)
    env = environment(kafka, redis, gateway_settings(port, services.directory))
    logs = services.directory / f"{prefix}-gateway.log", services.directory / f"{prefix}-streams.log"
    with running(["gateway"], env, logs[0]) as gateway, running(["streams"], env, logs[1]) as worker:
        triggers, producer = Triggers(kafka), TelemetryProducer(kafka, timeout_s=5.0)
        producer.start()
        following = asyncio.create_task(triggers.follow())
        async with asyncio.timeout(60):
            while "partitions begin at offsets" not in logs[1].read_text() or not await _listens(port):
                await asyncio.sleep(0.1)
        pids = {"broker": services.broker_pid, "redis": services.redis_pid, "gateway": gateway.pid}
        yield Scene(port, triggers, producer, pids | {"worker": worker.pid})
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await producer.stop()


async def _listens(port: int) -> bool:
    """Is the gateway well, its topics seen and its broker reached?"""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        answer = await reader.read(64)
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
