"""How does a stream worker live? Builds the Faust app with its one agent, opens the doors, and watches over it.

The agent drains what is queued, applies it by the protocol of `apply_batch.py` and acknowledges last. Any exception
ends the process at once: an acknowledgement that Faust's orderly shutdown might still send would be a lie.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from intentloop.adapters import metrics
from intentloop.adapters.broker_epoch import LogIdentity
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.health import HealthServer
from intentloop.adapters.keys import Keys
from intentloop.adapters.memory import settle_memory
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.state_store import StateStore, enter_epoch
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import EXIT_BROKEN, EXIT_CONFIGURATION, ConfigurationError, FencedError, UnavailableError
from intentloop.topics import TELEMETRY
from streams.apply_batch import BatchApplier
from streams.compile_fold import compiled_walk
from streams.fold_records import FoldContext
from streams.settings import StreamsSettings, fold_rule
from streams.transport import SCHEME, BatchApp, BatchTopic, register

log = logging.getLogger("streams")

REDIS_WATCH_S = 2.0
BROKER_WATCH_S = 15.0
UNTOLD_S = 60.0  # how long a batch in hand waits for the broker to say who it is; it may be starting again
SETTLE_S = 4.0  # how long a rebalance, or a stop, waits for a batch in hand; below the shortest session time-out

LOGGING: dict[str, Any] = {  # Faust sets logging up anew at start, from this
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s streams %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {name: {"level": "WARNING"} for name in ("aiokafka", "faust", "kafka", "mode", "streams.transport")},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}


def build_app(settings: StreamsSettings) -> BatchApp:
    """Make the Faust app with its agent; nothing is connected yet."""
    app = batch_app(settings)
    worker = Worker(settings)
    app.positions, app.settle, app.end, app.close_doors = worker.positions, worker.settle, end_process, worker.close
    source = BatchTopic(app, topics=[app.source_topic], partitions=TELEMETRY.partitions, acks=True)

    async def fold_telemetry(stream: Any) -> None:
        """Fold phones' envelopes into users' states; state drifts, triggers and samples."""
        await worker.run(stream)

    app.agent(source, name="fold_telemetry")(fold_telemetry)
    return app


def batch_app(settings: StreamsSettings) -> BatchApp:
    """Which Faust app reads telemetry in batches? Still without positions and agent."""
    register()
    section = settings.streams
    app = BatchApp(
        f"{settings.kafka.prefix}streams",
        broker=f"{SCHEME}://{settings.kafka.bootstrap}",
        key_serializer="raw",
        value_serializer="raw",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        consumer_auto_offset_reset="earliest",
        store="memory://",
        broker_session_timeout=section.session_timeout_s,
        broker_heartbeat_interval=section.heartbeat_s,
        broker_commit_interval=1.0,
        stream_wait_empty=False,
        stream_buffer_maxsize=64,
        datadir=Path(tempfile.gettempdir()) / "intentloop-streams",  # Faust makes one; without Tables it stays empty
        logging_config=LOGGING,
    )
    app.source_topic = f"{settings.kafka.prefix}{TELEMETRY.name}"
    app.batch_records = section.batch_records
    return app


class Worker:
    """One worker's doors and its agent's body. Opened on first use, inside Faust's event loop."""

    def __init__(self, settings: StreamsSettings) -> None:
        self._settings = settings
        self._log = LogIdentity(settings.kafka, TELEMETRY)
        self._opening = asyncio.Lock()
        self._doors = AsyncExitStack()
        self._applier: BatchApplier | None = None
        self._watchers: list[asyncio.Task[None]] = []
        self._epoch = ""
        self._folding = asyncio.Lock()
        self._confirmed: asyncio.Task[None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._ills = {"agent": "the agent has not started", "redis": "not asked yet", "broker": "not asked yet"}

    async def positions(self, earliest: dict[int, int]) -> dict[int, int]:
        """Where does each assigned partition begin? Asked of Redis, after the broker was asked who it is."""
        applier = await self._open()
        await self._confirm_log()
        return await applier.positions(earliest)

    async def run(self, stream: Any) -> None:
        """Take batches until the stream ends; finish each while the next is folded, and acknowledge it only then."""
        try:
            applier = await self._open()
            self._ills["agent"] = ""
            taken: list[Any] = []
            async for event in stream.noack().events():
                taken.append(event)
                if self._wants_more(taken) and not stream.channel.queue.empty():
                    continue
                await self._take_on(applier, stream, taken)
                taken = []
        except Exception as error:
            end_process(error)
        finally:
            self._ills["agent"] = "the agent has stopped"

    async def _take_on(self, applier: BatchApplier, stream: Any, taken: list[Any]) -> None:
        """Fold a batch; once the one before is finished, go on to finish this one while others are taken."""
        async with self._folding:
            self._confirmed = asyncio.create_task(self._confirm_log())
            folded = await applier.fold([record for one in taken for record in one.value])
            await self._finished()
            finishing = applier.finish(folded, self._confirmed)
            self._finishing = asyncio.create_task(_or_end(_acknowledge(finishing, stream, taken)))

    async def _finished(self) -> None:
        """Wait for the batch that is being finished, if one is; whoever waits may be cancelled, the batch is not."""
        if self._finishing is not None:
            await asyncio.wait({self._finishing})

    async def settle(self) -> None:
        """Wait for what is in hand, but not for ever: another worker that waits for us would be fenced, or fence us."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S), self._folding:
                await self._finished()

    def _wants_more(self, taken: list[Any]) -> bool:
        return sum(len(event.value) for event in taken) < self._settings.streams.batch_records

    async def _open(self) -> BatchApplier:
        """Open Redis, the producer and the health server, once."""
        async with self._opening:
            if self._applier is None:
                self._applier = await self._open_doors()
            return self._applier

    async def _open_doors(self) -> BatchApplier:
        settings = self._settings
        health = HealthServer(settings.health, lambda: dict(self._ills))
        log.info("health on port %d", await health.start())
        self._doors.push_async_callback(health.stop)
        redis = connect(settings.redis)
        self._doors.push_async_callback(redis.aclose)
        await ready(redis)
        await check_noeviction(redis)
        keys = Keys(settings.redis.prefix)
        self._epoch = await asyncio.to_thread(self._log.read)
        resets = await enter_epoch(redis, keys, self._epoch, settings.streams.reset_on_new_broker)
        producer = await self._doors.enter_async_context(FactProducer(settings.kafka))
        rule = fold_rule(settings.rules, settings.streams.state_ttl_s)
        compiled = compiled_walk(rule, settings.streams.compiled)
        context = FoldContext(keys, rule, f".r{resets}" if resets else "", compiled)
        store = StateStore(redis, keys, settings.streams.redis_ttl_s)
        applier = BatchApplier(store, producer, context)
        watchers = (self._watch_redis(store, applier), self._watch_broker())
        self._watchers = [asyncio.create_task(_or_end(watcher)) for watcher in watchers]
        settle_memory()
        log.info("stream worker is ready on broker %s", self._epoch)
        return applier

    async def close(self) -> None:
        """Close the doors after Faust has stopped and committed."""
        await self.settle()
        for task in (*self._watchers, self._confirmed, self._finishing):
            if task is not None:
                task.cancel()
        await self._doors.aclose()
        log.info("stream worker stopped cleanly")

    async def _watch_redis(self, store: StateStore, applier: BatchApplier) -> None:
        """Keep the reason that `/health` shows for Redis fresh, and notice lost writes of silent partitions too."""
        while True:
            self._ills["redis"] = await store.illness(applier.applied())
            metrics.STREAM_IDLE.set(time.monotonic() - applier.applied_at_s)
            await asyncio.sleep(REDIS_WATCH_S)

    async def _watch_broker(self) -> None:
        """Keep the reason that `/health` shows for the broker fresh."""
        while True:
            try:
                await self._check_broker()
                self._ills["broker"] = ""
            except UnavailableError as error:
                self._ills["broker"] = str(error)
            await asyncio.sleep(BROKER_WATCH_S)

    async def _confirm_log(self) -> None:
        """Are the records in hand of the log that the watermarks are of? Asked before anything follows from them.

        Asked after they were fetched, for each batch, while it is folded: a log that ended never returns, so whatever
        was fetched since this worker started, and before the broker named the log of the start, is of that log.

        Raises:
            FencedError: they are of another log.
            UnavailableError: nobody tells whose they are.
        """
        begun_s = time.monotonic()
        while True:
            try:
                await self._check_broker()
                break
            except UnavailableError as error:
                self._ills["broker"] = str(error)
                if time.monotonic() - begun_s > UNTOLD_S:
                    raise
                await asyncio.sleep(0.1)
        self._ills["broker"] = ""

    async def _check_broker(self) -> None:
        """Notice a broker that began anew under us: its records would be taken for old, or for later ones."""
        found = await asyncio.to_thread(self._log.read)
        if found != self._epoch:
            raise FencedError(f"the broker was {self._epoch!r} at start and is {found!r} now: its log is new")


async def _acknowledge(finishing: Awaitable[None], stream: Any, taken: Sequence[Any]) -> None:
    """Step 5, once 3 and 4 are done."""
    await finishing
    for one in taken:
        await stream.ack(one)


async def _or_end(task: Coroutine[Any, Any, None]) -> None:
    """A task that fails ends the process: one that died in silence would leave health green for ever."""
    try:
        await task
    except Exception as error:
        end_process(error)


def prepare(settings: StreamsSettings) -> None:
    """Have the topics of the table before Faust looks for them, and compiled code before anybody waits for it."""
    ensure_topics(settings.kafka)
    compiled_walk(fold_rule(settings.rules, settings.streams.state_ttl_s), settings.streams.compiled)


def end_process(error: Exception) -> None:
    """End this process now, without acknowledging; the supervisor starts it again."""
    configuration = isinstance(error, ConfigurationError)
    log.critical("stream worker ends: %s: %s", type(error).__name__, error, exc_info=not configuration)
    logging.shutdown()
    os._exit(EXIT_CONFIGURATION if configuration else EXIT_BROKEN)
