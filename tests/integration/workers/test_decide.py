import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from intentloop import topics
from intentloop.adapters.fact_reader import FactReader
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import Job, JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.facts import RetrainRequested
from intentloop.retrain import Decision, RetrainRule, RunVerdict
from tests.unit.core_workers.samples import labelled, picked
from workers.decide import Decider, LoopStores

pytestmark = pytest.mark.anyio
RULE = RetrainRule(hard_new=3, rearm_hard=2, min_per_class=0, cooldown_s=0, daily_requests=10)


@asynccontextmanager
async def loop(
    kafka: KafkaSection, section: RedisSection, release: str = "v1", drifted_versions: tuple[str, ...] = ()
) -> AsyncIterator[LoopStores]:
    keys = Keys(section.prefix)
    await asyncio.to_thread(ensure_topics, kafka, (topics.RETRAIN_REQUESTED,))

    async def current() -> str:
        return release

    async def drifted(version: str) -> bool:
        return version in drifted_versions

    async with connect(section) as redis, FactProducer(kafka) as producer:
        yield LoopStores(
            drifted=drifted,
            retrains=RetrainLog(redis, keys),
            training=TrainingStore(redis, keys, 0.0),
            train_queue=JobQueue(redis, keys, "train", QueueRule()),
            producer=producer,
            release=current,
        )


async def told(kafka: KafkaSection) -> list[RetrainRequested]:
    reader = await asyncio.to_thread(FactReader, kafka, topics.RETRAIN_REQUESTED, {})
    found: list[RetrainRequested] = []
    for _ in range(4):
        records = await asyncio.to_thread(reader.poll, 250)
        found += [msgspec.json.decode(record.value or b"", type=RetrainRequested) for record in records]
    await asyncio.to_thread(reader.close)
    return found


async def stored(section: RedisSection) -> Decision:
    async with connect(section) as redis:
        return msgspec.json.decode(await redis.get(Keys(section.prefix).decision) or b"", type=Decision)


async def test_enough_hard_samples_become_one_job_and_one_fact(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with loop(kafka, redis_section) as stores:
        decider = Decider(stores, RULE)
        assert (await decider.step()).reason == "0 of 3 new hard samples"
        for number in range(3):
            await stores.training.add(labelled(number))
        decision = await decider.step()
        assert (decision.kind, decision.reason) == ("request", "3 new hard samples, 3 are enough")
        assert await stored(redis_section) == decision
        assert (await decider.step()).reason == "a training run is waiting or running"
        (job,) = await stores.train_queue.claim("trainer", 5, 0)
        request = msgspec.json.decode(job.payload, type=RetrainRequested)
        assert (request.base_version, request.hard_new, request.samples) == ("v1", 3, 3)
        assert job.id == request.id
        assert await told(kafka) == [request]


async def run_begun(stores: LoopStores) -> tuple[Decider, Job]:
    """A decider that has asked for a run for three hard samples, and the job as the trainer has it."""
    decider = Decider(stores, RULE)
    for number in range(3):
        await stores.training.add(labelled(number))
    assert (await decider.step()).kind == "request"
    (job,) = await stores.train_queue.claim("trainer", 1, 0)
    return decider, job


async def test_a_rejected_candidate_is_not_trained_again_from_the_same_data(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with loop(kafka, redis_section) as stores:
        decider, job = await run_begun(stores)
        await stores.train_queue.done(job)
        assert "2 more are needed" in (await decider.step()).reason
        for number in (3, 4):
            await stores.training.add(labelled(number))
        assert (await decider.step()).kind == "request"


async def test_what_came_before_a_rejected_run_began_counts_as_seen_and_stays_in_the_set(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with loop(kafka, redis_section) as stores:
        decider, job = await run_begun(stores)
        for number in (3, 4):  # before the run takes its samples
            await stores.training.add(labelled(number))
        ids = [sample.id for sample in await stores.training.samples()]
        verdict = RunVerdict(kind="reject", reasons=("worse by 0.1",), judged_at_ms=1)
        await stores.training.record_verdict(job.id, verdict, ids)
        await stores.train_queue.done(job)
        assert await stores.training.verdicts() == {job.id: msgspec.structs.replace(verdict, hard_seen=5)}
        assert (await decider.step()).reason.startswith("5 new hard samples, the last run has seen 5: 2 more")
        await stores.training.add(labelled(5))
        assert (await decider.step()).kind == "wait"
        await stores.training.add(labelled(6))
        assert (await decider.step()).reason == "7 new hard samples, 3 are enough, 2 of them since the last run"
        assert len(await stores.training.samples()) == 7


async def test_after_a_release_the_count_begins_anew(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with loop(kafka, redis_section) as stores:
        for number in range(3):
            await stores.training.add(labelled(number))
        await Decider(stores, RULE).step()
        await stores.train_queue.done((await stores.train_queue.claim("trainer", 1, 0))[0])
        await stores.training.mark_used([picked(number).id for number in range(3)], "v2")
    async with loop(kafka, redis_section, release="v2") as stores:
        assert (await Decider(stores, RULE).step()).reason == "0 of 3 new hard samples"
        for number in range(10, 13):
            await stores.training.add(labelled(number))
        assert (await Decider(stores, RULE).step()).kind == "request"


async def test_without_a_release_nothing_is_asked_for(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with loop(kafka, redis_section, release="") as stores:
        for number in range(3):
            await stores.training.add(labelled(number))
        assert (await Decider(stores, RULE).step()).reason.startswith("no release yet")
        assert (await stores.train_queue.counts()).waiting == 0


async def test_a_request_that_a_crash_left_half_done_is_completed_once(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    request = RetrainRequested(id="train-v1-3", base_version="v1", reason="r", hard_new=3, samples=3, requested_at_ms=1)
    async with loop(kafka, redis_section) as stores:
        await stores.retrains.open(request)
        await stores.train_queue.put(request.id, msgspec.json.encode(request))  # and here it died
        for _ in range(3):
            await Decider(stores, RULE).step()
        assert (await stores.train_queue.counts()).waiting == 1
        assert await told(kafka) == [request]


async def test_a_confirmed_drift_needs_fewer_hard_samples(kafka: KafkaSection, redis_section: RedisSection) -> None:
    rule = RetrainRule(hard_new=100, drift_min_hard=2, rearm_hard=2, min_per_class=0, cooldown_s=0)
    async with loop(kafka, redis_section, drifted_versions=("v0",)) as stores:
        for number in range(2):
            await stores.training.add(labelled(number))
        assert (await Decider(stores, rule).step()).reason == "2 of 100 new hard samples"
    async with loop(kafka, redis_section, drifted_versions=("v1",)) as stores:
        decision = await Decider(stores, rule).step()
        assert (decision.kind, decision.reason) == (
            "request",
            "confirmed drift with 2 new hard samples, 2 are enough then",
        )
