"""What our transport relies on in Faust's real consumer, each by a name that says what an upgrade has broken."""

import asyncio
import gc
import warnings
from collections.abc import Iterator

import pytest

from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY
from streams import transport
from tests.integration.streams.listener import (
    SESSION_TIMEOUT_S,
    commit,
    committed,
    listening,
    send_numbers,
)

# Faust's client, stopped while a crowded machine lets it join a group, may leave its sockets to the garbage collector;
# a worker's process ends then, but these tests share one.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed (transport|<socket|AIOKafkaConnection):ResourceWarning", "ignore:loop is closed:ResourceWarning"
)


@pytest.fixture(autouse=True, scope="module")
def collect_here() -> Iterator[None]:
    """Leave none of these sockets to the tests of other files."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_faust_still_takes_a_fetched_list_as_one_message_that_ends_at_its_last_offset(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 500)
        async with listening(kafka) as here:
            await here.until_applied(last)
            for event in here.taken:
                assert event.message.offset == event.value[-1].offset
                assert 1 <= len(event.value) <= 20
            assert len(here.taken) < 60, "batches, not single messages"
            for partition, offset in last.items():
                assert here.offsets(partition) == list(range(offset + 1))

    asyncio.run(run())


def test_faust_still_begins_where_we_say_whatever_was_committed(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 500)
        ahead, behind, nowhere = sorted(last)[:3]
        await commit(kafka, {ahead: last[ahead] + 1, behind: 1})
        applied = {ahead: 4, behind: 7, nowhere: 9}
        async with listening(kafka, dict(applied)) as here:
            await here.until_applied(last)
            for partition, offset in applied.items():
                assert here.offsets(partition) == list(range(offset + 1, last[partition] + 1))

    asyncio.run(run())


def test_faust_still_survives_a_rebalance_in_the_middle_of_a_batch(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        await send_numbers(kafka, 500)
        applied: dict[int, int] = {}  # what both share, as workers share Redis
        async with listening(kafka, applied) as first:
            first.go_on.clear()
            await first.until_taken(1)
            async with listening(kafka, applied) as second:
                async with asyncio.timeout(40):
                    while [len(one.assignments[-1:] and one.assignments[-1]) for one in (first, second)] != [4, 4]:
                        await asyncio.sleep(0.05)
                assert len(first.taken) == 1, "nothing is handed out while the agent works on a batch"
                assert not set(first.assignments[-1]) & set(second.assignments[-1])
                first.go_on.set()
                last = await send_numbers(kafka, 500)
                await first.until_applied(last)
                for one in (first, second):
                    own = one.assignments[-1]
                    since = 1 if one is first else 0  # the batch in hand was of the assignment before
                    assert {event.message.partition for event in one.taken[since:]} <= set(own)
                    for partition, begin in own.items():
                        assert one.offsets(partition, since) == list(range(begin, last[partition] + 1))

    asyncio.run(run())


def test_faust_still_pauses_a_partition_and_goes_on_without_a_gap(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 200)
        async with listening(kafka) as here:
            await here.until_applied(last)
            paused = next(iter(last))
            here.app.consumer.pause_partitions({here.tp(paused)})
            await asyncio.sleep(1.5)  # a fetch that was under way
            more = await send_numbers(kafka, 200)
            await here.until_applied({**more, paused: last[paused]})
            here.app.consumer.resume_partitions({here.tp(paused)})
            await here.until_applied(more)
            assert here.offsets(paused) == list(range(more[paused] + 1))
            assert len(here.assignments) == 1

    asyncio.run(run())


def test_what_was_fetched_while_a_rebalance_went_on_is_not_lost(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 100)
        async with listening(kafka) as here:
            await here.until_applied(last)
            for _ in range(3):  # a fetch is under way each time
                here.app.consumer.stop_flow()
                last = await send_numbers(kafka, 100)
                await asyncio.sleep(1.0)
                here.app.consumer.resume_flow()
                await asyncio.sleep(0.5)
            await here.until_applied(await send_numbers(kafka, 100))
            for partition, offset in last.items():
                assert here.offsets(partition)[: offset + 1] == list(range(offset + 1))

    asyncio.run(run())


def test_faust_still_takes_our_fetching_for_activity_and_fetches_nothing_itself(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        async with listening(kafka) as here:
            await here.until_applied(await send_numbers(kafka, 200))
            await asyncio.sleep(1.0)
            await here.until_applied(await send_numbers(kafka, 200))
            client = here.app.consumer._thread._consumer
            assert client._subscription.fetcher_idle_time < 0.5, "else it leaves the group after a while"
            own = client.assignment()
            assert len(own) == TELEMETRY.partitions
            assert client.paused() == own
            assert not client._fetcher._records, "nothing is fetched twice"

    asyncio.run(run())


def test_k07_faust_still_keeps_its_place_in_the_group_while_the_agent_is_slow(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 900)
        async with listening(kafka, batch_records=1) as here:
            here.block_s = SESSION_TIMEOUT_S + 1.5  # nothing of this thread runs meanwhile
            await here.until_taken(1)
            here.block_s = 0.0
            generation = here.app.consumer_generation_id
            here.go_on.clear()
            await asyncio.sleep(SESSION_TIMEOUT_S + 1.5)  # more waits than the buffer holds
            here.go_on.set()
            await here.until_applied(last)
            assert here.app.consumer_generation_id == generation
            assert len(here.assignments) == 1
            for partition, offset in last.items():
                assert here.offsets(partition) == list(range(offset + 1)), "each once, in order"

    asyncio.run(run())


def test_faust_still_commits_what_was_acknowledged_and_nothing_else(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 300)
        wanted = {number: offset + 1 for number, offset in last.items()}
        async with listening(kafka) as here:
            await here.until_applied(last)
            async with asyncio.timeout(20):
                while await committed(kafka, sorted(last)) != wanted:
                    await asyncio.sleep(0.2)
            here.acknowledges = False
            before = len(here.taken)
            assert await send_numbers(kafka, 100) != last
            await here.until_taken(before + 1)
            await asyncio.sleep(2.5)  # two commit intervals
            assert await committed(kafka, sorted(last)) == wanted

    asyncio.run(run())


def test_k04_a_commit_over_a_gap_loses_nothing(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        last = await send_numbers(kafka, 500)
        partition = max(last, key=lambda number: last[number])
        async with listening(kafka) as here:
            here.acknowledges = False
            await here.until_taken(sum(-(-(offset + 1) // 20) for offset in last.values()))
            first, *_, newest = [event for event in here.taken if event.message.partition == partition]
            here.app.consumer.ack(newest.message)  # the first one is still being worked on
            await asyncio.sleep(2.5)
        assert await committed(kafka, [partition]) == {partition: newest.message.offset + 1}, "Faust heeds gaps now"
        async with listening(kafka) as again:
            await again.until_applied(last)
            assert again.offsets(partition)[0] == first.value[0].offset == 0
            assert again.offsets(partition) == list(range(last[partition] + 1))

    asyncio.run(run())


def test_a_position_that_cannot_be_told_ends_the_worker(kafka: KafkaSection) -> None:
    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        async with listening(kafka, fault=ConnectionError("Redis is gone")) as here, asyncio.timeout(30):
            while not here.ends:
                await asyncio.sleep(0.05)
        assert str(here.ends[0]) == "Redis is gone"
        assert not here.taken

    asyncio.run(run())


def test_a_seek_that_takes_too_long_ends_the_worker_and_does_not_leave_it_idle(
    kafka: KafkaSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: dict[int, int]) -> dict[int, int]:
        await asyncio.sleep(3600)
        return {}

    async def run() -> None:
        monkeypatch.setattr(transport, "SEEK_S", 0.3)
        ensure_topics(kafka, (TELEMETRY,))
        async with listening(kafka, positions=never) as here, asyncio.timeout(60):
            while not here.ends:
                await asyncio.sleep(0.05)
        assert isinstance(here.ends[0], TimeoutError)

    asyncio.run(run())
