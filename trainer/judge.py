"""Gate: the chosen candidate and the incumbent answer the golden set, once, and `intentloop.gate` decides.

Both are measured in the device engine, each in a fresh process of the same kind, on the same bytes.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from intentloop import gate
from trainer import check, device_run, measure, step
from trainer.rule import MeasureRule

NEEDS = ("freeze", "export", "measure")
DECISION = "decision.json"
NAME = "gate"


def judge(run: step.Run, directory: Path) -> step.Findings:
    """Judge the candidate that was chosen on dev."""
    metrics = decide(run, directory, run.step("export") / measure.read_choice(run).candidate.name)
    exported = run.manifest("export")
    assert exported is not None
    return step.Findings(metrics, promises(directory, exported.versions["mnn"]))


def decide(run: step.Run, directory: Path, artefact: Path) -> step.Metrics:
    """Write `candidate.json`, `incumbent.json` if there is one, and `decision.json`."""
    golden = run.step("freeze") / "golden.jsonl"
    mine = run_on_device(artefact, golden, run.rule.measure, directory / "candidate.json")
    theirs = None
    if run.spec.incumbent:
        incumbent = Path(run.spec.incumbent)
        theirs = run_on_device(incumbent, golden, run.rule.measure, directory / "incumbent.json")
    old = contender(run.spec.previous, theirs) if theirs else None
    decision = gate.judge(contender("candidate", mine), old, run.rule.gate)
    (directory / DECISION).write_bytes(msgspec.json.format(msgspec.json.encode(decision)))
    for reason in decision.reasons:
        step.log.info("  %s: %s", type(decision).__name__, reason)
    metrics: step.Metrics = {"decision": type(decision).__name__, "reason": "; ".join(decision.reasons)}
    for name, found in (("candidate", mine), ("incumbent", theirs)):
        if found is not None:
            metrics[f"{name}_accuracy"] = found.measured.accuracy_all.value
            metrics[f"{name}_accuracy_weak"] = found.measured.accuracy_weak.value
            metrics[f"{name}_stable"] = int(found.stable)
            metrics[f"{name}_unended"] = found.unended
    return metrics


def promises(directory: Path, exported_with: str) -> tuple[check.Check, ...]:
    """What must hold of a judgement: the same engine exported and ran, and both contenders answered the same samples.

    An artefact whose converter and engine differ in age may be fine here and speak garbage on phones (fault M14).
    """
    paths = [directory / f"{name}.json" for name in ("candidate", "incumbent")]
    found = [read_report(path) for path in paths if path.is_file()]
    asked = [[outcome.sample_id for outcome in report.outcomes] for report in found]
    engines = {f"MNN {exported_with}", *(report.measured.engine for report in found)}
    return (
        check.at_most("engines beside the exporting one", len(engines) - 1, 0),
        check.at_most(
            "golden sets beside the candidate's", len({report.measured.dataset_sha256 for report in found}) - 1, 0
        ),
        check.at_most("candidate's answers that think", found[0].thinking, 0),
        check.at_most("contenders that were asked other samples", sum(ids != asked[0] for ids in asked), 0),
    )


def run_on_device(artefact: Path, data: Path, rule: MeasureRule, target: Path) -> device_run.DeviceReport:
    """Measure one artefact in a process of its own."""
    target = target.resolve()
    rule_file = target.with_name("measure-rule.json")
    rule_file.write_bytes(msgspec.json.encode(rule))
    command = [sys.executable, "-m", "trainer.device_run"]
    subprocess.run([*command, str(artefact), str(data), str(rule_file), str(target)], check=True)
    return read_report(target)


def read_report(path: Path) -> device_run.DeviceReport:
    """Read what `trainer.device_run` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=device_run.DeviceReport)


def contender(version: str, report: device_run.DeviceReport) -> gate.Contender:
    """What of a report does the gate weigh?"""
    return gate.Contender(
        version=version,
        outcomes=report.outcomes,
        artefact_bytes=report.measured.artefact_bytes,
        ttft_p95_ms=report.measured.ttft_p95_ms,
    )


def read_decision(run: step.Run, name: str = NAME) -> gate.Decision:
    """What did the gate decide?"""
    return msgspec.json.decode((run.step(name) / DECISION).read_bytes(), type=gate.Decision)


if __name__ == "__main__":
    step.main(NAME, NEEDS, judge)
