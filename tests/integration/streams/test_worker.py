"""One or two real workers: bad records, a second worker, fences, a broker that began anew, health."""

import asyncio
from pathlib import Path

import pytest

from intentloop.adapters import embedded
from intentloop.adapters.codec import DECODERS
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.state_store import read_counts
from intentloop.topics import PICKED, TELEMETRY
from streams.fold_records import DEAD
from tests.integration.streams import world
from tests.integration.streams.scene import envelopes, get, scene, wait_exit

BAD = (
    b'{"batch_id":"b","user_id":"u","device_id":"d","events":[{"kind":"behaviour","dwell_ms":"a string"}]}',
    b"\xff\xfe\x00",
    b"",
    b"[]",
    None,
)


def test_bad_records_go_to_the_dead_letters_and_their_neighbours_go_on(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path) as here:
            good = list(envelopes(60))
            await world.send(kafka, [*good[:30], *(("user1", bad) for bad in BAD), *good[30:]])
            port = embedded.free_port()
            worker = here.start(INTENTLOOP_HEALTH__PORT=str(port))
            truth = await here.truth()
            await here.applied(truth)
            await world.assert_as_replayed(kafka, here.redis, here.keys, truth)
            letters = [
                DECODERS[DEAD.name].decode(one.value or b"") for one in await world.read_records(kafka, DEAD, 1.0)
            ]
            whole = [letter for letter in letters if letter.index == -1]
            assert len(whole) == len(BAD)
            bad = {
                (one.partition, one.offset) for one in await world.read_records(kafka, TELEMETRY) if one.value in BAD
            }
            assert {(letter.source_partition, letter.source_offset) for letter in whole} == bad
            assert {letter.reason.partition(":")[0] for letter in whole} == {"not Envelope", "tombstone"}
            assert {letter.size_bytes for letter in whole} == {len(bad or b"") for bad in BAD}
            assert (await read_counts(here.redis, here.keys))["undecodable"] == len(BAD)
            await here.redis.script_flush()  # what a restart or failover of Redis does
            await world.send(kafka, envelopes(20, seed=4))
            await here.applied(await here.truth())
            assert get(port, "/health")[0] == 200
            assert b'intentloop_stream_events_total{outcome="applied"}' in get(port, "/metrics")[1]
            assert worker.poll() is None

    asyncio.run(run())


def test_when_one_of_two_workers_is_killed_the_other_does_its_work(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path) as here:
            here.start()
            survivor = here.start()
            await here.shared_out(4)
            await world.send(kafka, envelopes(300))
            await here.applied(await here.truth())
            here.workers[0].kill()
            here.workers[0].wait()
            await world.send(kafka, envelopes(300, seed=4))
            truth = await here.truth()
            await here.applied(truth)
            await world.assert_as_replayed(kafka, here.redis, here.keys, truth)
            assert survivor.poll() is None

    asyncio.run(run())


def test_a_foreign_watermark_stops_the_worker_without_writing(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path) as here:
            worker = here.start()
            await world.send(kafka, envelopes(100))
            truth = await here.truth()
            await here.applied(truth)
            for partition in range(TELEMETRY.partitions):  # also those that had nothing yet: all belong to another
                await here.redis.set(here.keys.watermark(partition), truth.watermarks.get(partition, -1) + 100)
            before = await read_counts(here.redis, here.keys)
            await world.send(kafka, envelopes(50, seed=5))
            assert await wait_exit(worker) == 70
            assert "another worker owns the partition" in here.log(0)
            assert await read_counts(here.redis, here.keys) == before

    asyncio.run(run())


@pytest.mark.parametrize("reset", [False, True])
def test_watermarks_of_another_broker_stop_the_worker_unless_it_may_begin_anew(
    reset: bool, kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path) as here:
            await here.redis.hset(here.keys.broker_epoch, mapping={"epoch": "old-broker", "resets": 0})
            await here.redis.set(here.keys.watermark(0), 10_000)
            worker = here.start(INTENTLOOP_STREAMS__RESET_ON_NEW_BROKER=str(reset).lower())
            if not reset:
                assert await wait_exit(worker) == 78
                assert "old-broker" in here.log(0)
                return
            await world.send(kafka, envelopes(40))
            await here.applied(await here.truth())
            samples = await world.read_records(kafka, PICKED, 1.0)
            assert samples
            assert all(b'"id":"sample.r1-' in (one.value or b"") for one in samples), "ids differ from before the reset"

    asyncio.run(run())


def test_a_redis_that_lost_its_newest_writes_is_caught_up_from_kafka(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path) as here:
            worker = here.start()
            await world.send(kafka, list(envelopes(100))[:4])  # so few that some partitions have no watermark yet
            await here.applied(await here.truth())
            names = [name async for name in here.redis.scan_iter(f"{redis_section.prefix}:*")]
            saved = {name: await here.redis.dump(name) for name in names}
            await world.send(kafka, envelopes(300, seed=4))
            truth = await here.truth()
            await here.applied(truth)
            worker.terminate()  # commits all of it to Kafka
            assert await wait_exit(worker) == 0
            assert "stopped cleanly" in here.log(0)
            assert "Traceback" not in here.log(0)
            await here.redis.delete(*[name async for name in here.redis.scan_iter(f"{redis_section.prefix}:*")])
            for name, value in saved.items():
                await here.redis.restore(name, 0, value or b"")
            here.start()
            await here.applied(truth)
            duplicates = await world.assert_as_replayed(kafka, here.redis, here.keys, truth)
            assert duplicates[PICKED.name] > 0, "the work was done again"

    asyncio.run(run())
