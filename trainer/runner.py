"""How does a request for a new model become a release? One job at a time, whatever is killed meanwhile.

1. Claim a job; its run's directory is named by the job, so that a reclaimed job finds what is done already.
2. Dump training and golden set, and the current release as incumbent; write the run's spec last.
3. Do the steps of the line as processes while the lease is renewed; a lost lease ends them.
4. Publish into the registry (its entry is last), state the fact, mark the samples as used, finish the job.

Every effect may happen twice and counts once: a release has one name by what it was made from.
"""

import asyncio
import logging
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from intentloop import gate, topics
from intentloop.adapters.blobs import encoded
from intentloop.adapters.clock import now_ms
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import Job, JobQueue
from intentloop.adapters.redis_client import TRANSIENT
from intentloop.adapters.registry import Registry
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import ContractError, FencedError, UnavailableError
from intentloop.facts import ModelReleased, RetrainRequested
from intentloop.ids import content_digest
from intentloop.release import Manifest
from intentloop.retrain import RunVerdict
from trainer import dataset, forget, publish, rule, run, step
from trainer.adapter_release import judge, policy
from trainer.settings import TrainerSection

log = logging.getLogger("trainer")

QUEUE = "train"


class Doors(msgspec.Struct, frozen=True):
    """What the runner talks to."""

    queue: JobQueue
    store: TrainingStore
    registry: Registry
    facts: FactProducer


async def serve(doors: Doors, section: TrainerSection, worker: str) -> None:
    """Make version 1 if nothing is released, then take one job after the other until cancelled (or none is left)."""
    if section.first_release:
        await have_release(doors, section)
    while True:
        jobs = await doors.queue.claim(worker, 1, section.poll_ms)
        for job in jobs:
            await attempt(doors, section, job)
        if section.burst and not jobs:
            return


async def attempt(doors: Doors, section: TrainerSection, job: Job) -> None:
    """Do one job and book what came of it; a job of someone else by now is let go."""
    try:
        await while_leased(doors.queue, job, do(doors, section, job))
        await doors.queue.done(job)
    except FencedError as error:
        log.warning("job %s: %s", job.id, error)
    except UnavailableError as error:
        log.warning("job %s is put back: %s", job.id, error)
        await doors.queue.park(job, str(error))
        await asyncio.sleep(section.poll_ms / 1000)
    except asyncio.CancelledError:  # we are told to stop, which is not the job's fault either
        with suppress(FencedError, *TRANSIENT):
            await doors.queue.park(job, "its trainer was stopped")
        raise
    except (ContractError, run.StepFailedError, msgspec.DecodeError) as error:
        log.exception("job %s failed, try %d", job.id, job.tries)
        await doors.queue.fail(job, str(error))


async def do(doors: Doors, section: TrainerSection, job: Job) -> None:
    """Run the line for one request and let its release out."""
    request = msgspec.json.decode(job.payload, type=RetrainRequested)
    with run.alone(section.work.resolve()) as work:
        current = await prepare(doors, section, request, work / content_digest(job.id))
        while (name := await asyncio.to_thread(run.next_step, current)) is not None:
            await _run_step(name, current)
            await _get_further(doors.queue, job)
        await conclude(doors, section, request, current)


async def _get_further(queue: JobQueue, job: Job) -> None:
    """A step is done: from here on the job has all its tries again. Without Redis it only has one less."""
    try:
        await queue.progressed(job)
    except TRANSIENT as error:
        log.warning("job %s: a step is done, but Redis does not know: %s", job.id, error)


async def conclude(doors: Doors, section: TrainerSection, request: RetrainRequested, current: step.Run) -> None:
    """Book what the gate decided, and let the release out if it said yes."""
    ended = run.result(current)
    log.info("%s: %s", type(ended.decision).__name__, "; ".join(ended.decision.reasons))
    _record_verdict(section, current.directory.name, ended)
    ids = [sample.id for sample in dataset.read(current.directory / "inputs" / "training.jsonl")]
    await doors.store.record_verdict(request.id, verdict_of(ended), ids)
    policy.note(section.work.resolve(), current.spec, judge.refused_on_golden(current))
    if ended.release is not None and ended.manifest is not None:
        await let_out(doors, ended.manifest, ended.release)
        await doors.store.mark_used(ids, ended.manifest.version)
    await _report(current)
    forget.forget(section.work.resolve(), section.keep_runs)


async def prepare(doors: Doors, section: TrainerSection, request: RetrainRequested, directory: Path) -> step.Run:
    """Make the run's directory, or find it: the spec is written last, and what is there then stays as it is.

    Raises:
        ContractError: the training set lost something, or rule and settings name different base models.
        UnavailableError: there is no room for a run.
    """
    if (directory / "spec.json").is_file():
        log.info("run %s is taken up again", directory.name)
        return step.Run(directory)
    await doors.store.audit()
    inputs = directory / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    dataset.write(inputs / "training.jsonl", await doors.store.samples())
    dataset.write(inputs / "golden.jsonl", await _golden(doors, section))
    rules = rule.read(section.rule)
    base, base_name = base_of(section, rules)
    forget.require_room(directory, base, rules)
    ground = await policy.survey(doors.registry, base, rules.adapter, directory)
    log.info("run %s makes a release of kind %s: %s", directory.name, ground.kind, ground.reason)
    spec = step.RunSpec(
        number=len(await doors.registry.versions()) + 1,
        base=str(base),
        base_name=base_name,
        incumbent=ground.incumbent,
        previous=ground.previous,
        reason=request.reason,
        created_at_ms=now_ms(),
        kind=ground.kind,
        base_release=ground.base_release,
    )
    return step.start(directory, spec, rules)


