import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from kafka.admin import KafkaAdminClient

from intentloop import topics
from intentloop.adapters.fact_reader import FactReader, Record
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.leases import Lease
from intentloop.adapters.offset_store import OffsetStore
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.facts import DeadLetter
from tests.unit.core_workers.samples import picked
from workers.fan_out import FanOut

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def carrying(
    kafka: KafkaSection, redis_section: RedisSection, owner: str = "w1"
) -> AsyncIterator[tuple[JobQueue, FactProducer]]:
    """A fan-out at work; ends with the block."""
    keys = Keys(redis_section.prefix)
    async with connect(redis_section) as redis, FactProducer(kafka) as producer:
        queue, stop = JobQueue(redis, keys, "label", QueueRule()), asyncio.Event()
        fan_out = FanOut(kafka, OffsetStore(redis, keys.fan_out_offsets), queue, producer)
        task = asyncio.create_task(fan_out.run(Lease(redis, keys.lease("fan-out"), owner, 2_000), stop))
        try:
            yield queue, producer
        finally:
            stop.set()
            await task


async def until(queue: JobQueue, waiting: int, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while (await queue.counts()).waiting != waiting:
        assert time.monotonic() < deadline, await queue.counts()
        await asyncio.sleep(0.02)


async def test_each_picked_sample_becomes_one_job_and_a_restart_begins_where_it_ended(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    ensure_topics(kafka, (topics.PICKED, topics.dead(topics.PICKED)))
    async with FactProducer(kafka) as producer:
        for number in range(20):
            await producer.send(topics.PICKED, picked(number).id, picked(number))
    async with carrying(kafka, redis_section) as (queue, producer):
        await until(queue, 20)
        await producer.send(topics.PICKED, picked(3).id, picked(3))
        await producer.send(topics.PICKED, picked(20).id, picked(20))
        await until(queue, 21)
    async with carrying(kafka, redis_section, "w2") as (queue, producer):
        await producer.send(topics.PICKED, picked(21).id, picked(21))
        await until(queue, 22)
        jobs = await queue.claim("w", 100, 0)
        assert sorted(job.id for job in jobs) == sorted(picked(number).id for number in range(22))
        assert msgspec.json.encode(picked(7)) in [job.payload for job in jobs]


async def tombstone(kafka: KafkaSection) -> None:
    """Put a record without a value on the topic of samples."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait(f"{kafka.prefix}{topics.PICKED.name}", None, b"t")


async def test_what_cannot_be_decoded_goes_to_the_dead_letters_and_its_neighbours_go_on(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    ensure_topics(kafka, (topics.PICKED, topics.dead(topics.PICKED)))
    async with carrying(kafka, redis_section) as (queue, producer):
        await producer.send(topics.PICKED, "a", picked(1))
        await producer.send_bytes(topics.PICKED, "b", b'{"id": 3')
        await producer.send_bytes(topics.PICKED, "c", b"\xff\x00")
        await tombstone(kafka)
        await producer.send(topics.PICKED, "d", picked(2))
        await until(queue, 2)
        letters: list[DeadLetter] = []
        reader = await asyncio.to_thread(FactReader, kafka, topics.dead(topics.PICKED), {})
        deadline = time.monotonic() + 120
        while len(letters) < 3 and time.monotonic() < deadline:
            records = await asyncio.to_thread(reader.poll, 500)
            letters += [msgspec.json.decode(record.value or b"", type=DeadLetter) for record in records]
        await asyncio.to_thread(reader.close)
    assert {letter.size_bytes for letter in letters} == {8, 2, 0}
    assert all(letter.reason and letter.source_topic == topics.PICKED.name for letter in letters)


async def test_offsets_of_another_log_are_void(kafka: KafkaSection, redis_section: RedisSection) -> None:
    ensure_topics(kafka, (topics.PICKED, topics.dead(topics.PICKED)))
    async with connect(redis_section) as redis:
        stored = {"epoch": "the log before", **{str(number): 1_000_000 for number in range(topics.PICKED.partitions)}}
        await redis.hset(Keys(redis_section.prefix).fan_out_offsets, mapping=stored)  # type: ignore[arg-type]
    async with carrying(kafka, redis_section) as (queue, producer):
        await producer.send(topics.PICKED, picked(1).id, picked(1))
        await until(queue, 1)
        assert [job.id for job in await queue.claim("w1", 2, 100)] == [picked(1).id]


async def test_a_log_that_begins_anew_under_a_running_fan_out_is_carried_whole(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    ensure_topics(kafka, (topics.PICKED, topics.dead(topics.PICKED)))
    async with carrying(kafka, redis_section) as (queue, producer):
        for number in range(16):
            await producer.send(topics.PICKED, picked(number).id, picked(number))
        await until(queue, 16)
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        await asyncio.to_thread(admin.delete_topics, [f"{kafka.prefix}{topics.PICKED.name}"])
        admin.close()
        ensure_topics(kafka, (topics.PICKED,))
        for number in range(100, 180):  # the new log is longer than the offsets of the old one
            await producer.send(topics.PICKED, picked(number).id, picked(number))
        await until(queue, 16 + 80)
        jobs = await queue.claim("w", 100, 0)
    assert {job.id for job in jobs} == {picked(number).id for number in (*range(16), *range(100, 180))}


async def test_offsets_go_on_in_the_same_log_and_are_forgotten_in_another(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        store = OffsetStore(redis, Keys(redis_section.prefix).fan_out_offsets)
        assert await store.load("log a") == {}
        await store.save("log a", [Record(0, 4, b""), Record(0, 5, b""), Record(2, 9, b"")])
        await store.save("log a", [])
        assert await store.load("log a") == {0: 6, 2: 10}
        assert await store.load("log b") is None
        assert await store.load("log b") == {}


async def test_no_offset_is_stored_before_redis_has_the_job(kafka: KafkaSection, redis_section: RedisSection) -> None:
    keys = Keys(redis_section.prefix)
    async with connect(redis_section) as redis, FactProducer(kafka) as producer:
        queue = JobQueue(redis, keys, "label", QueueRule())
        fan_out = FanOut(kafka, OffsetStore(redis, keys.fan_out_offsets), queue, producer)
        await redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(Exception, match=r"used memory > .maxmemory"):
                await fan_out.carry([Record(0, 0, msgspec.json.encode(picked(1)))])
        finally:
            await redis.config_set("maxmemory", 0)
        assert await redis.exists(keys.fan_out_offsets) == 0
        await fan_out.carry([Record(0, 0, msgspec.json.encode(picked(1)))])
        assert (await queue.counts()).waiting == 1


async def test_a_lease_has_one_owner_and_is_free_after_its_silence(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        first, second = (Lease(redis, f"{redis_section.prefix}:lease", name, 100) for name in ("a", "b"))
        assert await first.hold()
        assert await first.hold()
        assert not await second.hold()
        await second.release()
        assert not await second.hold()
        await asyncio.sleep(0.15)
        assert await second.hold()
        await second.release()
        assert await first.hold()
