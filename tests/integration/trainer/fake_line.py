"""A line whose steps take no time, and a place for the runner to drive it in: real Redis, real broker, a fake store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from intentloop import gate
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.adapters.training_store import TrainingStore
from intentloop.facts import RetrainRequested
from intentloop.release import Manifest
from intentloop.retrain import RunVerdict
from intentloop.training_set import TrainingSample
from trainer import publish, run, runner, step, tiny_corpus
from trainer.settings import TrainerSection

LEASE_MS = 1_500


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
            spec = current.spec
            manifest = draft(f"v{spec.number}-00000000", spec.previous, spec.reason)
            publish.pack(artefact, into / "release", manifest)
        return {}


def draft(version: str, previous: str = "", reason: str = "a test asked for it") -> Manifest:
    """A manifest without files, to be packed."""
    return Manifest(
        version=version,
        previous=previous,
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
        reason=reason,
        created_at_ms=1,
    )


def request(name: str) -> bytes:
    return msgspec.json.encode(
        RetrainRequested(
            id=name, base_version="v1", reason="40 hard samples", hard_new=40, samples=40, requested_at_ms=1
        )
    )


def drive(
    line: FakeLine, services: tuple[RedisSection, KafkaSection], directory: Path, patch: pytest.MonkeyPatch, check: Any
) -> None:
    """Put the fake line in the runner's place of work and run `check` in a world."""
    patch.setattr(runner, "_run_step", line)

    async def scene() -> None:
        async with asyncio.timeout(120), world(*services, directory) as there:
            await check(there)

    asyncio.run(scene())
