"""The runner with real Redis and a real broker: one run at a time, resumed after a kill, published once."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from intentloop import gate
from intentloop.adapters import signing
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import FencedError
from intentloop.facts import RetrainRequested
from intentloop.release import Interval, Manifest
from intentloop.retrain import RunVerdict
from intentloop.training_set import TrainingSample
from trainer import publish, run, runner, step, tiny_corpus
from trainer.settings import TrainerSection

LEASE_MS = 1_500
PRIVATE, PUBLIC = signing.generate_keys()
SURE = Interval(value=1.0, low=0.9, high=1.0, samples=100)
EVIDENCE = gate.Evidence(accuracy=SURE, faults=SURE)


class FakeStore:
    """A training set that counts what is asked of it."""

    def __init__(self) -> None:
        self.kept = tiny_corpus.samples(5, 40, 0.5)
        self.used: dict[str, str] = {}
        self.verdicts: dict[str, tuple[RunVerdict, int]] = {}

    async def audit(self) -> None:
        """Nothing was lost."""

    async def samples(self) -> list[TrainingSample]:
        """All of them."""
        return self.kept

    async def golden(self) -> list[TrainingSample]:
        """Others."""
        return tiny_corpus.samples(6, 10, 0.5)

    async def record_verdict(self, request_id: str, verdict: RunVerdict, ids: list[str]) -> None:
        """Remember, with the number of samples."""
        self.verdicts[request_id] = (verdict, len(ids))

    async def mark_used(self, ids: list[str], version: str) -> None:
        """Remember."""
        self.used |= dict.fromkeys(ids, version)


class World(msgspec.Struct):
    """Doors onto real services, and the fake store behind one of them."""

    doors: runner.Doors
    store: FakeStore
    section: TrainerSection


@asynccontextmanager
async def world(redis_section: RedisSection, kafka: KafkaSection, directory: Path) -> AsyncIterator[World]:
    await asyncio.to_thread(ensure_topics, kafka)
    redis, keys, store = connect(redis_section), Keys(redis_section.prefix), FakeStore()
    try:
        async with FactProducer(kafka) as facts:
            doors = runner.Doors(
                JobQueue(redis, keys, runner.QUEUE, QueueRule(lease_ms=LEASE_MS, max_tries=3)),
                cast(TrainingStore, store),
                Registry(redis, keys, directory / "blobs"),
                facts,
            )
            section = TrainerSection(work=directory / "runs", first_release=False, poll_ms=200, burst=True)
            yield World(doors, store, section)
    finally:
        await redis.aclose()


class FakeLine:
    """Steps that take no time: each writes a manifest; the gate and the release are what the test says.

    Args:
        decision: What the gate decides.
        failing: A step that ends with an error the first time.
    """

    def __init__(self, decision: gate.Decision, failing: str = "", seconds: float = 0.0) -> None:
        self.decision, self.failing, self.seconds = decision, failing, seconds
        self.done: list[str] = []
        self.at_once = self.most_at_once = 0

    async def __call__(self, name: str, current: step.Run) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            if name == self.failing:
                self.failing = ""
                raise run.StepFailedError(f"step {name} was killed")
            step.perform(current, name, run.needs(name), lambda one, into: self._work(name, one, into))
            self.done.append(name)
        finally:
            self.at_once -= 1

    def _work(self, name: str, current: step.Run, into: Path) -> step.Metrics:
        if name == "gate":
            (into / "decision.json").write_bytes(msgspec.json.encode(self.decision))
        if name == "publish":
            artefact = into / "artefact"
            artefact.mkdir()
            (artefact / "llm.mnn").write_bytes(b"weights")
            publish.pack(artefact, into / "release", _manifest(current))
        return {}


def _manifest(current: step.Run) -> Manifest:
    return Manifest(
        version=f"v{current.spec.number}-00000000",
        previous=current.spec.previous,
        base_model="tiny",
        prompt_version="p1",
        engine="none",
        quantiser="none",
        layers_dropped=(),
        files=(),
        artefact_bytes=0,
        min_free_bytes=0,
        measured=None,
        steps=(),
        lineage={},
        reason=current.spec.reason,
        created_at_ms=current.spec.created_at_ms,
    )


def request(name: str) -> bytes:
    return msgspec.json.encode(
        RetrainRequested(
            id=name, base_version="v1", reason="40 hard samples", hard_new=40, samples=40, requested_at_ms=1
        )
    )


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(publish.PRIVATE_KEY, PRIVATE)


def drive(
    line: FakeLine, services: tuple[RedisSection, KafkaSection], directory: Path, patch: pytest.MonkeyPatch, check: Any
) -> None:
    """Put the fake line in the runner's place of work and run `check` in a world."""
    patch.setattr(runner, "_run_step", line)

    async def scene() -> None:
        async with asyncio.timeout(120), world(*services, directory) as there:
            await check(there)

    asyncio.run(scene())


@pytest.fixture
def services_of_test(redis_section: RedisSection, kafka: KafkaSection) -> tuple[RedisSection, KafkaSection]:
    return redis_section, kafka


Services = tuple[RedisSection, KafkaSection]


