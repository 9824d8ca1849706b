import asyncio
import json

import msgspec
import pytest

from intentloop import topics
from intentloop.adapters.jobs import QueueCounts
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.facts import SampleLabelled
from tests.integration.workers.label_bench import HESITATE, bench, says
from tests.integration.workers.scripted import refused
from tests.unit.core_workers.samples import picked

pytestmark = pytest.mark.anyio


async def test_a_hard_sample_is_stored_told_and_done(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        await desk.label(picked(1))
        (sample,) = await desk.stores.training.samples()
        assert (sample.intent, sample.keywords, sample.hard) == ("比价犹豫", ("帐篷", "露营", "户外"), True)
        (fact,) = await desk.facts(kafka, 1)
        assert (fact.verdict, fact.keyword_score, fact.audit) == ("hard", 3, False)
        # three calls of 1,000 x 2 + 10 x 8 yuan a million
        assert fact.cost_yuan == pytest.approx(3 * 0.00208)
        assert await desk.stores.spending.today_yuan() == pytest.approx(3 * 0.00208)
        assert await desk.stores.queue.counts() == QueueCounts(waiting=0, running=0, buried=0, done=1)
        assert await desk.people() == 0


async def test_teachers_that_differ_send_the_sample_to_people(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.b.answer = says("闲逛")
        await desk.label(picked(1))
        assert (await desk.stores.training.counts()).outcomes == {"people": 1}
        assert await desk.people() == 1
        assert len(desk.a.requests) == 1  # no judge was asked


async def test_unanimous_browsing_needs_no_judge(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.a.answer = desk.b.answer = says("闲逛")
        await desk.label(picked(1))
        assert (await desk.stores.training.counts()).outcomes == {"unanimous": 1}
        assert len(desk.a.requests) == 1


async def test_bad_keywords_are_dropped(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.a.answer = says(HESITATE, score="1")
        await desk.label(picked(1))
        counts = await desk.stores.training.counts()
        assert (counts.outcomes, counts.samples, counts.keyword_scores) == ({"dropped": 1}, 0, {"1": 1})


async def test_an_audited_sample_trains_and_goes_to_a_person_as_well(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section, audit_ratio=1.0) as desk:
        await desk.label(picked(1))
        assert (await desk.stores.training.counts()).samples == 1
        assert await desk.people() == 1


async def test_a_golden_users_sample_goes_to_people_and_to_no_teacher(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section, golden_ratio=0.999) as desk:
        await desk.label(picked(1))
        assert await desk.people() == 1
        assert desk.a.requests == desk.b.requests == []


async def test_l08_a_filtered_sample_goes_to_people_with_its_reason(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    error = {"error": {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}}
    async with bench(kafka, redis_section) as desk:
        desk.b.answer = lambda request: refused(400, error)
        await desk.label(picked(1))
        counts = await desk.stores.training.counts()
        assert (counts.outcomes, counts.failed, counts.both_voted) == ({"people": 1}, 1, 0)
        (fact,) = await desk.facts(kafka, 1)
        assert fact.reason.startswith("b: filtered: 400")
        assert len(desk.b.requests) == 1


@pytest.mark.parametrize(
    "reply", ["Price comparison|AC remote;Midea", "比价犹豫|从未出现的词", "!!!!!!!!!!", "闲逛|帐篷"]
)
async def test_a_reply_that_means_nothing_is_no_vote_and_no_browsing(
    reply: str, kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.a.answer = desk.b.answer = says(reply)
        await desk.label(picked(1))
        counts = await desk.stores.training.counts()
        assert (counts.outcomes, counts.both_voted, counts.samples) == ({"people": 1}, 0, 0)
        assert len(desk.a.requests) == 1  # no second try is paid for


async def test_l20_traditional_and_simplified_agree(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.b.answer = says("比價猶豫|露營;帳篷")
        await desk.label(picked(1))
        (sample,) = await desk.stores.training.samples()
        assert sample.keywords == ("帐篷", "露营", "户外")


@pytest.mark.parametrize(
    "error",
    [
        refused(400, {"error": {"message": "parameter.enable_thinking must be set to false for non-streaming calls"}}),
        refused(429, {"error": {"message": "You've reached your usage limit for this period"}}),
    ],
)
async def test_l06_l11_a_closed_teacher_burns_no_sample_and_no_agreement_is_made_of_one(
    error: bytes, kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.b.answer = lambda request: error
        await desk.label(picked(1))
        for _ in range(4):
            await desk.next()
        assert await desk.stores.queue.counts() == QueueCounts(waiting=1, running=0, buried=0, done=0)
        assert (await desk.stores.training.counts()).labelled == 0
        assert "b: " in await desk.labeller.obstacle()
        assert len(desk.b.requests) == 1
        (job,) = await desk.stores.queue.claim("w2", 1, 0)
        assert job.tries == 1


async def test_a_teacher_that_fails_for_now_is_asked_again_and_in_the_end_people_are(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section) as desk:
        desk.b.answer = lambda request: refused(503, {"error": {"message": "busy"}})
        await desk.label(picked(1))
        assert (await desk.stores.queue.counts()).waiting == 1
        await desk.next()
        assert (await desk.stores.training.counts()).outcomes == {"people": 1}
        (fact,) = await desk.facts(kafka, 1)
        assert fact.reason.startswith("b: unavailable: 503")


async def test_the_days_budget_stops_labelling(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section, daily_budget_yuan=0.004) as desk:
        assert await desk.labeller.obstacle() == ""
        await desk.label(picked(1))
        assert "budget is 0.00" in await desk.labeller.obstacle()


async def test_an_undecodable_job_is_buried(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        await desk.stores.queue.put("bad", b"{")
        await desk.next()
        assert (await desk.stores.queue.buried())["bad"].startswith("undecodable")


async def test_what_was_decided_before_a_crash_is_not_decided_anew(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with bench(kafka, redis_section) as desk:
        await desk.stores.queue.put(picked(1).id, msgspec.json.encode(picked(1)))
        (job,) = await desk.stores.queue.claim("doomed", 1, 0)
        decided = await desk.labeller._decide(picked(1), job)
        assert isinstance(decided, SampleLabelled)
        await desk.stores.queue.note(job, msgspec.json.encode(decided))
        await desk.stores.training.add(decided)  # and here it died
        desk.a.answer = desk.b.answer = says("闲逛")
        asked = len(desk.a.requests)
        for again in await desk.stores.queue.claim("w2", 1, 3_000):
            await desk.labeller.work(again)
        assert len(desk.a.requests) == asked
        assert await desk.facts(kafka, 1) == [decided]
        assert (await desk.stores.training.counts()).labelled == 1


async def test_a_label_is_written_down_before_its_first_effect(
    kafka: KafkaSection, redis_section: RedisSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(kafka, redis_section) as desk:
        with monkeypatch.context() as patch:

            async def broken(topic: topics.Topic, key: str, value: msgspec.Struct) -> None:
                raise ConnectionError("no broker")

            patch.setattr(desk.stores.producer, "send", broken)
            with pytest.raises(ConnectionError):
                await desk.label(picked(1))
        desk.a.answer = desk.b.answer = says("闲逛")
        for again in await desk.stores.queue.claim("w2", 1, 3_000):
            await desk.labeller.work(again)
        (fact,) = await desk.facts(kafka, 1)
        assert fact.intent == "比价犹豫"
        (sample,) = await desk.stores.training.samples()
        assert sample.intent == "比价犹豫"


async def test_a_slow_job_keeps_its_lease(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section, lease_s=1.0) as desk:
        await desk.stores.queue.put(picked(1).id, msgspec.json.encode(picked(1)))
        (job,) = await desk.stores.queue.claim("w1", 1, 0)
        slots = desk.teachers.a._slots
        for _ in range(8):
            await slots.acquire()  # the teacher is busy with others
        working = asyncio.create_task(desk.labeller.work(job))
        assert await desk.stores.queue.claim("thief", 1, 2_000) == []
        for _ in range(8):
            slots.release()
        await working
        assert (await desk.stores.queue.counts()).done == 1


async def test_a_worker_that_lost_its_lease_has_no_effect(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        await desk.stores.queue.put(picked(1).id, msgspec.json.encode(picked(1)))
        (job,) = await desk.stores.queue.claim("w1", 1, 0)
        (stolen,) = await desk.stores.queue.claim("w2", 1, 3_000)
        await desk.labeller.work(job)
        assert (await desk.stores.training.counts()).labelled == 0
        await desk.labeller.work(stolen)
        assert (await desk.stores.training.counts()).labelled == 1


async def test_teachers_see_only_the_boxed_sequence(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with bench(kafka, redis_section) as desk:
        await desk.label(picked(1))
        sent = json.dumps(desk.a.requests, ensure_ascii=False)
        assert "山雀便携帐篷" in sent
        for hidden in ("u1", picked(1).id, "v1"):
            assert f'"{hidden}"' not in sent
        assert "闲逛" not in desk.a.requests[0]["messages"][1]["content"]
