"""How does the loop stand? One screen: topics, queues, training set, fleets, release, the last decision and verdict.

Lag is counted by reading what lies behind the stored offsets: end offsets are not asked for, since the embedded
broker's are wrong. Everything else comes from exact counters in Redis.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from intentloop import fleet_drift, fleet_state
from intentloop.adapters.fact_reader import FactReader
from intentloop.adapters.fleet_store import FleetStore
from intentloop.adapters.jobs import JobQueue, QueueCounts, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.people import PeopleQueue
from intentloop.adapters.redis_client import TRANSIENT, connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.settings import BlobSection, KafkaSection, ProcessSettings, RedisSection
from intentloop.adapters.state_store import NO_WATERMARK, StateStore, read_counts
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import ConfigurationError, IntentloopError
from intentloop.fleet_state import FleetState
from intentloop.release import Manifest
from intentloop.retrain import RunVerdict
from intentloop.topics import TELEMETRY, Topic
from intentloop.training_set import TrainingCounts

LOOK_S = 1.0  # how long records behind the watermark are looked for
POLL_MS = 200
ENDS = ("applied", "inferences", "skipped", "late", "quarantined", "rejected")


class StatusSettings(ProcessSettings):
    """Where the system is."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    blobs: BlobSection = BlobSection()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `behind` is the number of records by topic that nobody has worked on yet."""

    counts: dict[str, int]
    behind: dict[str, int]
    queues: dict[str, QueueCounts]
    training: TrainingCounts
    manifests: tuple[Manifest, ...]
    current: str
    decision: dict[str, Any]
    requests: tuple[str, ...]
    verdicts: tuple[RunVerdict, ...] = ()
    fleets: dict[str, FleetState] = {}


def status(
    settings: Annotated[
        Path | None, typer.Option(help="settings file; default INTENTLOOP_SETTINGS_FILE, then the newest under var/")
    ] = None,
) -> None:
    """Show on one screen how the loop stands."""
    console = Console()
    chosen = settings or _newest()
    if chosen is not None:
        os.environ["INTENTLOOP_SETTINGS_FILE"] = str(chosen)
    try:
        console.print(render(asyncio.run(find(StatusSettings()))))
    except (IntentloopError, *TRANSIENT) as error:
        console.print(f"[bold red]no status:[/bold red] {error}", highlight=False)
        raise typer.Exit(1) from None


async def find(settings: StatusSettings) -> Status:
    """Look at everything once.

    Raises:
        ConfigurationError: nothing answers where the settings point.
    """
    redis = connect(settings.redis)
    try:
        await redis.ping()
        return await _find(settings, redis)
    except TRANSIENT as error:
        raise ConfigurationError(f"no Redis answers at the configured address: {error}; is the system up?") from error
    finally:
        await redis.aclose()


async def _find(settings: StatusSettings, redis: Any) -> Status:
    keys = Keys(settings.redis.prefix)
    registry = Registry(redis, keys, settings.blobs.root)
    rollout = await registry.current()
    versions = await registry.versions()
    behind = await _behind(settings, StateStore(redis, keys, 86_400))
    decision = await redis.get(keys.decision)
    return Status(
        counts=await read_counts(redis, keys),
        behind={TELEMETRY.name: behind},
        queues={
            "label": await JobQueue(redis, keys, "label", QueueRule()).counts(),
            "train": await JobQueue(redis, keys, "train", QueueRule()).counts(),
            "people": await PeopleQueue(redis, keys).counts(),
        },
        training=await TrainingStore(redis, keys).counts(),
        manifests=tuple([await registry.manifest(version) for version in versions]),
        current=rollout.version if rollout else "",
        decision=msgspec.json.decode(decision) if decision else {},
        requests=tuple(entry.request.reason for entry in await RetrainLog(redis, keys).entries()),
        verdicts=tuple((await TrainingStore(redis, keys).verdicts()).values()),
        fleets=await FleetStore(redis, keys).states(),
    )


async def _behind(settings: StatusSettings, store: StateStore) -> int:
    """How many records of phones are not applied yet? Newest offsets, less the watermarks after that."""
    partitions = range(TELEMETRY.partitions)
    offsets = {partition: mark + 1 for partition, mark in (await store.watermarks(partitions)).items()}
    newest = await asyncio.to_thread(newest_offsets, settings.kafka, TELEMETRY, offsets)
    marks = await store.watermarks(partitions)
    return sum(max(0, offset - max(NO_WATERMARK, marks[partition])) for partition, offset in newest.items())


def newest_offsets(kafka: KafkaSection, topic: Topic, offsets: dict[int, int]) -> dict[int, int]:
    """Which is the newest record of each partition? The broker's word, or what can be read within `LOOK_S` if more."""
    reader = FactReader(kafka, topic, offsets)
    deadline = time.monotonic() + LOOK_S
    try:
        found = reader.newest()
        while time.monotonic() < deadline:
            for record in reader.poll(POLL_MS):
                found[record.partition] = max(record.offset, found.get(record.partition, -1))
        return found
    finally:
        reader.close()


def render(found: Status) -> Group:
    """How does a person read it?"""
    return Group(_topics(found), _queues(found), _training(found), _fleets(found), _releases(found))


