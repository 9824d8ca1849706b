import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from intentloop import topics
from intentloop.adapters.fact_reader import FactReader, Record
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.fleet_store import FleetStore
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.leases import Lease
from intentloop.adapters.redis_client import connect
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.state_store import PartitionWrite, StateStore, read_counts
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import FencedError
from intentloop.facts import FleetDrifted, SampleLabelled
from intentloop.fleet_drift import FleetRule, category_bucket
from intentloop.fleet_state import FleetState
from intentloop.retrain import RetrainRule
from tests.unit.core_streams.make import envelope, inference, run
from tests.unit.core_workers.samples import labelled, picked, vote
from workers.decide import Decider, LoopStores
from workers.watch_fleet import FleetSources, FleetWatcher

pytestmark = pytest.mark.anyio
RULE = FleetRule(window=100, window_ms=0, min_baseline=40)
TENTS = f"top:{category_bucket(picked().read)}"
SAME = {"said:比价犹豫": 100, TENTS: 100}
OTHER = {"said:比价犹豫": 50, "said:场景购物": 50, TENTS: 100}


class World:
    """What the streams' counters say, for tests to move."""

    def __init__(self, store: FleetStore, producer: FactProducer, training: TrainingStore) -> None:
        self.store, self.producer, self.training = store, producer, training
        self.counts: dict[str, int] = {}
        self.released = ["v3"]

    def count(self, window: dict[str, int], version: str = "v3") -> None:
        for name, count in window.items():
            key = f"fleet:{version}:{name}"
            self.counts[key] = self.counts.get(key, 0) + count

    async def versions(self) -> list[str]:
        return self.released

    async def totals(self) -> dict[str, int]:
        return dict(self.counts)

    def watcher(self, kafka: KafkaSection, store: FleetStore | None = None) -> FleetWatcher:
        sources = FleetSources(
            store=store or self.store, producer=self.producer, versions=self.versions, totals=self.totals
        )
        return FleetWatcher(kafka, sources, RULE)

    async def learn(self, version: str, count: int = 50) -> None:
        for number in range(count):
            await self.training.add(labelled(number))
        await self.training.mark_used([picked(number).id for number in range(count)], version)


@asynccontextmanager
async def world(kafka: KafkaSection, section: RedisSection) -> AsyncIterator[World]:
    keys = Keys(section.prefix)
    await asyncio.to_thread(ensure_topics, kafka, (topics.FLEET_DRIFTED, topics.LABELLED, topics.RETRAIN_REQUESTED))
    async with connect(section) as redis, FactProducer(kafka) as producer:
        yield World(FleetStore(redis, keys), producer, TrainingStore(redis, keys, 0.0))


async def told(kafka: KafkaSection) -> list[FleetDrifted]:
    reader = await asyncio.to_thread(FactReader, kafka, topics.FLEET_DRIFTED, {})
    found: list[FleetDrifted] = []
    for _ in range(4):
        records = await asyncio.to_thread(reader.poll, 250)
        found += [msgspec.json.decode(record.value or b"", type=FleetDrifted) for record in records]
    await asyncio.to_thread(reader.close)
    return found


def records(labels: list[SampleLabelled], first: int = 0) -> list[Record]:
    return [Record(0, first + at, msgspec.json.encode(label)) for at, label in enumerate(labels)]


def vote_on(number: int, agree: bool) -> SampleLabelled:
    votes = (vote("比价犹豫"), vote("比价犹豫" if agree else "闲逛", teacher="b"))
    sample = picked(number, model_version="v3", random=False)
    return labelled(number, sample=sample, votes=votes, intent="比价犹豫" if agree else "")


