import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from intentloop import teacher_prompt, topics
from intentloop.adapters.embedded import free_port
from intentloop.adapters.fact_reader import FactReader
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import EXIT_CONFIGURATION
from intentloop.facts import RetrainRequested, SampleLabelled
from intentloop.release import Rollout
from tests.integration.workers.scripted import chat, refused, scripted
from tests.unit.core_workers.samples import picked

pytestmark = pytest.mark.anyio
SAMPLES = 120


def environment(
    kafka: KafkaSection, redis: RedisSection, urls: tuple[str, str], port: int, root: Path
) -> dict[str, str]:
    values: dict[str, Any] = {
        "KAFKA__BOOTSTRAP": kafka.bootstrap,
        "KAFKA__PREFIX": kafka.prefix,
        "REDIS__URL": redis.url,
        "REDIS__PREFIX": redis.prefix,
        "BLOBS__ROOT": root,
        "HEALTH__PORT": port,
        "TEACHER_A__BASE_URL": urls[0],
        "TEACHER_A__MODEL": "a",
        "TEACHER_A__NAME": "qwen",
        "TEACHER_B__BASE_URL": urls[1],
        "TEACHER_B__MODEL": "b",
        "TEACHER_B__NAME": "kimi",
        "LABELLING__LOOPS": 4,
        "LABELLING__LEASE_S": 1.0,
        "LABELLING__MAX_TRIES": 20,
        "LABELLING__GOLDEN_RATIO": 0.0,
        "LABELLING__AUDIT_RATIO": 0.0,
        "RETRAIN__INTERVAL_S": 0.1,
        "RETRAIN__HARD_NEW": SAMPLES,
        "RETRAIN__MIN_PER_CLASS": 0,
    }
    return os.environ | {f"INTENTLOOP_{name}": str(value) for name, value in values.items()}


@contextmanager
def workers(env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A workers process of our own; ended with the block."""
    with log.open("ab") as sink:
        process = subprocess.Popen([sys.executable, "-m", "workers"], env=env, stderr=sink, stdout=sink)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def health(port: int) -> tuple[int, dict[str, Any]]:
    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    return await asyncio.to_thread(ask)


async def read_all(kafka: KafkaSection, topic: topics.Topic) -> list[bytes]:
    reader = await asyncio.to_thread(FactReader, kafka, topic, {})
    found: list[bytes] = []
    while records := await asyncio.to_thread(reader.poll, 1_000):
        found += [record.value or b"" for record in records]
    await asyncio.to_thread(reader.close)
    return found


async def test_killed_again_and_again_no_sample_is_lost_or_labelled_twice_in_effect(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    keys, log = Keys(redis_section.prefix), tmp_path / "workers.log"
    await asyncio.to_thread(ensure_topics, kafka)
    async with (
        scripted() as a,
        scripted() as b,
        connect(redis_section) as redis,
        FactProducer(kafka) as producer,
    ):
        replies = iter(range(10**9))

        def answer(request: dict[str, Any]) -> bytes:
            if teacher_prompt.judge_request_in(request["messages"][-1]["content"]):
                return chat("3")
            if next(replies) % 23 == 22:
                return refused(503, {"error": {"message": "busy"}})
            return chat("比价犹豫|帐篷;露营")

        a.answer = b.answer = answer
        await redis.set(keys.release, msgspec.json.encode(Rollout(version="v1")))
        env = environment(kafka, redis_section, (a.base_url, b.base_url), free_port(), tmp_path)
        training, train = TrainingStore(redis, keys, 0.0), JobQueue(redis, keys, "train", QueueRule())
        for number in range(SAMPLES):
            await producer.send(topics.PICKED, picked(number).id, picked(number))
        for kill_at in (1, SAMPLES // 2):
            with workers(env, log) as process:
                await _until(lambda: _labelled(training), kill_at, log)
                os.kill(process.pid, signal.SIGKILL)
        with workers(env, log) as process:
            await _until(lambda: _labelled(training), SAMPLES, log)
            await _until(lambda: _waiting(train), 1, log)
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 15) == 0, log.read_text()
        counts = await training.counts()
        assert (counts.labelled, counts.samples, counts.outcomes) == (SAMPLES, SAMPLES, {"hard": SAMPLES})
        await training.audit()
        told: dict[str, set[bytes]] = {}
        for value in await read_all(kafka, topics.LABELLED):
            told.setdefault(msgspec.json.decode(value, type=SampleLabelled).id, set()).add(value)
        assert len(told) == SAMPLES
        assert Counter(len(values) for values in told.values()) == {1: SAMPLES}  # a repeat is the same bytes
        requests = [
            msgspec.json.decode(value, type=RetrainRequested)
            for value in await read_all(kafka, topics.RETRAIN_REQUESTED)
        ]
        assert {request.hard_new for request in requests} == {SAMPLES}
        assert len({request.id for request in requests}) == 1


async def test_health_is_green_then_red_with_the_reason_of_a_closed_teacher(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    log, port = tmp_path / "workers.log", free_port()
    error = refused(400, {"error": {"message": "invalid temperature: only 1 is allowed for this model"}})
    async with scripted(chat("闲逛")) as a, scripted(error) as b:
        for second, status in ((a, 200), (b, 503)):
            env = environment(kafka, redis_section, (a.base_url, second.base_url), port, tmp_path)
            with workers(env, log) as process:
                deadline = time.monotonic() + 120
                while (found := await health(port))[0] == 0:
                    assert time.monotonic() < deadline, log.read_text()
                    await asyncio.sleep(0.1)
                assert found[0] == status, found
                assert ("invalid temperature" in found[1]["checks"]["teacher_b"]) == (status == 503)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 15) == 0
    assert log.read_text().count("ALARM") == 1


async def test_without_teachers_it_says_what_to_set_and_does_not_start(tmp_path: Path) -> None:
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "workers"], capture_output=True)
    assert done.returncode == EXIT_CONFIGURATION
    assert b"INTENTLOOP_TEACHER_A__BASE_URL" in done.stderr


async def _labelled(training: TrainingStore) -> int:
    return (await training.counts()).labelled


async def _waiting(queue: JobQueue) -> int:
    return (await queue.counts()).waiting


async def _until(count: Any, wanted: int, log: Path, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := await count()) < wanted:
        assert time.monotonic() < deadline, f"{found} of {wanted}\n{log.read_text()}"
        await asyncio.sleep(0.02)
