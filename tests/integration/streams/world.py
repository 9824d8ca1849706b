"""Traffic of many shoppers, worker processes, and the straight replay that tells what workers must have done."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from redis.asyncio import Redis

from intentloop import compress, prompt, shoppers
from intentloop.adapters.codec import DECODERS, encode
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.state_store import read_counts
from intentloop.events import Behaviour, Envelope, Event, Inference, InferenceSkipped, Rejection
from intentloop.fold import FoldRule
from intentloop.topics import DRIFTED, PICKED, TELEMETRY, TRIGGERED, Topic
from streams.fold_records import DEAD, FoldContext, decode, fold_batch, state_keys

START_MS = 1_796_000_000_000
OUTPUTS = (DRIFTED, TRIGGERED, PICKED, DEAD)
ANSWERS = ("闲逛", "比价犹豫|{leaf}", "场景购物|{leaf}", "!!!!!!!!!!", "买买买", "比价犹豫|不在这里")


def traffic(seed: int, envelopes: int, users: int) -> list[Envelope]:
    """Envelopes as phones send them: real sessions, model runs, skipped runs, batches sent again, clocks gone wrong."""
    random = Random(seed)
    clocks = {f"user{number}": START_MS + random.randrange(3_600_000) for number in range(users)}
    made: list[Envelope] = []
    while len(made) < envelopes:
        user = random.choice(list(clocks))
        if made and random.random() < 0.05:
            again = random.choice(made[-20:])
            made.append(msgspec.structs.replace(again, batch_id=f"{again.batch_id}-again"))
            continue
        envelope, clocks[user] = _envelope(random, user, clocks[user], f"b{len(made)}")
        made.append(envelope)
    return made


def _envelope(random: Random, user: str, now_ms: int, batch_id: str) -> tuple[Envelope, int]:
    events: list[Event] = []
    read: list[Behaviour] = []
    for step in shoppers.session(random, shoppers.ShopperRule(intents=(0.4, 0.3, 0.3))).steps:
        now_ms += step.gap_ms
        ts_ms = 1_827 if random.random() < 0.01 else now_ms - 3_000_000 * (random.random() < 0.01)
        one = Behaviour(
            event_id=f"{batch_id}-{len(events)}",
            action=step.action,
            ts_ms=ts_ms,
            seq=len(events),
            item_id=step.item_id,
            title=step.title,
            category=step.category,
            price_yuan=step.price_yuan,
            dwell_ms=step.dwell_ms or None,
        )
        events.append(one)
        read.append(one)
    if random.random() < 0.8:
        events.append(_inference(random, read, now_ms + 1, f"{batch_id}-i"))
    else:
        events.append(InferenceSkipped(event_id=f"{batch_id}-s", ts_ms=now_ms + 1, check="fatigued"))
    ahead_ms = random.choice((0, 0, 0, 3 * 86_400_000))
    return Envelope(
        batch_id=batch_id,
        user_id=user,
        device_id=f"d-{user}",
        sent_at_ms=now_ms + 1_000 + ahead_ms,
        received_at_ms=now_ms + 1_000,
        events=tuple(msgspec.structs.replace(event, ts_ms=event.ts_ms + ahead_ms) for event in events),
        rejected=(Rejection(len(events), "no ts"),) if random.random() < 0.1 else (),
    ), now_ms


def _inference(random: Random, read: Sequence[Behaviour], ts_ms: int, event_id: str) -> Inference:
    items = compress.compress(read, compress.CompressRule())
    leaf = next((item.category.rsplit(".", 1)[-1] for item in items if item.category), "闲")
    digest = prompt.digest(prompt.sequence_text(items)) if random.random() < 0.95 else "0" * 32
    return Inference(
        event_id=event_id,
        ts_ms=ts_ms,
        model_version="v1",
        prompt_version=prompt.VERSION,
        read=items,
        sequence_digest=digest,
        answer=random.choice(ANSWERS).format(leaf=leaf),
        confidence=random.random(),
    )


async def send(kafka: KafkaSection, values: Iterable[tuple[str, bytes | None]]) -> None:
    """Put telemetry on the topic; one user's envelopes keep their order."""
    async with FactProducer(kafka) as producer:
        topic = f"{kafka.prefix}{TELEMETRY.name}"
        sent = [await producer._producer.send(topic, value, user.encode()) for user, value in values]
        await asyncio.gather(*sent)


async def send_envelopes(kafka: KafkaSection, envelopes: Iterable[Envelope]) -> None:
    await send(kafka, [(envelope.user_id, encode(envelope)) for envelope in envelopes])


