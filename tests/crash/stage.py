"""Workers under a keeper that starts again what ended, fed while faults happen to them, and compared at the end."""

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from redis.exceptions import RedisError

from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.events import Envelope
from intentloop.topics import TELEMETRY
from tests.crash.stores import Broker, Store
from tests.integration.streams import world

KILLED, BROKEN = -9, 70
STEP_TIMEOUT_S = 150.0  # a killed worker's partitions come back after 6 s on Apache Kafka, 20 s on tansu
Fault = Callable[["Stage"], Awaitable[None]]


class Stage:
    """One scenario's broker, Redis, workers and what was sent to them."""

    def __init__(self, broker: Broker, store: Store, directory: Path, name: str, seed: int = 1) -> None:
        self.broker, self.store, self.directory = broker, store, directory
        self.kafka = KafkaSection(bootstrap=broker.bootstrap, prefix=f"{name}.")
        self.redis_section = RedisSection(url=f"redis://127.0.0.1:{store.port}/0", prefix=name)
        self.keys = Keys(name)
        self.random = Random(seed)
        self.settings: dict[str, str] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.exits: Counter[int] = Counter()
        self.sent = self.events = self.amid = 0
        self._logs: dict[int, Path] = {}
        self._started = 0
        self._keeper: asyncio.Task[None] | None = None

    def start(self, count: int, batch_records: int, **settings: str) -> None:
        self.settings = {"INTENTLOOP_STREAMS__BATCH_RECORDS": str(batch_records), **settings}
        self.workers = [self._spawn(number) for number in range(count)]
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def kill(self, number: int) -> None:
        """`kill -9` and a new one in its place."""
        self.workers[number].kill()
        self.exits[self.workers[number].wait()] += 1
        self.workers[number] = self._spawn(number)

    async def stop(self, number: int) -> None:
        """A clean stop, and a new one in its place."""
        await self.until_logged(number, "stream worker is ready")
        worker, log = self.workers[number], self.log(number)
        worker.terminate()
        self.workers[number] = self._spawn(number)  # so the keeper looks at the new one
        code = await asyncio.to_thread(worker.wait, 30)
        assert code == 0, f"a clean stop ended with {code}:\n{log[-2_000:]}"

    async def until_logged(self, number: int, text: str) -> None:
        """Until the present worker of this place has said so."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while text not in self.log(number):
                await asyncio.sleep(0.002)

    def any_worker(self) -> int:
        return self.random.randrange(len(self.workers))

    def log(self, number: int) -> str:
        """What has the present worker of this place logged?"""
        return self._logs[number].read_text(errors="replace")

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        self._started += 1
        self._logs[number] = self.directory / f"worker{number}.{self._started}.log"
        return world.start_worker(self.kafka, self.redis_section, self._logs[number], **self.settings)

    async def _keep(self) -> None:
        """What the supervisor does: a process that broke a promise is started again."""
        while True:
            for number, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.exits[worker.returncode] += 1
                    self.workers[number] = self._spawn(number)
            await asyncio.sleep(0.2)

    async def feed(self, envelopes: Sequence[Envelope]) -> None:
        await world.send_envelopes(self.kafka, envelopes)
        self.sent += len(envelopes)
        self.events += sum(len(envelope.events) for envelope in envelopes)

    async def renew(self, envelopes: Sequence[Envelope]) -> None:
        """The broker comes back empty and is filled beyond the old watermarks before any worker sees it again.

        What is sent counts from 0 again. Workers stand still meanwhile, so that each one's next fetch finds records
        at its old position, as if nothing had happened.
        """
        for worker in self.workers:
            worker.send_signal(signal.SIGSTOP)
        before = await self.watermarks()
        await self.broker.kill_and_return(away_s=0.5)
        await asyncio.to_thread(ensure_topics, self.kafka)
        self.sent = 0
        await self.feed(envelopes)
        ends = Counter(record.partition for record in await world.read_records(self.kafka, TELEMETRY))
        assert all(ends[partition] > watermark + 1 for partition, watermark in before.items()), "a position was reset"
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)

    async def watermarks(self) -> dict[int, int]:
        async with self.store.client() as redis:
            return await world.watermarks(redis, self.keys, range(TELEMETRY.partitions))

    async def applied(self) -> int:
        """How many records do the watermarks in Redis cover? -1 while Redis does not answer."""
        try:
            found = await self.watermarks()
        except (RedisError, OSError):
            return -1
        return sum(watermark + 1 for watermark in found.values())

    async def until_applied(self, records: int) -> None:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while await self.applied() < records:
                await asyncio.sleep(0.004)

    async def play(self, envelopes: Sequence[Envelope], faults: Sequence[Fault]) -> None:
        """Feed a share, let a fault happen somewhere in the middle of it, and so on; the last share follows alone."""
        size = len(envelopes) // (len(faults) + 1)
        for number, fault in enumerate(faults):
            before = self.sent
            await self.feed(envelopes[number * size : (number + 1) * size])
            await self.until_applied(before + int(size * self.random.uniform(0.05, 0.8)))
            await asyncio.sleep(self.random.uniform(0, 0.02))  # anywhere in a batch, not just after one
            self.amid += await self.applied() < self.sent
            await fault(self)
        await self.feed(envelopes[len(faults) * size :])
        await self.until_applied(self.sent)

    async def verdict(self, before: world.Truth | None = None, kind_suffix: str = "") -> "Verdict":
        """Compare what the workers left behind with a straight replay of the topic."""
        records = await world.read_records(self.kafka, TELEMETRY, idle_s=5.0)
        assert len(records) == self.sent or before is not None, f"{len(records)} records of {self.sent} sent"
        truth = await asyncio.to_thread(world.replay, records, self.keys, 64, before, kind_suffix)
        async with self.store.client() as redis:
            return Verdict(await world.compare(self.kafka, redis, self.keys, truth), truth)


class Verdict:
    """How far are states, facts and counters from the replay?"""

    def __init__(self, difference: world.Difference, truth: world.Truth) -> None:
        self.difference, self.truth = difference, truth

    def __str__(self) -> str:
        one = self.difference
        facts = sum(len(facts) for facts in self.truth.outputs.values())
        return (
            f"{one.wrong_states} of {len(self.truth.states)} states wrong, {one.missing} of {facts} facts missing, "
            f"{one.foreign} foreign, {sum(one.duplicates.values())} sent again, counters "
            f"{one.counters or 'exact'}"
        )

    def check(self) -> None:
        one = self.difference
        assert all(self.truth.outputs.values()), "the traffic makes every kind of output"
        assert (one.wrong_states, one.missing, one.foreign, one.counters) == (0, 0, 0, {}), str(self)


@asynccontextmanager
async def stage(broker: Broker, directory: Path, name: str, seed: int = 1) -> AsyncIterator[Stage]:
    """A stage with a Redis of its own on a broker that may be shared."""
    directory.mkdir(parents=True, exist_ok=True)
    store = Store(directory)
    await store.open()
    opened = Stage(broker, store, directory, name, seed)
    try:
        await asyncio.to_thread(ensure_topics, opened.kafka)
        yield opened
    finally:
        await opened.close()
        store.close()
