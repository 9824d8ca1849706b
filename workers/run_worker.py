"""One worker process: fan-out, labelling loops, the retrain decision and housekeeping, side by side.

They live and die together: when one part fails the process ends with an error, and whoever supervises it starts it
again; leases and idempotent effects make that safe. SIGTERM lets jobs in hand finish.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis

from intentloop import teacher_prompt
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.health import HealthServer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.leases import Lease
from intentloop.adapters.people import PeopleQueue
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import TeacherSection
from intentloop.adapters.spending import Spending
from intentloop.adapters.teachers import Teacher, require
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.retrain import RetrainRule
from workers.ask_teachers import Teachers
from workers.decide import Decider, LoopStores
from workers.fan_out import LEASE_MS, FanOut
from workers.label import Labeller, LabelStores
from workers.settings import WorkersSettings

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0
GRACE_S = 8.0  # for jobs in hand at the end; what is not done then is redone when its lease runs out

Part = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


class Parts(msgspec.Struct, frozen=True):
    """What runs in this process, by name, and the teachers whose state its health tells."""

    runners: dict[str, Part]
    teachers: Teachers


async def run(settings: WorkersSettings) -> None:
    """Work until SIGTERM or SIGINT.

    Raises:
        IntentloopError: the environment cannot work as configured, or a part broke its promise.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with _build(settings) as parts:
        tasks = {name: asyncio.create_task(part(stop), name=name) for name, part in parts.runners.items()}
        health = HealthServer(settings.health, lambda: _checks(tasks, parts.teachers))
        log.info("workers run: %s; health on port %d", ", ".join(tasks), await health.start())
        try:
            await _watch(tasks, stop)
        finally:
            await health.stop()
    log.info("workers stopped")


async def _watch(tasks: dict[str, asyncio.Task[None]], stop: asyncio.Event) -> None:
    """Wait for the first part to end; raise its error; let the others finish."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*tasks.values(), stopping], return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        _, late = await asyncio.wait(tasks.values(), timeout=GRACE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    finally:
        stopping.cancel()
    errors = {name: task.exception() for name, task in tasks.items() if not task.cancelled()}
    for name, error in errors.items():
        if error is not None:
            log.critical("part %s ended: %r", name, error)
    for error in errors.values():
        if error is not None:
            raise error


def _checks(tasks: dict[str, asyncio.Task[None]], teachers: Teachers) -> dict[str, str]:
    found = {name: "it has ended" if task.done() else "" for name, task in tasks.items()}
    for role, teacher in (("teacher_a", teachers.a), ("teacher_b", teachers.b), ("judge", teachers.judge)):
        found[role] = teacher.closed()
    return found


@asynccontextmanager
async def _build(settings: WorkersSettings) -> AsyncIterator[Parts]:
    """Connect everything; what was opened is closed in reverse order."""
    async with AsyncExitStack() as stack:
        teachers = await _teachers(settings, stack)
        redis = await stack.enter_async_context(connect(settings.redis))
        await ready(redis)
        await check_noeviction(redis)
        await asyncio.to_thread(ensure_topics, settings.kafka)
        producer = await stack.enter_async_context(FactProducer(settings.kafka))
        await _self_test(teachers)
        yield Parts(_runners(settings, redis, producer, teachers), teachers)


async def _teachers(settings: WorkersSettings, stack: AsyncExitStack) -> Teachers:
    async def opened(section: TeacherSection, role: str) -> Teacher:
        teacher = Teacher(require(section, role))
        stack.push_async_callback(teacher.close)
        return teacher

    a, b = await opened(settings.teacher_a, "teacher_a"), await opened(settings.teacher_b, "teacher_b")
    judge = await opened(settings.judge, "judge") if settings.judge.base_url else a
    return Teachers(a=a, b=b, judge=judge)


async def _self_test(teachers: Teachers) -> None:
    message = teacher_prompt.label_message(teacher_prompt.TEST_SEQUENCE)
    await asyncio.gather(
        *(one.self_test(teacher_prompt.LABEL_SYSTEM, message) for one in {teachers.a, teachers.b, teachers.judge})
    )


def _runners(settings: WorkersSettings, redis: Redis, producer: FactProducer, teachers: Teachers) -> dict[str, Part]:
    keys, labelling = Keys(settings.redis.prefix), settings.labelling
    owner = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"  # a container's pid is 1 after each start
    rule = QueueRule(lease_ms=round(labelling.lease_s * 1000), max_tries=labelling.max_tries)
    queue, training = JobQueue(redis, keys, "label", rule), TrainingStore(redis, keys, labelling.golden_ratio)
    train_queue, people = JobQueue(redis, keys, "train", QueueRule()), PeopleQueue(redis, keys)
    spending = Spending(redis, keys)
    stores = LabelStores(queue=queue, training=training, people=people, spending=spending, producer=producer)
    labeller = Labeller(teachers, stores, labelling)
    fan_out = FanOut(settings.kafka, redis, keys, queue, producer)
    loop = LoopStores(
        redis=redis,
        keys=keys,
        training=training,
        train_queue=train_queue,
        producer=producer,
        release=_release_of(Registry(redis, keys, settings.blobs.root)),
    )
    decider = Decider(loop, RetrainRule(**settings.retrain.model_dump(exclude={"interval_s"})))
    fan_out_lease = Lease(redis, keys.lease("fan-out"), owner, LEASE_MS)
    decide_lease = Lease(redis, keys.lease("decide"), owner, LEASE_MS)
    runners: dict[str, Part] = {
        "fan_out": lambda stop: fan_out.run(fan_out_lease, stop),
        "decide": lambda stop: decider.run(decide_lease, settings.retrain.interval_s, stop),
        "housekeeping": lambda stop: _keep_house([queue, train_queue], stop),
    }
    for number in range(labelling.loops):
        runners[f"label_{number}"] = lambda stop, name=f"{owner}-{number}": labeller.run(name, stop)  # type: ignore[misc]
    return runners


def _release_of(registry: Registry) -> Callable[[], Awaitable[str]]:
    async def release() -> str:
        rollout = await registry.current()
        return rollout.version if rollout else ""

    return release


async def _keep_house(queues: list[JobQueue], stop: asyncio.Event) -> None:
    while not stop.is_set():
        for queue in queues:
            await queue.forget()
        try:
            await asyncio.wait_for(stop.wait(), HOUSEKEEPING_S)
        except TimeoutError:
            continue