async def read_records(kafka: KafkaSection, topic: Topic, idle_s: float = 1.5) -> list[Record]:
    """All records of a topic from its beginning, until none comes for a while (end offsets of tansu are wrong)."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, fetch_max_wait_ms=50, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(f"{kafka.prefix}{topic.name}", number) for number in range(topic.partitions)])
        await consumer.seek_to_beginning()
        found: list[Record] = []
        while batch := await consumer.getmany(timeout_ms=int(idle_s * 1000)):
            found.extend(Record(one.partition, one.offset, one.value) for records in batch.values() for one in records)
        return found
    finally:
        await consumer.stop()


class Truth(msgspec.Struct):
    """What straight folding of the whole topic gives."""

    states: dict[str, bytes]
    counts: Counter[str]
    outputs: dict[str, dict[str, bytes]]
    watermarks: dict[int, int]


def replay(
    records: Sequence[Record], keys: Keys, batch: int = 64, before: Truth | None = None, kind_suffix: str = ""
) -> Truth:
    """Fold every partition from its beginning in this process, on top of the states and counts of `before`."""
    states, counts = ({}, Counter[str]()) if before is None else (dict(before.states), Counter(before.counts))
    truth = Truth(states, counts, {topic.name: {} for topic in OUTPUTS}, {})
    context = FoldContext(keys, FoldRule(), kind_suffix)
    for partition in sorted({record.partition for record in records}):
        own = sorted(record for record in records if record.partition == partition)
        for start in range(0, len(own), batch):
            decoded = decode(own[start : start + batch], context.rule)
            found = {key: truth.states.get(key) for key in state_keys(decoded, keys)}
            outcome = fold_batch(decoded, found, {partition: own[start].offset - 1}, context)
            for write in outcome.writes:
                truth.states.update(write.states)
                truth.counts.update(write.counts)
                truth.watermarks[partition] = write.watermark
            for output in outcome.outputs:
                truth.outputs[output.topic.name][identity(output.topic, output.value)] = output.value
    return truth


def identity(topic: Topic, value: bytes) -> str:
    """By what would a consumer recognise this fact?"""
    fact = DECODERS[topic.name].decode(value)
    if topic is DEAD:
        return f"{fact.source_partition}-{fact.source_offset}-{fact.index}"
    return str(fact.id)


async def wait_for_watermarks(redis: Redis, keys: Keys, wanted: dict[int, int], timeout_s: float) -> None:
    """Until the workers have applied all of it."""
    async with asyncio.timeout(timeout_s):
        while await watermarks(redis, keys, wanted) != wanted:
            await asyncio.sleep(0.1)


async def watermarks(redis: Redis, keys: Keys, partitions: Iterable[int]) -> dict[int, int]:
    numbers = list(partitions)
    found = await redis.mget([keys.watermark(number) for number in numbers])
    return {number: -1 if value is None else int(value) for number, value in zip(numbers, found, strict=True)}


class Difference(msgspec.Struct):
    """What the workers left behind against the replay; a fact under a known id with other bytes is foreign."""

    wrong_states: int
    missing: int
    foreign: int
    duplicates: dict[str, int]
    counters: dict[str, tuple[int, int]]  # those that differ: found, wanted


async def compare(kafka: KafkaSection, redis: Redis, keys: Keys, truth: Truth) -> Difference:
    """States, counters and facts against those of the replay; duplicates that are byte-equal are counted by topic."""
    names = list(truth.states)
    stored = dict(zip(names, await redis.mget(names), strict=True))
    wrong = sum(stored[name] != truth.states[name] for name in names)
    counts = await read_counts(redis, keys)
    both = {name: (counts.get(name, 0), truth.counts[name]) for name in {*counts, *truth.counts}}
    difference = Difference(wrong, 0, 0, {}, {name: pair for name, pair in both.items() if pair[0] != pair[1]})
    found = await asyncio.gather(*(_read_facts(kafka, topic, truth) for topic in OUTPUTS))
    for topic, sent in zip(OUTPUTS, found, strict=True):
        wanted = set(truth.outputs[topic.name].items())
        difference.missing += len(wanted - set(sent))
        difference.foreign += len(set(sent) - wanted)
        difference.duplicates[topic.name] = len(sent) - len(set(sent))
    return difference


async def _read_facts(kafka: KafkaSection, topic: Topic, truth: Truth) -> list[tuple[str, bytes | None]]:
    """All facts of a topic by identity; one that seems to lack some is read again with patience: brokers may dawdle."""
    sent: list[tuple[str, bytes | None]] = []
    for idle_s in (1.5, 15.0):
        sent = [(identity(topic, one.value or b""), one.value) for one in await read_records(kafka, topic, idle_s)]
        if len(set(sent)) >= len(truth.outputs[topic.name]):
            break
    return sent


async def assert_as_replayed(kafka: KafkaSection, redis: Redis, keys: Keys, truth: Truth) -> dict[str, int]:
    """States, counters and facts are those of the replay; returns by topic how many were sent again, byte-equal."""
    found = await compare(kafka, redis, keys, truth)
    assert (found.wrong_states, found.missing, found.foreign, found.counters) == (0, 0, 0, {}), found
    return found.duplicates


def start_worker(
    kafka: KafkaSection, redis: RedisSection, log: Path, module: str = "streams", **extra: str
) -> subprocess.Popen[bytes]:
    """One real worker process; its log is appended to `log`."""
    environment = dict(os.environ)
    environment |= {
        "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
        "INTENTLOOP_REDIS__URL": redis.url,
        "INTENTLOOP_REDIS__PREFIX": redis.prefix,
        "INTENTLOOP_STREAMS__SESSION_TIMEOUT_S": "6",
        "INTENTLOOP_STREAMS__HEARTBEAT_S": "1.5",
        **extra,
    }
    with log.open("ab") as sink:
        return subprocess.Popen([sys.executable, "-m", module], stdout=sink, stderr=subprocess.STDOUT, env=environment)