def _topics(found: Status) -> Table:
    counts = found.counts
    events = sum(counts.get(name, 0) for name in ENDS)
    table = Table("topic", "facts", "behind", "what became of them", title="Topics", title_justify="left")
    behind = found.behind.get(TELEMETRY.name, 0)
    ends = ", ".join(f"{name} {counts[name]:,}" for name in (*ENDS, "duplicates") if counts.get(name))
    table.add_row(
        TELEMETRY.name, f"{counts.get('records', 0):,}", f"{behind:,}", f"{events:,} events: {ends or 'none yet'}"
    )
    table.add_row("stream.intent-drifted.v1", f"{counts.get('drifts', 0):,}", "", "drifts")
    table.add_row("stream.intent-triggered.v1", f"{counts.get('triggers', 0):,}", "", "triggers")
    waiting = max(0, counts.get("picked", 0) - found.queues["label"].done - found.queues["label"].buried)
    table.add_row("stream.sample-picked.v1", f"{counts.get('picked', 0):,}", f"{waiting:,}", "behind: not labelled yet")
    table.add_row("label.sample-labelled.v1", f"{found.training.labelled:,}", "", _pairs(found.training.outcomes))
    table.add_row(
        "loop.retrain-requested.v1", f"{len(found.requests):,}", "", found.requests[-1] if found.requests else ""
    )
    table.add_row("loop.model-released.v1", f"{len(found.manifests):,}", "", found.current)
    return table


def _queues(found: Status) -> Table:
    table = Table("queue", "waiting", "running", "done", "buried", title="Queues", title_justify="left")
    for name, counts in found.queues.items():
        numbers = (counts.waiting, counts.running, counts.done, counts.buried)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    return table


def _training(found: Status) -> Table:
    training = found.training
    table = Table(title="Training set", title_justify="left", show_header=False)
    table.add_row("samples", f"{training.samples:,} ({_pairs(training.per_class)})")
    table.add_row("hard", f"{training.hard:,}, {training.hard_new:,} of them new to the current release")
    table.add_row("golden set", f"{training.golden:,}")
    agreement = "no votes yet" if training.agreement_ratio is None else f"{training.agreement_ratio:.1%}"
    table.add_row("teachers agree", f"{agreement} of {training.both_voted:,}")
    table.add_row("cost", f"¥{training.cost_yuan:.4f}")
    return table


def _fleets(found: Status) -> Table:
    """What do the phones of each version say, and do they still meet the world that it learnt from?"""
    table = Table("version", "answers", "intents", "faults", "drift", title="Fleets", title_justify="left")
    for version in [manifest.version for manifest in found.manifests[-3:]] or [found.current or "none yet"]:
        totals = fleet_state.version_totals(found.counts, version)
        said = {name.removeprefix("said:"): count for name, count in totals.items() if name.startswith("said:")}
        faults = sum(count for name, count in totals.items() if name.startswith("fault:"))
        answers = sum(said.values()) + faults
        mix = ", ".join(f"{name} {share:.1%}" for name, share in sorted(fleet_drift.shares(said).items()))
        rate = f"{faults / answers:.1%}" if answers else ""
        table.add_row(version, f"{answers:,}", mix or "none yet", rate, _drift(found.fleets.get(version)))
    return table


def _drift(fleet: FleetState | None) -> str:
    if fleet is None:
        return "not looked at yet"
    if fleet.stated:
        return f"[bold red]drifted[/bold red]: {', '.join(fleet.stated)}"
    if not fleet.looks:
        return "none; no window is full yet"
    unlike = [f"{signal} in {streak}" for signal, streak in sorted(fleet.streaks.items()) if streak > 0]
    return f"none in {fleet.looks} looks" + (f"; unlike in a row: {', '.join(unlike)}" if unlike else "")


def _releases(found: Status) -> Table:
    table = Table(title="Release and last decision", title_justify="left", show_header=False)
    for manifest in found.manifests[-3:]:
        measured = manifest.measured
        told = (
            f"weak kind {measured.accuracy_weak.value:.1%}, all {measured.accuracy_all.value:.1%}" if measured else ""
        )
        mark = " (current)" if manifest.version == found.current else ""
        table.add_row(f"{manifest.version}{mark}", f"{told}; {manifest.quantiser}; {manifest.reason}")
    if not found.manifests:
        table.add_row("release", "none yet")
    kind, reason = found.decision.get("kind", "none yet"), found.decision.get("reason", "")
    table.add_row("retrain decision", f"{kind}: {reason}" if reason else kind)
    for verdict in found.verdicts[-1:]:
        made = f" of {verdict.release}" if verdict.release else ""
        table.add_row("last verdict of the gate", f"{verdict.kind}{made}: {escape('; '.join(verdict.reasons))}")
    if not found.verdicts:
        table.add_row("last verdict of the gate", "none yet")
    return table


def _pairs(counts: Any) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none yet"


def _newest() -> Path | None:
    """The settings file of what was started last here, unless the environment names one."""
    if os.environ.get("INTENTLOOP_SETTINGS_FILE"):
        return None
    found = sorted(Path("var").glob("*/settings.toml"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
