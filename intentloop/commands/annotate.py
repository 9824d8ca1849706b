"""`intentloop annotate`: a person labels what teachers could not, seeing the behaviour and nothing else.

One line an answer, as the model would say it: `闲逛`, `比价犹豫|k1;k2`, `场景购物|k1;k2`. An empty line or `q` gives
the sample back and ends. A golden user's label judges models, all others train them.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer

from intentloop import prompt, topics
from intentloop.adapters.chinese import simplify
from intentloop.adapters.clock import now_ms
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import Job
from intentloop.adapters.keys import Keys
from intentloop.adapters.people import PeopleQueue, PersonTask
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.settings import KafkaSection, LabellingSection, ProcessSettings, RedisSection
from intentloop.adapters.training_store import TrainingStore
from intentloop.answer import Answer, AnswerFault, ground, parse
from intentloop.labels import by_person
from intentloop.privacy import redact


class AnnotateSettings(ProcessSettings):
    """Settings of the command."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    labelling: LabellingSection = LabellingSection()


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """Where an annotator sits: the queue, where labels go, and how to read a line and say something."""

    people: PeopleQueue
    training: TrainingStore
    producer: FactProducer
    read_line: Callable[[], str | None]
    say: Callable[[str], None]


def annotate(name: Annotated[str, typer.Option(help="who annotates; stored with each label")] = "person") -> None:
    """Label samples that wait for a person, one after the other."""
    labelled = asyncio.run(_sit_down(AnnotateSettings(), name))
    typer.echo(f"{labelled} labelled")


async def work_through(desk: Desk, name: str) -> int:
    """Show, ask, store, until the queue is empty or the person leaves; returns how many were labelled."""
    labelled = 0
    while (found := await desk.people.claim(name)) is not None:
        job, task = found
        sequence, evidence = prompt.sequence_text(task.sample.read), prompt.evidence(task.sample.read)
        answer = await _ask(desk, redact(sequence), redact(evidence))
        if answer is None:
            await desk.people.give_back(job)
            return labelled
        await _store(desk, job, task, name, answer)
        labelled += 1
    desk.say("nothing waits for a person")
    return labelled


async def _ask(desk: Desk, sequence: str, evidence: str) -> Answer | None:
    """Ask until the answer can be used; None when the person leaves."""
    desk.say(sequence)
    while True:
        line = await asyncio.to_thread(desk.read_line)
        if line is None or line.strip() in ("", "q"):
            return None
        answer = parse(line, simplify)
        if isinstance(answer, Answer):
            answer = ground(answer, evidence)
        if not isinstance(answer, AnswerFault):
            return answer
        desk.say(f"not understood ({answer.kind}: {answer.detail}); write 闲逛, 比价犹豫|k1;k2 or 场景购物|k1;k2")


async def _store(desk: Desk, job: Job, task: PersonTask, name: str, answer: Answer) -> None:
    label = by_person(task.sample, name, answer, now_ms())
    await desk.training.add(label)
    await desk.producer.send(topics.LABELLED, label.sample.id, label)
    await desk.people.done(job)


async def _sit_down(settings: AnnotateSettings, name: str) -> int:
    keys = Keys(settings.redis.prefix)
    async with connect(settings.redis) as redis, FactProducer(settings.kafka) as producer:
        await ready(redis)
        await check_noeviction(redis)
        desk = Desk(
            people=PeopleQueue(redis, keys),
            training=TrainingStore(redis, keys, settings.labelling.golden_ratio),
            producer=producer,
            read_line=_read_line,
            say=typer.echo,
        )
        return await work_through(desk, name)


def _read_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None
