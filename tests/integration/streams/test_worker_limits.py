"""What a worker does at its limits: no partition for it, other partitions than the table says, a silent Redis."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from intentloop.adapters import embedded
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.state_store import StateStore
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.fold import FoldRule
from intentloop.topics import ALL, TELEMETRY
from streams import run_worker
from streams.apply_batch import BatchApplier
from streams.fold_records import FoldContext
from streams.run_worker import Worker
from streams.settings import StreamsSettings
from tests.integration.streams import world
from tests.integration.streams.scene import Scene, envelopes, get, scene, wait_exit
from tests.unit.streams.test_fold_records import record

ONE_PARTITION = tuple(msgspec.structs.replace(one, partitions=1) if one is TELEMETRY else one for one in ALL)


async def until(scene: Scene, port: int, status: int, timeout_s: float = 120.0) -> bytes:
    """Until `/health` says so; returns what it says."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                found, body = await asyncio.to_thread(get, port, "/health")
            except OSError:  # not listening yet
                found, body = 0, b""
            if found == status:
                return body
            assert all(worker.poll() is None for worker in scene.workers), scene.log(0)
            await asyncio.sleep(0.1)


def test_k10_other_partitions_than_the_table_says_stop_the_worker_with_both_numbers(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        five = (msgspec.structs.replace(TELEMETRY, partitions=5),)
        ensure_topics(kafka, five)
        async with scene(kafka, redis_section, tmp_path, five) as here:
            assert await wait_exit(here.start()) == 78
            assert f"topic {kafka.prefix}{TELEMETRY.name} has 5 partitions, the table says 8" in here.log(0)

    asyncio.run(run())


def test_k14_workers_without_a_partition_are_healthy_and_take_over(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    async def run() -> None:
        async with scene(kafka, redis_section, tmp_path, ONE_PARTITION) as here:
            ports = [embedded.free_port() for _ in range(3)]
            for port in ports:
                here.start("tests.crash.narrow_worker", INTENTLOOP_HEALTH__PORT=str(port))
            for port in ports:
                await until(here, port, 200)
            async with asyncio.timeout(30):
                while sorted(here.partitions(number) for number in range(3)) != [0, 0, 1]:
                    await asyncio.sleep(0.1)
                while sum("no partition for this worker" in here.log(number) for number in range(3)) < 2:
                    await asyncio.sleep(0.1)
            await world.send(kafka, envelopes(60))
            await here.applied(await here.truth())
            busy = next(number for number in range(3) if here.partitions(number) == 1)
            here.workers[busy].kill()
            here.workers[busy].wait()
            del here.workers[busy]
            await world.send(kafka, envelopes(60, seed=4))
            truth = await here.truth()
            assert list(truth.watermarks) == [0]
            await here.applied(truth)
            await world.assert_as_replayed(kafka, here.redis, here.keys, truth)

    asyncio.run(run())


def test_a_silent_redis_turns_health_red_and_a_wiped_one_is_noticed_without_any_traffic(
    kafka: KafkaSection, tmp_path: Path
) -> None:
    async def run(section: RedisSection, redis: subprocess.Popen[bytes]) -> None:
        async with scene(kafka, section, tmp_path) as here:
            port = embedded.free_port()
            worker = here.start(INTENTLOOP_HEALTH__PORT=str(port))
            await world.send(kafka, envelopes(60))
            truth = await here.truth()
            await here.applied(truth)
            await until(here, port, 200)
            redis.send_signal(signal.SIGSTOP)
            try:
                assert b"Redis does not answer within 2 s" in await until(here, port, 503)
            finally:
                redis.send_signal(signal.SIGCONT)
            await until(here, port, 200)
            await here.redis.flushall()
            assert await wait_exit(worker) == 70
            assert "Redis lost confirmed writes" in here.log(0)
            here.start()
            await here.applied(truth)
            await world.assert_as_replayed(kafka, here.redis, here.keys, truth)

    port = embedded.free_port()
    process = embedded.start_redis(port, tmp_path / "redis", tmp_path / "redis.log")
    section = RedisSection(url=f"redis://127.0.0.1:{port}/0")
    try:
        asyncio.run(run(section, process))
    finally:
        embedded.stop(process)


def test_k01_an_agent_that_stopped_turns_health_red(
    kafka: KafkaSection, redis_section: RedisSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        """A stream that has no more to give."""

        def noack(self) -> "Ended":
            return self

        async def events(self) -> AsyncIterator[None]:
            for event in list[None]():
                yield event

    async def run() -> None:
        ensure_topics(kafka, (TELEMETRY,))
        monkeypatch.setattr(run_worker, "end_process", pytest.fail)
        section = StreamsSettings().health.model_copy(update={"port": embedded.free_port()})
        worker = Worker(StreamsSettings(kafka=kafka, redis=redis_section, health=section))
        try:
            await worker.positions({0: 0})
            await worker.run(Ended())
            status, body = await asyncio.to_thread(get, section.port, "/health")
            assert status == 503
            assert b"the agent has stopped" in body
        finally:
            await worker.close()

    asyncio.run(run())


def test_k13_states_of_users_who_do_not_come_back_expire_also_after_a_restart(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async def run() -> None:
        ensure_topics(kafka)
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        context = FoldContext(keys, FoldRule())
        pattern = f"{keys.user(0, '')}*"
        async with FactProducer(kafka) as producer:
            for first, users in ((0, 400), (400, 40)):  # after a restart only 10 % come back
                applier = BatchApplier(StateStore(redis, keys, ttl_s=3), producer, context)
                await applier.positions({0: 0})
                await applier.apply([record(first + number, number) for number in range(users)])
                assert len([name async for name in redis.scan_iter(pattern, count=1_000)]) == 400
                if first == 0:
                    await asyncio.sleep(1.0)
            async with asyncio.timeout(10):
                while (left := len([name async for name in redis.scan_iter(pattern, count=1_000)])) > 40:
                    await asyncio.sleep(0.05)
        assert left == 40, "those who came back live longer than those who did not"
        assert await redis.get(keys.watermark(0)) == b"439", "progress never expires"
        await redis.aclose()

    asyncio.run(run())
