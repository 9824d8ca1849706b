"""What does the client that fetches hand out, and what not?"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer

from intentloop.adapters.record_fetcher import Record, RecordFetcher
from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import UnavailableError
from intentloop.topics import TELEMETRY
from tests.integration.streams.listener import send_numbers
from tests.integration.streams.world import send


@asynccontextmanager
async def fetching(kafka: KafkaSection) -> AsyncIterator[RecordFetcher]:
    ensure_topics(kafka, (TELEMETRY,))
    fetcher = RecordFetcher(kafka.bootstrap, f"{kafka.prefix}{TELEMETRY.name}", f"{kafka.prefix}test")
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def all_of(fetcher: RecordFetcher, most: int = 50) -> dict[int, list[int]]:
    """Which offsets come, by partition, until none comes for a second?"""
    found: dict[int, list[int]] = defaultdict(list)
    quiet = 0
    while quiet < 10:
        records = await fetcher.fetch(most)
        assert len(records) <= most
        for record in records:
            found[record.partition].append(record.offset)
        quiet = 0 if records else quiet + 1
    return dict(found)


def test_each_partition_is_read_from_its_offset_in_order_and_no_other_is(kafka: KafkaSection) -> None:
    async def run() -> None:
        async with fetching(kafka) as fetcher:
            last = await send_numbers(kafka, 500)
            first, second, _ = sorted(last)[:3]
            await fetcher.begin_at({first: 3, second: 0})
            assert await all_of(fetcher) == {
                first: list(range(3, last[first] + 1)),
                second: list(range(last[second] + 1)),
            }

    asyncio.run(run())


def test_nothing_of_an_assignment_before_is_handed_out(kafka: KafkaSection) -> None:
    async def run() -> None:
        async with fetching(kafka) as fetcher:
            last = await send_numbers(kafka, 500)
            everything = dict.fromkeys(last, 0)
            await fetcher.begin_at(everything)
            assert await fetcher.fetch(40), "more lies ready behind these"
            one = min(last)
            await fetcher.begin_at({one: 2})
            assert await all_of(fetcher) == {one: list(range(2, last[one] + 1))}
            await fetcher.begin_at({})
            assert await all_of(fetcher) == {}
            await fetcher.begin_at(everything)
            assert await all_of(fetcher) == {number: list(range(offset + 1)) for number, offset in last.items()}

    asyncio.run(run())


def test_a_tombstone_is_a_record_without_a_value(kafka: KafkaSection) -> None:
    async def run() -> None:
        async with fetching(kafka) as fetcher:
            await send(kafka, [("u1", b"1"), ("u1", None)])
            await fetcher.begin_at(dict.fromkeys(range(TELEMETRY.partitions), 0))
            found: list[Record] = []
            while len(found) < 2:
                found += await fetcher.fetch(10)
            assert [(record.offset, record.value) for record in found] == [(0, b"1"), (1, None)]

    asyncio.run(run())


def test_a_partition_that_the_broker_does_not_have_is_waited_for(kafka: KafkaSection) -> None:
    async def run() -> None:
        async with fetching(kafka) as fetcher:
            last = await send_numbers(kafka, 100)
            one = min(last)
            await fetcher.begin_at({one: 0, TELEMETRY.partitions: 0})
            assert await all_of(fetcher) == {one: list(range(last[one] + 1))}

    asyncio.run(run())


@pytest.fixture
def on_apache(apache_kafka: str) -> KafkaSection:
    return KafkaSection(bootstrap=apache_kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")


@pytest.mark.needs_apache_kafka
def test_an_offset_beyond_the_log_is_said_and_not_read_from_the_start(on_apache: KafkaSection) -> None:
    async def poll(fetcher: RecordFetcher) -> None:
        for _ in range(100):
            assert await fetcher.fetch(50) == []

    async def run() -> None:
        async with fetching(on_apache) as fetcher:
            last = await send_numbers(on_apache, 100)
            one = min(last)
            await fetcher.begin_at({one: last[one] + 50})
            with pytest.raises(UnavailableError, match=rf"partition {one} of .* from offset .*fresh Redis prefix"):
                await poll(fetcher)

    asyncio.run(run())


@pytest.mark.needs_apache_kafka
def test_markers_of_transactions_are_gaps_and_no_records(on_apache: KafkaSection) -> None:
    async def run() -> None:
        async with fetching(on_apache) as fetcher:
            name = f"{on_apache.prefix}{TELEMETRY.name}"
            producer = Producer({"bootstrap.servers": on_apache.bootstrap, "transactional.id": on_apache.prefix})
            producer.init_transactions(30)
            for number in range(4):
                producer.begin_transaction()
                producer.produce(name, b"%d" % number, partition=2)
                producer.commit_transaction(30)
            await fetcher.begin_at({2: 0})
            assert await all_of(fetcher) == {2: [0, 2, 4, 6]}
            await fetcher.begin_at({2: 3})  # where the worker goes after offset 2, and where nothing lies
            assert await all_of(fetcher) == {2: [4, 6]}

    asyncio.run(run())
