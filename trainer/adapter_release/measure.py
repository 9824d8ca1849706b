"""Measure: every adapter answers the dev set in the engine; the smallest that is as good as the best is chosen.

The incumbent answers it, too. If the dev set shows already that the chosen adapter cannot pass the gate, golden samples
are not spent on it (`reaches`).
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from intentloop import gate
from intentloop.release import Interval
from trainer import step
from trainer.adapter_release import export
from trainer.rule import LineRule

NEEDS = ("freeze", export.NAME)
NAME = "adapter-measure"
CHOICE = "choice.json"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter on the dev set, in the engine beside its base."""

    candidate: export.Candidate
    accuracy: Interval
    contender: gate.Contender


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapter goes on, and what the gate would say of it if dev were golden."""

    candidate: export.Candidate
    rehearsal: gate.Decision
    reaches: bool


def measure(run: step.Run, directory: Path) -> step.Metrics:
    """Score all adapters, choose one and rehearse the gate with it."""
    scores = [
        score(run, candidate, export.engine_directory(run, candidate)) for candidate in export.read_candidates(run)
    ]
    chosen = choose(scores, run.rule.measure.choice_margin)
    incumbent = answers(run, Path(run.spec.incumbent), run.spec.previous)
    choice = rehearse(chosen, incumbent, run.rule)
    (directory / CHOICE).write_bytes(msgspec.json.format(msgspec.json.encode(choice)))
    step.log.info(
        "  %s, %s: %s", chosen.candidate.name, "goes on" if choice.reaches else "stays", choice.rehearsal.reasons
    )
    metrics: step.Metrics = {"chosen": chosen.candidate.name, "reaches": choice.reaches}
    metrics["incumbent"] = gate.accuracy(incumbent.outcomes).value
    for found in scores:
        metrics[found.candidate.name] = {
            "accuracy": found.accuracy.value,
            "low": found.accuracy.low,
            "high": found.accuracy.high,
            "bytes": found.candidate.update_bytes,
        }
    return metrics


def score(run: step.Run, candidate: export.Candidate, directory: Path) -> Score:
    """What does one adapter make of the dev set?"""
    contender = answers(run, directory, candidate.name)
    found = Score(candidate=candidate, accuracy=gate.accuracy(contender.outcomes), contender=contender)
    step.log.info("  %s: accuracy %.3f", candidate.name, found.accuracy.value)
    return found


def answers(run: step.Run, directory: Path, version: str) -> gate.Contender:
    """What does one artefact say to the dev set?"""
    from trainer import dataset, device_run
    from trainer.engine import Engine

    rule = run.rule.measure
    samples = dataset.read(run.step("freeze") / "dev.jsonl")
    engine = Engine(directory, rule.threads)
    replies = [engine.answer(dataset.prompt_text(sample), rule.max_tokens) for sample in samples]
    return gate.Contender(
        version=version,
        outcomes=tuple(device_run.outcome(s, reply) for s, reply in zip(samples, replies, strict=True)),
        artefact_bytes=device_run.artefact_bytes(directory),
        ttft_p95_ms=float(np.percentile([reply.ttft_ms for reply in replies], 95)),
    )


def choose(scores: Sequence[Score], margin: float) -> Score:
    """Which adapter goes on? The one with fewest bytes among those within `margin` of the most accurate."""
    best = max(score.accuracy.value for score in scores)
    near = [score for score in scores if score.accuracy.value >= best - margin]
    return min(near, key=lambda score: (score.candidate.update_bytes, score.candidate.name))


def rehearse(chosen: Score, incumbent: gate.Contender, rule: LineRule) -> Choice:
    """What would the gate say if dev were golden? With as many samples as dev has."""
    few = msgspec.structs.replace(rule.gate, min_samples=1)
    rehearsal = gate.judge(chosen.contender, incumbent, few)
    return Choice(candidate=chosen.candidate, rehearsal=rehearsal, reaches=reaches(rehearsal))


def reaches(rehearsal: gate.Decision) -> bool:
    """Can this adapter still pass the gate?

    Not if it breaks a limit on dev, and not if even the upper bound of its gain, on all samples and on the weak ones,
    is no gain: golden samples would only confirm it.
    """
    if isinstance(rehearsal, gate.Reject):
        return False
    gains = (rehearsal.evidence.gain_all, rehearsal.evidence.gain_weak)
    return any(gain is not None and gain.high > 0 for gain in gains)


def read_choice(run: step.Run) -> Choice:
    """Which adapter did this run choose?"""
    return msgspec.json.decode((run.step(NAME) / CHOICE).read_bytes(), type=Choice)


if __name__ == "__main__":
    step.main(NAME, NEEDS, measure)