def base_of(section: TrainerSection, rules: rule.LineRule) -> tuple[Path, str]:
    """Which base model is trained, and what is it called? The rule file's, else the setting's.

    Raises:
        ContractError: the rule's is no directory here, or the settings name another one.
    """
    if not rules.model_name_or_path:
        return section.base.resolve(), section.base_name
    found = Path(rules.model_name_or_path).resolve()
    if not found.is_dir():
        raise ContractError(
            f"model_name_or_path {rules.model_name_or_path!r} is no directory; fetch the model into one"
        )
    if "base" in section.model_fields_set and section.base.resolve() != found:
        raise ContractError(
            f"{section.rule} names the base {found}, the settings name {section.base}; keep one of them"
        )
    return found, section.base_name if "base_name" in section.model_fields_set else found.name


async def let_out(doors: Doors, manifest: Manifest, release: Path) -> None:
    """Register a release and state that it happened."""
    await doors.registry.publish(manifest, release)
    fact = ModelReleased(
        version=manifest.version,
        previous=manifest.previous,
        reason=manifest.reason,
        manifest_sha256=publish.manifest_sha256(encoded(manifest)),
        artefact_bytes=manifest.artefact_bytes,
        released_at_ms=manifest.created_at_ms,
    )
    await doors.facts.send(topics.RELEASED, manifest.version, fact)
    log.info("released %s", manifest.version)


async def have_release(doors: Doors, section: TrainerSection) -> None:
    """Release the base model as version 1 if the registry is empty; if another trainer is about it, wait for it."""
    while await doors.registry.current() is None:
        try:
            with run.alone(section.work.resolve()) as work:
                if await doors.registry.current() is None:
                    await _release_first(doors, section, work)
        except UnavailableError as error:
            log.info("version 1: %s", error)
            await asyncio.sleep(section.poll_ms / 1000)


async def _release_first(doors: Doors, section: TrainerSection, work: Path) -> None:
    directory, golden = work / "first", work / "first-golden.jsonl"
    dataset.write(golden, await _golden(doors, section))
    base, _ = base_of(section, rule.read(section.rule))
    paths = {"base": base, "golden": golden, "rule": section.rule, "out": directory}
    arguments = [text for name, path in paths.items() for text in (f"--{name}", str(path.resolve()))]
    code = await _execute([sys.executable, "-m", "trainer.first_release", *arguments], None)
    if code != 0:
        raise run.StepFailedError(f"the first release of {section.base} ended with {code}; its own lines say why")
    await let_out(doors, publish.read_manifest(directory / "release"), directory / "release")


async def while_leased(queue: JobQueue, job: Job, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` while the lease is renewed; when the lease is lost the work is cancelled.

    Raises:
        FencedError: another worker took the job over.
    """
    working = asyncio.ensure_future(work)
    renewing = asyncio.ensure_future(_renew(queue, job))
    try:
        await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, renewing):
            task.cancel()
        await asyncio.gather(working, renewing, return_exceptions=True)
    if not working.cancelled():
        working.result()
    else:
        renewing.result()


async def _renew(queue: JobQueue, job: Job) -> None:
    """Renew until cancelled; a client may turn that into an error of its own, so the task itself is asked, too."""
    task = asyncio.current_task()
    while task is not None and not task.cancelling():
        await asyncio.sleep(queue.rule.lease_ms / 3000)
        try:
            await queue.renew(job)
        except FencedError:
            raise
        except Exception as error:  # Redis may be away for a moment; the lease itself decides
            log.warning("lease of job %s not renewed: %s", job.id, error)


async def _run_step(name: str, current: step.Run) -> None:
    log.info("run %s, %s", current.directory.name, run.whereabouts(name))
    arguments, environment = run.command(name, current)
    run.check_ended(name, current, await _execute(arguments, environment))


async def _execute(arguments: list[str], environment: dict[str, str] | None) -> int:
    """Run a process to its end; it is ended with us."""
    process = await asyncio.create_subprocess_exec(*arguments, env=environment)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _golden(doors: Doors, section: TrainerSection) -> list[Any]:
    return dataset.read(section.golden) if section.golden else await doors.store.golden()


def verdict_of(ended: run.Result) -> RunVerdict:
    """What do the retrain decision and `intentloop status` need to know of a run?"""
    kinds: dict[type[gate.Decision], Literal["release", "reject", "inconclusive"]] = {
        gate.Release: "release",
        gate.Reject: "reject",
        gate.Inconclusive: "inconclusive",
    }
    return RunVerdict(
        kind=kinds[type(ended.decision)],
        reasons=ended.decision.reasons,
        judged_at_ms=now_ms(),
        release=ended.manifest.version if ended.manifest else "",
    )


async def _report(current: step.Run) -> None:
    """Leave the run's report, with what phones said meanwhile; one that fails stops nothing."""
    if not (current.step(run.gate_name(current)) / "candidate.json").is_file():
        return  # refused on dev: nothing to compare
    code = await _execute([sys.executable, "-m", "trainer.report", str(current.directory)], None)
    if code != 0:
        log.warning("no report of run %s (%d); `intentloop report` tries again", current.directory.name, code)


def _record_verdict(section: TrainerSection, name: str, ended: run.Result) -> None:
    """Keep the gate's decision with its evidence, also of a run that is refused and long forgotten."""
    verdicts = section.work.resolve() / forget.VERDICTS
    verdicts.mkdir(parents=True, exist_ok=True)
    step.write_atomically(verdicts / f"{name}.json", msgspec.json.format(msgspec.json.encode(ended.decision)))
