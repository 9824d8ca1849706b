import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from intentloop import topics
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.keys import Keys
from intentloop.adapters.people import PeopleQueue, PersonTask
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.commands.annotate import Desk, work_through
from intentloop.events import SequenceItem
from intentloop.training_set import is_golden_user
from tests.unit.core_workers.samples import picked

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def desk(
    kafka: KafkaSection, section: RedisSection, lines: list[str], golden_ratio: float = 0.0
) -> AsyncIterator[tuple[Desk, list[str]]]:
    keys, said = Keys(section.prefix), list[str]()
    await asyncio.to_thread(ensure_topics, kafka, (topics.LABELLED,))
    async with connect(section) as redis, FactProducer(kafka) as producer:
        made = Desk(
            people=PeopleQueue(redis, keys),
            training=TrainingStore(redis, keys, golden_ratio),
            producer=producer,
            read_line=lambda: lines.pop(0) if lines else None,
            say=said.append,
        )
        yield made, said


def task(number: int) -> PersonTask:
    return PersonTask(sample=picked(number, device_answer="PHONE SAID"), reason="TEACHERS SAID")


async def test_a_person_sees_behaviour_only_and_the_label_trains(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with desk(kafka, redis_section, ["比价犹豫|帐篷;露营"]) as (made, said):
        await made.people.put(task(1))
        await made.people.put(task(1))
        assert await work_through(made, "lin") == 1
        assert not any("SAID" in line or "闲逛" in line for line in said)
        assert "山雀便携帐篷" in said[0]
        (sample,) = await made.training.samples()
        assert (sample.intent, sample.source, sample.hard) == ("比价犹豫", "person", True)
        assert (await made.people.counts()).done == 1


async def test_an_answer_that_cannot_be_used_is_asked_again(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with desk(kafka, redis_section, ["hm", "比价犹豫", "比价犹豫|手机", "闲逛"]) as (made, said):
        await made.people.put(task(1))
        assert await work_through(made, "lin") == 1
        assert sum("not understood" in line for line in said) == 3


async def test_whoever_leaves_gives_the_sample_back(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with desk(kafka, redis_section, ["闲逛", "q"]) as (made, _):
        for number in (1, 2):
            await made.people.put(task(number))
        assert await work_through(made, "lin") == 1
        counts = await made.people.counts()
        assert (counts.waiting, counts.running, counts.done) == (1, 0, 1)


async def test_a_golden_users_label_judges(kafka: KafkaSection, redis_section: RedisSection) -> None:
    golden = next(number for number in range(50) if is_golden_user(f"u{number}", 0.5))
    async with desk(kafka, redis_section, ["闲逛"], golden_ratio=0.5) as (made, _):
        await made.people.put(task(golden))
        await work_through(made, "lin")
        assert [sample.user_id for sample in await made.training.golden()] == [f"u{golden}"]
        assert await made.training.samples() == []


async def test_a_person_does_not_see_a_phone_number(kafka: KafkaSection, redis_section: RedisSection) -> None:
    read = (SequenceItem(action="search", title="送到 13812345678"),)
    async with desk(kafka, redis_section, ["闲逛"]) as (made, said):
        await made.people.put(PersonTask(sample=picked(1, read=read), reason="r"))
        await work_through(made, "lin")
        assert "13812345678" not in "".join(said)


async def test_the_command_reads_a_pipe(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with desk(kafka, redis_section, []) as (made, _):
        for number in (1, 2):
            await made.people.put(task(number))
        environment = os.environ | {
            "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
            "INTENTLOOP_REDIS__URL": redis_section.url,
            "INTENTLOOP_REDIS__PREFIX": redis_section.prefix,
            "INTENTLOOP_LABELLING__GOLDEN_RATIO": "0",
        }
        program = "import typer; from intentloop.commands.annotate import annotate; typer.run(annotate)"
        command = [sys.executable, "-c", program, "--name", "lin"]
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input="闲逛\n比价犹豫|帐篷\n".encode(),
            env=environment,
            capture_output=True,
            check=True,
        )
        assert "2 labelled" in done.stdout.decode()
        assert sorted(sample.intent for sample in await made.training.samples()) == ["比价犹豫", "闲逛"]
        assert msgspec.json.encode(await made.people.counts()) == b'{"waiting":0,"running":0,"buried":0,"done":2}'
