"""What did the demo show? The numbers of one run, their JSON file, the table a person reads, and the judgement.

Nothing here is measured: the numbers come from phones' outbox, the streams' exact counters, the training set and the
manifests of the releases.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from intentloop.release import Interval, Manifest


class StepReport(msgspec.Struct, frozen=True):
    """One step of the model line and its time."""

    name: str
    seconds: float


class ReleaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One released model as the device engine measured it on the golden set."""

    version: str
    accuracy_weak: Interval
    accuracy_all: Interval
    artefact_bytes: int
    quantiser: str
    layers_dropped: tuple[int, ...]
    steps: tuple[StepReport, ...]


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run of the demo says about itself; written as JSON."""

    events_sent: int
    events_accounted: int
    events_lost: int
    samples_picked: int
    samples_labelled: int
    samples_hard: int
    samples_to_people: int
    triggers_emitted: int
    teacher_agreement_ratio: float
    label_cost: float
    releases: tuple[ReleaseReport, ...]
    seconds_total: float
    phones: int
    phones_by_version: dict[str, int]
    inferences: int
    retrain_reason: str
    restarts: dict[str, int]
    broker: str


def release_report(manifest: Manifest) -> ReleaseReport | None:
    """What does this release's manifest say? Nothing, when it was never measured."""
    if manifest.measured is None:
        return None
    return ReleaseReport(
        version=manifest.version,
        accuracy_weak=manifest.measured.accuracy_weak,
        accuracy_all=manifest.measured.accuracy_all,
        artefact_bytes=manifest.artefact_bytes,
        quantiser=manifest.quantiser,
        layers_dropped=manifest.layers_dropped,
        steps=tuple(StepReport(step.name, round(step.seconds, 2)) for step in manifest.steps),
    )


def failures(report: DemoReport) -> list[str]:
    """What went wrong in this run? Empty when the demo shows what it promises."""
    found: list[str] = []
    if report.events_lost:
        found.append(f"{report.events_lost} of {report.events_sent} events are not accounted for, the limit is 0")
    if len(report.releases) < 2:
        found.append(f"{len(report.releases)} release(s), expected 2: the loop did not turn")
        return found
    first, last = report.releases[0], report.releases[-1]
    if last.accuracy_weak.low <= first.accuracy_weak.high:
        found.append(
            f"weak kind: {last.version} {_percent(last.accuracy_weak)} is not above {first.version} "
            f"{_percent(first.accuracy_weak)} by more than both intervals"
        )
    if not report.phones_by_version.get(last.version):
        found.append(f"no phone runs {last.version}")
    return found


def write(report: msgspec.Struct, path: Path) -> None:
    """Keep a report as readable JSON; complete or not there at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    draft.replace(path)


def table(report: DemoReport) -> Table:
    """How does a person read it?"""
    result = Table(title="Intentloop demo (teachers are simulated)", title_justify="left")
    result.add_column("")
    for release in report.releases:
        result.add_column(release.version, justify="right")
    result.add_row("accuracy on device, weak kind", *(_percent(release.accuracy_weak) for release in report.releases))
    result.add_row("accuracy on device, all", *(_percent(release.accuracy_all) for release in report.releases))
    result.add_row("artefact", *(f"{release.artefact_bytes / 1e6:.2f} MB" for release in report.releases))
    result.add_row("quantiser", *(release.quantiser for release in report.releases))
    result.add_row("layers dropped", *(_list(release.layers_dropped) for release in report.releases))
    result.add_row("steps", *(_steps(release.steps) for release in report.releases), end_section=True)
    for name, value in _totals(report):
        result.add_row(name, *[""] * max(0, len(report.releases) - 1), value)
    return result


def _totals(report: DemoReport) -> list[tuple[str, str]]:
    return [
        ("events sent", f"{report.events_sent:,}"),
        ("events accounted for", f"{report.events_accounted:,}"),
        ("events lost", f"{report.events_lost:,}"),
        ("inferences on phones", f"{report.inferences:,}"),
        ("triggers emitted", f"{report.triggers_emitted:,}"),
        ("samples picked", f"{report.samples_picked:,}"),
        ("samples labelled", f"{report.samples_labelled:,}"),
        ("  of them hard", f"{report.samples_hard:,}"),
        ("  of them to people", f"{report.samples_to_people:,}"),
        ("simulated teachers agree", f"{report.teacher_agreement_ratio:.1%}"),
        ("cost of labels", f"¥{report.label_cost:.4f}"),
        ("retrain reason", report.retrain_reason),
        ("phones by version", ", ".join(f"{name}: {count}" for name, count in report.phones_by_version.items())),
        ("restarted processes", _restarts(report.restarts)),
        ("time", f"{report.seconds_total:.0f} s"),
    ]


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"


def _steps(steps: Sequence[StepReport]) -> str:
    return "\n".join(f"{step.name} {step.seconds:.1f} s" for step in steps)


def _restarts(restarts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in restarts.items() if count) or "none"
