"""`kill -9` of workers in the middle of their work changes nothing that anybody can see."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from redis.asyncio import Redis

from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY
from tests.integration.streams import world

SMALL_BATCHES = {"INTENTLOOP_STREAMS__BATCH_RECORDS": "20"}  # so that a kill falls into a batch, not between two


async def until_applied(redis: Redis, keys: Keys, truth: world.Truth, share: float, timeout_s: float = 60) -> None:
    wanted = share * sum(truth.watermarks.values())
    async with asyncio.timeout(timeout_s):
        while sum((await world.watermarks(redis, keys, truth.watermarks)).values()) < wanted:
            await asyncio.sleep(0.003)


def kill(worker: subprocess.Popen[bytes]) -> None:
    assert worker.poll() is None, f"the worker ended by itself with {worker.returncode}"
    worker.kill()
    worker.wait()


async def run_with_kills(
    kafka: KafkaSection, section: RedisSection, shares: tuple[float, ...], log: Path
) -> dict[str, int]:
    ensure_topics(kafka)
    await world.send_envelopes(kafka, world.traffic(seed=7, envelopes=4_000, users=150))
    keys = Keys(section.prefix)
    truth = world.replay(await world.read_records(kafka, TELEMETRY), keys)
    assert len(truth.states) > 150
    assert all(truth.outputs.values()), "the traffic makes every kind of output"
    redis = Redis.from_url(section.url)
    worker = world.start_worker(kafka, section, log, **SMALL_BATCHES)
    try:
        for share in shares:
            await until_applied(redis, keys, truth, share)
            kill(worker)
            assert await world.watermarks(redis, keys, truth.watermarks) != truth.watermarks, "killed too late"
            worker = world.start_worker(kafka, section, log, **SMALL_BATCHES)
        await world.wait_for_watermarks(redis, keys, truth.watermarks, timeout_s=60)
        duplicates = await world.assert_as_replayed(kafka, redis, keys, truth)
        worker.terminate()
        assert worker.wait(20) == 0, "a clean stop on SIGTERM"
        return duplicates
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
        await redis.aclose()


def test_killed_workers_leave_the_states_counts_and_facts_of_a_straight_replay(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    asyncio.run(run_with_kills(kafka, redis_section, (0.2, 0.5), tmp_path / "worker.log"))


@pytest.mark.needs_apache_kafka
def test_killed_workers_leave_the_same_on_apache_kafka(
    apache_kafka: str, redis_section: RedisSection, prefix: str, tmp_path: Path
) -> None:
    kafka = KafkaSection(bootstrap=apache_kafka, prefix=f"{prefix}.")
    asyncio.run(run_with_kills(kafka, redis_section, (0.1, 0.35, 0.6), tmp_path / "worker.log"))