async def test_a_fleet_that_left_its_snapshot_is_told_once_with_evidence(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with world(kafka, redis_section) as here:
        await here.learn("v3")
        watcher = here.watcher(kafka)
        for at_ms, window in enumerate((SAME, OTHER, OTHER, OTHER), start=1):
            here.count(window)
            await watcher.look("epoch", [], at_ms)
            assert await here.store.drifted("v3") == (at_ms >= 3)
        (fact,) = await told(kafka)
        assert (fact.model_version, fact.signal, fact.reference) == ("v3", "intent_mix", "snapshot")
        assert (fact.before, fact.after["场景购物"]) == ({"比价犹豫": 1.0}, 0.5)
        assert (fact.before_samples, fact.after_samples) == (50, 100)
        assert not await here.store.drifted("v2")


async def test_a_drifted_release_is_retrained_with_fewer_hard_samples(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with world(kafka, redis_section) as here, connect(redis_section) as redis:
        await here.learn("v3")
        for number in range(50, 70):
            await here.training.add(labelled(number))

        async def release() -> str:
            return "v3"

        keys = Keys(redis_section.prefix)
        loop = LoopStores(
            training=here.training,
            retrains=RetrainLog(redis, keys),
            train_queue=JobQueue(redis, keys, "train", QueueRule()),
            producer=here.producer,
            release=release,
            drifted=here.store.drifted,
        )
        decider = Decider(loop, RetrainRule(min_per_class=0))
        assert (await decider.step()).reason == "20 of 200 new hard samples"
        for at_ms in (1, 2):
            here.count(OTHER)
            await here.watcher(kafka).look("epoch", [], at_ms)
        decision = await decider.step()
        assert (decision.kind, decision.reason) == (
            "request",
            "confirmed drift with 20 new hard samples, 20 are enough then",
        )


class Dying(FleetStore):
    """Dies after facts were sent and before the state is stored."""

    async def save(self, *_: object) -> None:
        raise ConnectionError("killed here")


async def test_a_crash_between_telling_and_storing_tells_the_same_id_again(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with world(kafka, redis_section) as here, connect(redis_section) as redis:
        await here.learn("v3")
        here.count(OTHER)
        await here.watcher(kafka).look("epoch", [], 1)
        here.count(OTHER)
        with pytest.raises(ConnectionError):
            await here.watcher(kafka, Dying(redis, Keys(redis_section.prefix))).look("epoch", [], 2)
        assert not await here.store.drifted("v3")
        await here.watcher(kafka).look("epoch", [], 3)
        assert await here.store.drifted("v3")
        facts = await told(kafka)
        assert [fact.id for fact in facts] == ["fleet-v3-intent_mix-2"] * 2


async def test_teachers_that_begin_to_disagree_are_told(kafka: KafkaSection, redis_section: RedisSection) -> None:
    async with world(kafka, redis_section) as here:
        watcher = here.watcher(kafka)
        usual = [vote_on(number, agree=number % 20 > 0) for number in range(1_000)]
        assert await watcher.look("epoch", records(usual), 1) == []
        worse = [vote_on(number, agree=number % 2 > 0) for number in range(1_000, 1_600)]
        (fact,) = await watcher.look("epoch", records(worse, 1_000), 2)
        assert (fact.signal, fact.test, fact.reference) == (
            "teacher_disagreement",
            "adwin_and_page_hinkley",
            "own_past",
        )
        assert fact.before["teacher_disagreement"] == pytest.approx(0.05, abs=0.01)
        assert fact.after["teacher_disagreement"] == pytest.approx(0.5, abs=0.05)
        assert await here.store.offsets("epoch") == {0: 1_600}
        assert await watcher.look("epoch", [], 3) == []


async def test_who_lost_the_lease_without_noticing_stores_nothing(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    async with world(kafka, redis_section) as here:
        revision = await here.store.revision()
        here.count(SAME)
        await here.watcher(kafka).look("epoch", [], 1)
        with pytest.raises(FencedError, match="look again"):
            await here.store.save({"v3": FleetState(version="v3")}, "epoch", [], revision)
        assert (await here.store.states())["v3"].seen == SAME


async def test_faults_that_the_streams_counted_are_noticed_by_the_running_part(
    kafka: KafkaSection, redis_section: RedisSection
) -> None:
    keys = Keys(redis_section.prefix)
    async with world(kafka, redis_section) as here, connect(redis_section) as redis:

        async def stream(start: int, *answers: str) -> None:
            """Fold inferences and write their counts as a stream worker does."""
            said = [inference(f"i{start + at}", answer) for at, answer in enumerate(answers)]
            counts = run(*(envelope(*said[at : at + 200]) for at in range(0, len(said), 200))).counts
            await StateStore(redis, keys, 86_400).apply([PartitionWrite(3, start - 1, start, {}, counts)])

        async def until_known(*signals: str) -> None:
            while not {*signals} <= (await here.store.states()).get("v7", FleetState(version="")).rates.keys():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

        here.released = ["v7"]
        sources = FleetSources(
            store=here.store, producer=here.producer, versions=here.versions, totals=partial(read_counts, redis, keys)
        )
        sample = picked(1, model_version="v7")
        await here.producer.send(topics.LABELLED, "s", labelled(1, sample=sample))
        await here.producer.send_bytes(topics.LABELLED, "s", b"not a label")
        await stream(0, *["比价犹豫|帐篷"] * 2_000)
        stop, deadline = asyncio.Event(), time.monotonic() + 120
        running = asyncio.create_task(
            FleetWatcher(kafka, sources, RULE).run(Lease(redis, keys.lease("fleet"), "w1", 4_000), 0.05, stop)
        )
        await until_known("format_faults", "teacher_disagreement")
        await stream(1, *["比价犹豫|帐篷", "!!!!!!!!"] * 200)
        while not await here.store.drifted("v7"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        stop.set()
        await running
        (fact,) = await told(kafka)
        assert (fact.model_version, fact.signal) == ("v7", "format_faults")
        assert fact.before["format_faults"] < 0.02
        assert "rose from" in fact.reason
