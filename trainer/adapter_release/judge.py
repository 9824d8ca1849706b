"""Gate: the chosen adapter beside its base against the incumbent on the golden set, once, if dev left it a chance."""

from pathlib import Path

import msgspec

from intentloop import gate
from trainer import judge as full_judge
from trainer import step
from trainer.adapter_release import export, measure

NEEDS = ("freeze", export.NAME, measure.NAME)
NAME = "adapter-gate"


def judge(run: step.Run, directory: Path) -> step.Metrics | step.Findings:
    """Write `decision.json`; without a chance on dev it is a refusal, and golden samples are not read."""
    choice = measure.read_choice(run)
    if choice.reaches:
        metrics = full_judge.decide(run, directory, export.engine_directory(run, choice.candidate))
        exported = run.manifest(export.NAME)
        assert exported is not None
        checks = full_judge.promises(directory, exported.versions["mnn"])
        return step.Findings({**metrics, "judged_on": "golden"}, checks)
    decision = refuse(choice)
    (directory / full_judge.DECISION).write_bytes(msgspec.json.format(msgspec.json.encode(decision)))
    return {"decision": type(decision).__name__, "reason": "; ".join(decision.reasons), "judged_on": "dev"}


def refuse(choice: measure.Choice) -> gate.Reject:
    """What is said of an adapter that dev leaves no chance?"""
    reasons = choice.rehearsal.reasons
    return gate.Reject(tuple(f"on dev, golden untouched: {reason}" for reason in reasons), choice.rehearsal.evidence)


def refused_on_golden(run: step.Run) -> tuple[str, ...]:
    """Why did golden samples refuse this run's adapter? Empty if they did not, left it open, or were not asked."""
    if run.spec.kind != "adapter" or run.metrics(NAME)["judged_on"] != "golden":
        return ()
    decision = full_judge.read_decision(run, NAME)
    return decision.reasons if isinstance(decision, gate.Reject) else ()


def falls_back(run: step.Run) -> bool:
    """Does this run go on as a full one? In `auto`, when no adapter had a chance and golden is untouched."""
    return run.rule.adapter.release_kind == "auto" and run.metrics(NAME)["judged_on"] == "dev"


if __name__ == "__main__":
    step.main(NAME, NEEDS, judge)