def test_a_request_becomes_a_signed_release_and_its_samples_are_used(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        await runner.serve(there.doors, there.section, "one")
        rollout = await there.doors.registry.current()
        assert rollout is not None
        assert rollout.version == "v1-00000000"
        manifest = await there.doors.registry.manifest(rollout.version)
        assert signing.verify(manifest, PUBLIC)
        assert "40 hard samples" in manifest.reason
        assert set(there.store.used) == {sample.id for sample in there.store.kept}
        assert (await there.doors.queue.counts()).done == 1

    line = FakeLine(gate.Release(("better",), EVIDENCE))
    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.done == list(run.STEPS)


@pytest.mark.parametrize("decision", [gate.Reject(("worse",), EVIDENCE), gate.Inconclusive(("few",), EVIDENCE)])
def test_what_the_gate_refuses_is_not_released_and_the_job_is_finished(
    decision: gate.Decision, services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        await runner.serve(there.doors, there.section, "one")
        assert await there.doors.registry.current() is None
        assert there.store.used == {}
        told, samples = there.store.verdicts["job-1"]
        assert told.kind == type(decision).__name__.lower()
        assert (told.reasons, told.release, samples) == (decision.reasons, "", 40)
        (verdict,) = (there.section.work / "verdicts").iterdir()
        assert msgspec.json.decode(verdict.read_bytes(), type=gate.Decision) == decision
        assert (await there.doors.queue.counts()).done == 1

    line = FakeLine(decision)
    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert "publish" not in line.done


def test_a_failed_run_goes_on_where_it_stood_with_the_snapshot_it_had(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeLine(gate.Release(("better",), EVIDENCE), failing="prune")

    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        (job,) = await there.doors.queue.claim("one", 1, 1000)
        await runner.attempt(there.doors, there.section, job)
        there.store.kept = there.store.kept[:5]  # the live set moves on; the run must not see it
        await runner.serve(there.doors, there.section, "two")
        assert len(there.store.used) == 40
        assert (await there.doors.queue.counts()).done == 1

    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.done == list(run.STEPS)  # no step twice


def test_two_runs_never_overlap(services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = FakeLine(gate.Inconclusive(("few",), EVIDENCE), seconds=0.2)  # longer than a lease, all steps together

    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        patient = there.section.model_copy(update={"poll_ms": 3 * LEASE_MS})
        await asyncio.gather(*(runner.serve(there.doors, patient, name) for name in ("one", "two")))
        assert (await there.doors.queue.counts()).done == 1

    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.most_at_once == 1
    assert line.done == list(run.STEPS)[:-1]


def test_runs_of_two_jobs_never_overlap(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeLine(gate.Inconclusive(("few",), EVIDENCE), seconds=0.05)

    async def check(there: World) -> None:
        for name in ("job-1", "job-2"):
            await there.doors.queue.put(name, request(name))
        await asyncio.gather(*(runner.serve(there.doors, there.section, name) for name in ("one", "two")))
        assert (await there.doors.queue.counts()).done == 2

    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.most_at_once == 1
    assert sorted(line.done) == sorted(list(run.STEPS)[:-1] * 2)


def test_a_job_waits_untried_while_there_is_no_room_for_its_run(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeLine(gate.Inconclusive(("few",), EVIDENCE))
    usual = shutil.disk_usage(tmp_path)

    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usual._replace(free=1_000_000))
        (job,) = await there.doors.queue.claim("one", 1, 1000)
        await runner.attempt(there.doors, there.section, job)
        assert (line.done, (await there.doors.queue.counts()).waiting) == ([], 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usual._replace(free=10**12))
        await runner.serve(there.doors, there.section, "one")
        assert (await there.doors.queue.counts()).done == 1

    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.done == list(run.STEPS)[:-1]


def test_work_whose_lease_was_lost_is_stopped(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", request("job-1"))
        (job,) = await there.doors.queue.claim("one", 1, 1000)
        await there.doors.queue.fail(job, "taken away")
        stopped = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.set()
                raise

        with pytest.raises(FencedError):
            await asyncio.wait_for(runner.while_leased(there.doors.queue, job, work()), 10)
        assert stopped.is_set()

    drive(FakeLine(gate.Release((), EVIDENCE)), services_of_test, tmp_path, monkeypatch, check)


def test_a_job_that_makes_no_sense_is_buried_with_its_reason(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(there: World) -> None:
        await there.doors.queue.put("job-1", b"no json")
        await runner.serve(there.doors, there.section, "one")
        assert "malformed" in (await there.doors.queue.buried())["job-1"]

    drive(FakeLine(gate.Release((), EVIDENCE)), services_of_test, tmp_path, monkeypatch, check)


def test_only_the_newest_runs_stay_on_disk(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(there: World) -> None:
        for index in range(5):
            await there.doors.queue.put(f"job-{index}", request(f"job-{index}"))
            await runner.serve(there.doors, there.section, "one")
        assert len(list(there.section.work.glob("*/spec.json"))) == there.section.keep_runs

    drive(FakeLine(gate.Inconclusive(("few",), EVIDENCE)), services_of_test, tmp_path, monkeypatch, check)
