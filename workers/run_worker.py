"""One worker process: fan-out, labelling loops, fleets, the retrain decision and housekeeping, side by side.

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
from functools import partial
from typing import Any

import msgspec

from intentloop import teacher_prompt
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.fleet_store import FleetStore
from intentloop.adapters.health import HealthServer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.leases import Lease
from intentloop.adapters.offset_store import OffsetStore
from intentloop.adapters.people import PeopleQueue
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.registry import Registry
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.settings import TeacherSection
from intentloop.adapters.spending import Spending
from intentloop.adapters.state_store import read_counts
from intentloop.adapters.teachers import Teacher, require
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.retrain import RetrainRule
from workers.ask_teachers import Teachers
from workers.decide import Decider, LoopStores
from workers.fan_out import LEASE_MS, FanOut
from workers.label import Labeller, LabelStores
from workers.settings import WorkersSettings, fleet_rule
from workers.watch_fleet import FleetSources, FleetWatcher

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0
GRACE_S = 8.0  # for jobs in hand at the end; what is not done then is redone when its lease runs out

Part = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """All that lies in Redis, opened; `owner` is this process's name in leases."""

    owner: str
    queue: JobQueue
    train_queue: JobQueue
    training: TrainingStore
    people: PeopleQueue
    spending: Spending
    retrains: RetrainLog
    offsets: OffsetStore
    registry: Registry
    fan_out_lease: Lease
    decide_lease: Lease
    fleets: FleetStore
    fleet_lease: Lease
    totals: Callable[[], Awaitable[dict[str, int]]]


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
            log.critical("part %s ended: %s: %s", name, type(error).__name__, error)
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
        stores = await stack.enter_async_context(_stores(settings))
        await asyncio.to_thread(ensure_topics, settings.kafka)
        producer = await stack.enter_async_context(FactProducer(settings.kafka))
        await _self_test(teachers)
        yield Parts(_runners(settings, stores, producer, teachers), teachers)


@asynccontextmanager
async def _stores(settings: WorkersSettings) -> AsyncIterator[Stores]:
    """Connect to Redis, wait until it can answer, refuse one that forgets."""
    keys, labelling = Keys(settings.redis.prefix), settings.labelling
    owner = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"  # a container's pid is 1 after each start
    rule = QueueRule(lease_ms=round(labelling.lease_s * 1000), max_tries=labelling.max_tries)
    async with connect(settings.redis) as redis:
        await ready(redis)
        await check_noeviction(redis)
        yield Stores(
            owner=owner,
            queue=JobQueue(redis, keys, "label", rule),
            train_queue=JobQueue(redis, keys, "train", QueueRule()),
            training=TrainingStore(redis, keys, labelling.golden_ratio),
            people=PeopleQueue(redis, keys),
            spending=Spending(redis, keys),
            retrains=RetrainLog(redis, keys),
            offsets=OffsetStore(redis, keys.fan_out_offsets),
            registry=Registry(redis, keys, settings.blobs.root),
            fan_out_lease=Lease(redis, keys.lease("fan-out"), owner, LEASE_MS),
            decide_lease=Lease(redis, keys.lease("decide"), owner, LEASE_MS),
            fleets=FleetStore(redis, keys),
            fleet_lease=Lease(redis, keys.lease("fleet"), owner, LEASE_MS),
            totals=partial(read_counts, redis, keys),
        )


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


def _runners(settings: WorkersSettings, stores: Stores, producer: FactProducer, teachers: Teachers) -> dict[str, Part]:
    labels = LabelStores(
        queue=stores.queue,
        training=stores.training,
        people=stores.people,
        spending=stores.spending,
        producer=producer,
    )
    loop = LoopStores(
        training=stores.training,
        retrains=stores.retrains,
        train_queue=stores.train_queue,
        producer=producer,
        release=_release_of(stores.registry),
        drifted=stores.fleets.drifted,
    )
    labeller = Labeller(teachers, labels, settings.labelling)
    fan_out = FanOut(settings.kafka, stores.offsets, stores.queue, producer)
    decider = Decider(loop, RetrainRule(**settings.retrain.model_dump(exclude={"interval_s"})))
    sources = FleetSources(
        store=stores.fleets, producer=producer, versions=stores.registry.versions, totals=stores.totals
    )
    watcher = FleetWatcher(settings.kafka, sources, fleet_rule(settings.fleet))
    runners: dict[str, Part] = {
        "fan_out": partial(fan_out.run, stores.fan_out_lease),
        "decide": partial(decider.run, stores.decide_lease, settings.retrain.interval_s),
        "watch_fleet": partial(watcher.run, stores.fleet_lease, settings.fleet.interval_s),
        "housekeeping": partial(_keep_house, [stores.queue, stores.train_queue]),
    }
    for number in range(settings.labelling.loops):
        runners[f"label_{number}"] = partial(labeller.run, f"{stores.owner}-{number}")
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
