"""One labelling worker with everything that it needs, and two teachers to play with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from intentloop import teacher_prompt, topics
from intentloop.adapters.fact_reader import FactReader
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.people import PeopleQueue
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import KafkaSection, LabellingSection, RedisSection
from intentloop.adapters.spending import Spending
from intentloop.adapters.teachers import Teacher
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.facts import SampleLabelled, SamplePicked
from tests.integration.workers.scripted import Scripted, chat, scripted
from workers.ask_teachers import Teachers
from workers.label import Labeller, LabelStores

HESITATE = "比价犹豫|帐篷;露营;户外"


def says(label: str, score: str = "3") -> Callable[[dict[str, Any]], bytes]:
    """A teacher that answers labelling and judging requests."""

    def answer(request: dict[str, Any]) -> bytes:
        judging = teacher_prompt.judge_request_in(request["messages"][-1]["content"])
        return chat(score if judging else label, (1_000, 10))

    return answer


class Bench:
    """Everything that one labelling worker needs, and two teachers to play with."""

    def __init__(self, a: Scripted, b: Scripted, stores: LabelStores, section: LabellingSection) -> None:
        self.a, self.b, self.stores = a, b, stores
        first, second = Teacher(a.section(name="a")), Teacher(b.section(name="b"))
        self.teachers = Teachers(a=first, b=second, judge=first)
        self.labeller = Labeller(self.teachers, stores, section)

    async def label(self, sample: SamplePicked) -> None:
        await self.stores.queue.put(sample.id, msgspec.json.encode(sample))
        await self.next()

    async def next(self) -> None:
        for job in await self.stores.queue.claim("w1", 1, 0):
            await self.labeller.work(job)

    async def people(self) -> int:
        return (await self.stores.people.counts()).waiting

    async def facts(self, kafka: KafkaSection, count: int) -> list[SampleLabelled]:
        reader = await asyncio.to_thread(FactReader, kafka, topics.LABELLED, {})
        found: list[SampleLabelled] = []
        for _ in range(20):
            records = await asyncio.to_thread(reader.poll, 500)
            found += [msgspec.json.decode(record.value or b"", type=SampleLabelled) for record in records]
            if len(found) >= count:
                break
        await asyncio.to_thread(reader.close)
        return found


@asynccontextmanager
async def bench(kafka: KafkaSection, redis_section: RedisSection, **changes: Any) -> AsyncIterator[Bench]:
    section = LabellingSection(**({"audit_ratio": 0.0, "golden_ratio": 0.0, "max_tries": 2} | changes))
    keys = Keys(redis_section.prefix)
    await asyncio.to_thread(ensure_topics, kafka, (topics.LABELLED,))
    async with (
        connect(redis_section) as redis,
        FactProducer(kafka) as producer,
        scripted() as a,
        scripted() as b,
    ):
        stores = LabelStores(
            queue=JobQueue(redis, keys, "label", QueueRule(lease_ms=1_000, max_tries=section.max_tries)),
            training=TrainingStore(redis, keys, section.golden_ratio),
            people=PeopleQueue(redis, keys),
            spending=Spending(redis, keys),
            producer=producer,
        )
        a.answer, b.answer = says(HESITATE), says("比价犹豫|露营;帐篷")
        made = Bench(a, b, stores, section)
        try:
            yield made
        finally:
            for teacher in (made.teachers.a, made.teachers.b):
                await teacher.close()
