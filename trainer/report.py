"""How does this candidate compare with the incumbent, with earlier releases, and with what phones report?

Every run leaves `report.json` and `report.html` in its directory: the fifteen indicators of each version, by prompt
length and under stress, reuse of the system prompt, accuracy with its interval, and one row for each phone model that
reported a version. Nothing is measured here. By hand: `intentloop report`, or `python -m trainer.report --help`.
"""

import argparse
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from intentloop import sketch
from intentloop.adapters.settings import KafkaSection, ProcessSettings
from intentloop.errors import ContractError, UnavailableError
from intentloop.indicators import INDICATORS, Indicator
from intentloop.phone_speed import PhoneTable
from intentloop.release import Interval, StepRecord
from trainer import judge, phones, run, step
from trainer.device_run import DeviceReport
from trainer.indicator_buckets import Bucket
from trainer.prefix_reuse import PrefixReuse
from trainer.settings import TrainerSection
from trainer.stress import Stress

EARLIER = 10  # releases before the incumbent that a report compares with
HERE = "this machine"

log = logging.getLogger("trainer")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One version somewhere. `where` is this machine or a phone model; `values` has what is known of each indicator."""

    version: str
    role: str
    where: str
    samples: int
    values: dict[str, float | None]
    accuracy: Interval | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What of one version does not fit into a row."""

    version: str
    engine: str
    buckets: tuple[Bucket, ...]
    stress: Stress
    prefix: PrefixReuse


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run has to tell. Rows: candidate, incumbent, earlier releases, then phones.

    `created_at_ms` is when the run was asked for: a report can be written again at any time.
    """

    run: str
    decision: str
    reasons: tuple[str, ...]
    indicators: tuple[Indicator, ...]
    rows: tuple[Row, ...]
    details: tuple[Detail, ...]
    steps: tuple[StepRecord, ...]
    phones_odd: int = 0
    phones_resent: int = 0
    created_at_ms: int = 0


class ReportSettings(ProcessSettings):
    """Where runs lie and where phones' telemetry is read."""

    kafka: KafkaSection = KafkaSection()
    trainer: TrainerSection = TrainerSection()


def write(current: step.Run, history: Path, table: PhoneTable) -> Report:
    """Write the report of a run that is at its end; a release's is kept in `history` for those that come after."""
    from trainer import report_page

    found = gather(current, history, table)
    content = msgspec.json.format(msgspec.json.encode(found))
    step.write_atomically(current.directory / "report.json", content)
    step.write_atomically(current.directory / "report.html", report_page.render(found).encode())
    if run.result(current).release is not None:
        history.mkdir(parents=True, exist_ok=True)
        step.write_atomically(history / f"{found.rows[0].version}.json", content)
    return found


def gather(current: step.Run, history: Path, table: PhoneTable) -> Report:
    """Put together what was measured in this run, before it, and on phones."""
    ended = run.result(current)
    own = _measured(current, ended.manifest.version if ended.manifest else "candidate")
    known = {version for version, _, _ in own}
    rows = (
        *(_row(*one) for one in own),
        *_earlier(history, known),
        *_from_phones(table),
    )
    return Report(
        run=current.directory.name,
        decision=type(ended.decision).__name__,
        reasons=ended.decision.reasons,
        indicators=INDICATORS,
        rows=rows,
        details=tuple(_detail(version, found) for version, _, found in own),
        steps=tuple(_steps(current)),
        phones_odd=sum(row.odd for row in table.rows),
        phones_resent=table.resent,
        created_at_ms=current.spec.created_at_ms,
    )


def _measured(current: step.Run, version: str) -> list[tuple[str, str, DeviceReport]]:
    directory = current.step(run.gate_name(current))
    names = ((version, "candidate"), (current.spec.previous, "incumbent"))
    return [
        (name, role, judge.read_report(directory / f"{role}.json"))
        for name, role in names
        if (directory / f"{role}.json").is_file()
    ]


def _row(version: str, role: str, found: DeviceReport) -> Row:
    return Row(
        version=version,
        role=role,
        where=HERE,
        samples=len(found.outcomes),
        values=found.indicators,
        accuracy=found.measured.accuracy_all,
    )


def _earlier(history: Path, known: set[str]) -> Iterator[Row]:
    """The newest releases' own rows, from their reports; measured then, perhaps on another machine."""
    found = []
    for path in sorted(path for path in history.glob("*.json") if path.stem not in known):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Report))
        except msgspec.DecodeError as error:
            log.warning("%s is of another version and left out: %s", path.name, error)
    for kept in sorted(found, key=lambda kept: kept.created_at_ms, reverse=True)[:EARLIER]:
        yield msgspec.structs.replace(kept.rows[0], role="earlier")


def _from_phones(table: PhoneTable) -> Iterator[Row]:
    for row in sorted(table.rows, key=lambda row: (row.version, row.device_model)):
        values = {name: sketch.quantile(counts, 0.5) for name, counts in row.sketches.items()}
        where = row.device_model or "unnamed phone"
        yield Row(version=row.version, role="phones", where=where, samples=row.inferences, values=values)


def _detail(version: str, found: DeviceReport) -> Detail:
    return Detail(
        version=version,
        engine=found.measured.engine,
        buckets=found.buckets,
        stress=found.stress,
        prefix=found.prefix,
    )


def _steps(current: step.Run) -> Iterator[StepRecord]:
    for name in run.MODULES:
        manifest = current.manifest(name)
        if manifest is not None:
            yield StepRecord(name=name, seconds=manifest.seconds, peak_bytes=manifest.peak_bytes)


def _newest(work: Path) -> Path:
    """Which run at its end was asked for last? Directories' own times say when a report was written."""
    runs = [step.Run(path.parent) for path in sorted(work.glob("*/spec.json"))]
    ended = [one for one in runs if run.next_step(one) is None]
    if not ended:
        raise ContractError(f"no run under {work} is at its end; name one that is, or wait for the trainer")
    return max(ended, key=lambda one: one.spec.created_at_ms).directory


def _phones(kafka: KafkaSection, kept: Path, budget_s: float) -> phones.Collected:
    """What phones said, as far as the broker can be read now; a report does not wait for one that is away."""
    if not budget_s:
        return phones.read(kept)
    try:
        return phones.collect(kafka, kept, budget_s)
    except UnavailableError as error:
        log.warning("phones' telemetry cannot be read (%s); the report has what was known", error)
        return phones.read(kept)


def main() -> None:
    """Write the report of a run, after reading on in the phones' telemetry."""
    step.prepare_process()
    logging.basicConfig(level=logging.CRITICAL, format="%(message)s")  # Kafka's client tells every try
    log.setLevel(logging.INFO)
    settings = ReportSettings()
    parser = argparse.ArgumentParser(prog="intentloop report", description="Compare a run with releases and phones.")
    parser.add_argument("run", type=Path, nargs="?", help="a run's directory; the newest if none is named")
    parser.add_argument("--phones-s", type=float, default=20.0, help="read telemetry so long at most; 0 reads none")
    options = parser.parse_args()
    directory = (options.run or _newest(settings.trainer.work)).resolve()
    work = directory.parent
    known = _phones(settings.kafka, work / "phones.json", options.phones_s)
    found = write(step.Run(directory), work / "reports", known.table)
    log.info("%s: %d rows; see %s", found.decision, len(found.rows), os.path.relpath(directory / "report.html"))


if __name__ == "__main__":
    main()
