"""Measure: every candidate answers the dev set in the device engine, and one is chosen.

No rule says that more bits or fewer cuts are safer (fault M16): only what was measured counts. Golden samples are not
touched here; they judge the chosen one once, in the gate.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from intentloop import gate
from trainer import step
from trainer.quantise import Candidate, read_candidates
from trainer.rule import MeasureRule

NEEDS = ("freeze", "quantise", "export")
CHOICE = "choice.json"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate on the dev set; `divergence` is the mean KL to its full-precision model, nats a token."""

    candidate: Candidate
    accuracy: float
    exact: float
    faults: float
    divergence: float
    artefact_bytes: int


def measure(run: step.Run, directory: Path) -> step.Metrics:
    """Score all candidates and write the choice."""
    scores = score_all(read_candidates(run), lambda candidate: score(run, candidate), run.rule.gate)
    chosen = choose(scores, run.rule.measure)
    (directory / CHOICE).write_bytes(msgspec.json.format(msgspec.json.encode(chosen)))
    metrics: step.Metrics = {"chosen": chosen.candidate.name}
    for found in scores:
        values = msgspec.structs.asdict(found)
        del values["candidate"]
        metrics[found.candidate.name] = values
    return metrics


def score_all(
    candidates: Sequence[Candidate], scorer: Callable[[Candidate], Score], limits: gate.GateRule
) -> list[Score]:
    """Score every candidate; fallbacks only when no other keeps the limits."""
    scores = [scorer(candidate) for candidate in candidates if not candidate.fallback]
    if not any(keeps_limits(found, limits) for found in scores):
        scores += [scorer(candidate) for candidate in candidates if candidate.fallback]
    return scores


def score(run: step.Run, candidate: Candidate) -> Score:
    """What does one candidate make of the dev set?"""
    from trainer import dataset, device_run
    from trainer.engine import Engine

    rule = run.rule.measure
    samples = dataset.read(run.step("freeze") / "dev.jsonl")
    engine = Engine(run.step("export") / candidate.name, rule.threads)
    outcomes = [
        device_run.outcome(sample, engine.answer(dataset.prompt_text(sample), rule.max_tokens).text)
        for sample in samples
    ]
    found = Score(
        candidate=candidate,
        accuracy=gate.accuracy(outcomes).value,
        exact=sum(outcome.exact for outcome in outcomes) / len(outcomes),
        faults=sum(not outcome.said for outcome in outcomes) / len(outcomes),
        divergence=device_run.divergence(engine, samples[: rule.kl_samples], run.directory / candidate.reference),
        artefact_bytes=device_run.artefact_bytes(run.step("export") / candidate.name),
    )
    step.log.info(
        "  %s: accuracy %.3f, exact %.3f, KL %.4f, %d bytes",
        candidate.name,
        found.accuracy,
        found.exact,
        found.divergence,
        found.artefact_bytes,
    )
    return found


def keeps_limits(found: Score, rule: gate.GateRule) -> bool:
    """Would the gate bear this candidate's faults and accuracy, if golden samples were like those of the dev set?"""
    return found.faults <= rule.max_fault_ratio and found.accuracy >= rule.min_accuracy


def choose(scores: Sequence[Score], rule: MeasureRule) -> Score:
    """Which candidate goes to the gate?

    The most accurate one; among those within `rule.choice_margin` of it the one with fewer layers, since it is faster,
    then the one nearest to its full-precision model, since a dev set cannot rank quantisers.
    """
    best = max(score.accuracy for score in scores)
    near = [score for score in scores if score.accuracy >= best - rule.choice_margin]
    return min(near, key=lambda score: (-len(score.candidate.dropped), score.divergence, score.candidate.name))


def read_choice(run: step.Run) -> Score:
    """Which candidate did this run choose?"""
    return msgspec.json.decode((run.step("measure") / CHOICE).read_bytes(), type=Score)


if __name__ == "__main__":
    step.main("measure", NEEDS, measure)
