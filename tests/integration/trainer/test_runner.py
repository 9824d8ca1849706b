"""The runner with real Redis and a real broker: one run at a time, resumed after a kill, published once."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from intentloop import gate
from intentloop.adapters import signing
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.errors import FencedError
from intentloop.release import Interval
from trainer import publish, run, runner, step

from .fake_line import LEASE_MS, FakeLine, World, draft, drive, request

PRIVATE, PUBLIC = signing.generate_keys()
SURE = Interval(value=1.0, low=0.9, high=1.0, samples=100)
EVIDENCE = gate.Evidence(accuracy=SURE, faults=SURE)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(publish.PRIVATE_KEY, PRIVATE)


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


class Killed(BaseException):
    """What `kill -9` looks like from inside: nothing of ours catches it."""


def test_a_run_is_taken_up_as_often_as_it_gets_further(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = set(list(run.STEPS)[1:6])  # more of them than a job has tries

    class Mortal(FakeLine):
        async def __call__(self, name: str, current: step.Run) -> None:
            if name in deadly:
                deadly.remove(name)
                raise Killed
            await super().__call__(name, current)

    async def check(there: World) -> None:
        queue = there.doors.queue
        await queue.put("job-1", request("job-1"))
        for life in range(5):
            (job,) = await queue.claim(f"trainer-{life}", 1, 3 * LEASE_MS)
            with pytest.raises(Killed):
                await runner.do(there.doors, there.section, job)
        (job,) = await queue.claim("trainer-5", 1, 3 * LEASE_MS)
        await runner.attempt(there.doors, there.section, job)
        assert await queue.buried() == {}
        assert (await queue.counts()).done == 1

    line = Mortal(gate.Release(("better",), EVIDENCE))
    drive(line, services_of_test, tmp_path, monkeypatch, check)
    assert line.done == list(run.STEPS)


def test_a_trainer_that_is_told_to_stop_gives_its_job_back_untried(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = FakeLine(gate.Release(("better",), EVIDENCE), seconds=60.0)

    async def check(there: World) -> None:
        queue = there.doors.queue
        await queue.put("job-1", request("job-1"))
        serving = asyncio.create_task(runner.serve(there.doors, there.section, "one"))
        while line.at_once == 0:
            await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert line.at_once == 0
        (job,) = await queue.claim("two", 1, 0)  # no lease to wait for
        assert job.tries == 1

    drive(line, services_of_test, tmp_path, monkeypatch, check)


def test_two_trainers_make_version_1_once(
    services_of_test: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    async def release(doors: runner.Doors, _section: object, work: Path) -> None:
        made.append(work)
        await asyncio.sleep(0.5)  # the other one looks at the registry meanwhile
        artefact = tmp_path / "artefact"
        artefact.mkdir()
        (artefact / "llm.mnn").write_bytes(b"weights")
        manifest = publish.pack(artefact, tmp_path / "release", draft("v1-00000000"))
        await runner.let_out(doors, manifest, tmp_path / "release")

    async def check(there: World) -> None:
        await asyncio.gather(*(runner.have_release(there.doors, there.section) for _ in range(2)))
        assert await there.doors.registry.current() is not None

    monkeypatch.setattr(runner, "_release_first", release)
    drive(FakeLine(gate.Release(("better",), EVIDENCE)), services_of_test, tmp_path, monkeypatch, check)
    assert len(made) == 1


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
