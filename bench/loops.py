"""What would stream workers without Faust be? Hand-written loops over the same functions, run as processes.

`python -m bench.loops aiokafka|confluent|decode|quix|quix_sink`, with the settings of a stream worker. `aiokafka`,
`confluent` and `quix_sink` apply batches by the product's own protocol (`streams/apply_batch.py`), so they differ from
the worker only in what brings the records. `quix` is Quix Streams as its manual has it: per message, state in its own
store. `decode` consumes and decodes, nothing else: the ceiling. Loops run until they are ended.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine

import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.meter import Meter
from intentloop.adapters.codec import DECODERS
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.redis_client import connect
from intentloop.adapters.state_store import StateStore
from intentloop.topics import TELEMETRY
from streams.apply_batch import BatchApplier
from streams.compile_fold import compiled_walk
from streams.fold_records import FoldContext
from streams.settings import StreamsSettings, fold_rule

BATCH = 300
COMMIT_S = 1.0


Loop = Callable[[StreamsSettings, BatchApplier], Coroutine[None, None, None]]


def fold_context(settings: StreamsSettings) -> FoldContext:
    """With what does a stream worker fold?"""
    rule = fold_rule(settings.rules, settings.streams.state_ttl_s)
    return FoldContext(Keys(settings.redis.prefix), rule, "", compiled_walk(rule, settings.streams.compiled))


async def _with_applier(settings: StreamsSettings, body: Loop) -> None:
    keys = Keys(settings.redis.prefix)
    store = StateStore(connect(settings.redis), keys, settings.streams.redis_ttl_s)
    async with FactProducer(settings.kafka) as producer:
        await body(settings, BatchApplier(store, producer, fold_context(settings)))


async def run_aiokafka(settings: StreamsSettings, applier: BatchApplier) -> None:
    """Fetch, apply, commit each second."""
    topic = f"{settings.kafka.prefix}{TELEMETRY.name}"
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap,
        group_id=f"{settings.kafka.prefix}{settings.redis.prefix}",
        enable_auto_commit=False,
        fetch_max_wait_ms=20,
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(TELEMETRY.partitions)])
    for number, offset in (await applier.positions(dict.fromkeys(range(TELEMETRY.partitions), 0))).items():
        consumer.seek(TopicPartition(topic, number), offset)
    committed_s = time.monotonic()
    while True:
        found = await consumer.getmany(timeout_ms=200, max_records=BATCH)
        await applier.apply([Record(one.partition, one.offset, one.value) for own in found.values() for one in own])
        if time.monotonic() - committed_s > COMMIT_S:
            await consumer.commit()
            committed_s = time.monotonic()


async def run_confluent(settings: StreamsSettings, applier: BatchApplier) -> None:
    """The same with librdkafka, whose own thread fetches ahead; the loop stands still while it waits."""
    import confluent_kafka as ck

    topic = f"{settings.kafka.prefix}{TELEMETRY.name}"
    consumer = ck.Consumer(_librdkafka(settings))
    starts = await applier.positions(dict.fromkeys(range(TELEMETRY.partitions), 0))
    consumer.assign([ck.TopicPartition(topic, number, offset) for number, offset in starts.items()])
    committed_s = time.monotonic()
    while True:
        found = consumer.consume(BATCH, timeout=0.02)
        await applier.apply([Record(one.partition(), one.offset(), one.value()) for one in found])
        if time.monotonic() - committed_s > COMMIT_S:
            consumer.commit(asynchronous=True)
            committed_s = time.monotonic()


def run_decode(settings: StreamsSettings) -> None:
    """Consume and decode only; prints events and seconds once nothing has come for a second."""
    import confluent_kafka as ck

    topic, decode_one = f"{settings.kafka.prefix}{TELEMETRY.name}", DECODERS[TELEMETRY.name].decode
    consumer = ck.Consumer(_librdkafka(settings))
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(TELEMETRY.partitions)])
    meter = Meter()
    while not meter.is_over():
        found = consumer.consume(BATCH, timeout=0.02)
        meter.add(sum(len(decode_one(one.value()).events) for one in found))
    meter.tell()


def _librdkafka(settings: StreamsSettings) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": settings.kafka.bootstrap,
        "group.id": f"{settings.kafka.prefix}{settings.redis.prefix}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
        "fetch.queue.backoff.ms": 2,  # with the default of 1 s a fast consumer stalls
        "queued.min.messages": 20_000,
        "log_level": 2,
    }


def run_quix(settings: StreamsSettings, into_sink: bool) -> None:
    """Quix Streams, per message with its own state, or in batches into a sink that applies them by our protocol."""
    from bench.quix import build_per_message, build_sink

    (build_sink if into_sink else build_per_message)(settings).run()


def main() -> None:
    """Run the loop that the first argument names."""
    name = sys.argv[1]
    settings = StreamsSettings()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if name == "decode":
        run_decode(settings)
    elif name.startswith("quix"):
        run_quix(settings, into_sink=name == "quix_sink")
    else:
        loop = {"aiokafka": run_aiokafka, "confluent": run_confluent}[name]
        asyncio.run(_with_applier(settings, loop))


if __name__ == "__main__":
    main()
