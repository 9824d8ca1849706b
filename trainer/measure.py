"""Measure: the candidates race over the dev set in the device engine, and one is chosen.

No rule says that more bits or fewer cuts are safer (fault M16): only what was measured counts. Hopeless candidates
leave early (`search_race.py`), what was measured survives a kill (`search_ledger.py`). Golden samples are not touched
here; they judge the chosen one once, in the gate.

Writes `candidates.json`, the same as a table (`pareto.md`) and a picture (`pareto.svg`), and `choice.json`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from intentloop import gate
from trainer import check, search_race, step
from trainer.quantise import Candidate, read_candidates
from trainer.rule import LineRule
from trainer.search_score import Score

NEEDS = ("freeze", "prune", "heal", "quantise", "export")
CHOICE = "choice.json"

Field = dict[str, Any]  # search_device.Contestant by candidate; that module loads the engine


def measure(run: step.Run, directory: Path) -> step.Findings:
    """Let all candidates race, choose, and write it all down."""
    from trainer import dataset, pareto, plot

    scores = score_all(read_candidates(run), lambda some: contest(run, some), run.rule.gate)
    chosen = choose([score for score in scores if not score.left], run.rule)
    told = pareto.Table(scores=tuple(scores), chosen=chosen.candidate.name, earlier=left_earlier(run))
    (directory / CHOICE).write_bytes(msgspec.json.format(msgspec.json.encode(chosen)))
    (directory / "candidates.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    (directory / "pareto.md").write_text(pareto.markdown(told), encoding="utf-8")
    plot.pareto(told, directory / "pareto.svg")
    metrics: step.Metrics = {"chosen": chosen.candidate.name}
    for found in scores:
        values = msgspec.structs.asdict(found)
        del values["candidate"]
        metrics[found.candidate.name] = values
    return step.Findings(metrics, promises(chosen, scores, len(dataset.read(run.step("freeze") / "dev.jsonl"))))


def promises(chosen: Score, scores: Sequence[Score], dev_samples: int) -> tuple[check.Check, ...]:
    """What must hold of a choice: it and every rival that did not leave for a reason answered the whole dev set."""
    silent = [found for found in scores if not found.left and found.samples < dev_samples]
    return (
        check.at_least("dev samples that the chosen one answered", chosen.samples, dev_samples),
        check.at_most("candidates that neither answered them nor left with a reason", len(silent), 0),
    )


def score_all(
    candidates: Sequence[Candidate], scorer: Callable[[Sequence[Candidate]], list[Score]], limits: gate.GateRule
) -> list[Score]:
    """Score every candidate; fallbacks, where there are any, only when no other keeps the limits."""
    usual = [candidate for candidate in candidates if not candidate.fallback]
    fallbacks = [candidate for candidate in candidates if candidate.fallback]
    scores = scorer(usual) if usual else []
    if fallbacks and not any(keeps_limits(found, limits) for found in scores if not found.left):
        scores += scorer(fallbacks)
    return scores


def contest(run: step.Run, candidates: Sequence[Candidate]) -> list[Score]:
    """Look at each candidate as long as it is not hopeless; who stays has answered the whole dev set."""
    from trainer.search_device import Contestant
    from trainer.search_ledger import Ledger
    from trainer.search_probe import LEDGER

    data, ledger = run.step("freeze") / "dev.jsonl", Ledger(run.directory / LEDGER)
    field = {
        each.name: Contestant(run.step("export") / each.name, data, run.directory / each.reference, run.rule, ledger)
        for each in candidates
    }
    left = _cheap_looks(candidates, field, run.rule)
    staying = [each.name for each in candidates if each.name not in left]
    left |= search_race.race(
        staying,
        search_race.rounds(field[candidates[0].name].samples, run.rule.search.shares),
        lambda name, count: field[name].right(count),
        lambda right: search_race.behind(right, run.rule.measure.choice_margin, run.rule.search.confidence_z),
    )
    return [_score(each, field[each.name], left.get(each.name, "")) for each in candidates]


def _cheap_looks(candidates: Sequence[Candidate], field: Field, rule: LineRule) -> dict[str, str]:
    sizes = {each.name: field[each.name].artefact_bytes for each in candidates}
    left = search_race.too_large(sizes, rule.gate.max_artefact_bytes)
    looks = []
    for each in candidates:
        if each.name not in left:
            entry = field[each.name].look()
            looks.append(
                search_race.Look(
                    name=each.name,
                    family=each.reference,
                    artefact_bytes=sizes[each.name],
                    divergence=entry.divergence,
                    long_ttft_ms=entry.long_ttft_ms,
                )
            )
    left |= search_race.too_slow({look.name: look.long_ttft_ms for look in looks}, rule.gate.max_ttft_p95_ms)
    rest = [look for look in looks if look.name not in left]
    return left | search_race.farther(rest, rule.search.divergence_factor)


def _score(candidate: Candidate, contestant: Any, left: str) -> Score:
    from trainer import search_device

    entry = contestant.entry()
    outcomes = [answered.outcome for answered in entry.answers]
    accuracy, asked = gate.accuracy(outcomes), max(1, len(outcomes))
    p50, p95 = search_device.ttft_ms(entry.answers)
    prefill, decode = search_device.rates(entry.answers)
    found = Score(
        candidate=candidate,
        accuracy=accuracy.value,
        accuracy_low=accuracy.low,
        accuracy_high=accuracy.high,
        exact=sum(outcome.exact for outcome in outcomes) / asked,
        faults=sum(not outcome.said for outcome in outcomes) / asked,
        divergence=entry.divergence,
        artefact_bytes=contestant.artefact_bytes,
        samples=len(outcomes),
        long_ttft_ms=entry.long_ttft_ms or 0.0,
        ttft_p50_ms=p50,
        ttft_p95_ms=p95,
        prefill_tokens_s=prefill,
        decode_tokens_s=decode,
        left=left,
    )
    step.log.info("  %s: %s", candidate.name, left or _in_short(found))
    return found


def _in_short(found: Score) -> str:
    return (
        f"accuracy {found.accuracy:.3f}, exact {found.exact:.3f}, KL {found.nats:.4f}, {found.artefact_bytes:,} bytes"
    )


def keeps_limits(found: Score, rule: gate.GateRule) -> bool:
    """Would the gate bear this candidate's faults and accuracy, if golden samples were like those of the dev set?"""
    return found.faults <= rule.max_fault_ratio and found.accuracy >= rule.min_accuracy


def choose(scores: Sequence[Score], rule: LineRule) -> Score:
    """Which candidate goes to the gate?

    Those that keep the limits on faults and accuracy before others; then the most accurate one; among those within
    `choice_margin` of it the one with fewer layers, since it is faster, then the one nearest to its full-precision
    model, since a dev set cannot rank quantisers. No time decides: the same artefacts give the same choice.
    """
    able = [score for score in scores if keeps_limits(score, rule.gate)] or scores
    best = max(score.accuracy for score in able)
    near = [score for score in able if score.accuracy >= best - rule.measure.choice_margin]
    return min(near, key=lambda score: (-len(score.candidate.dropped), score.nats, score.candidate.name))


def left_earlier(run: step.Run) -> dict[str, str]:
    """Which numbers of layers or ways of healing left before they became candidates, and why?"""
    return {**run.metrics("prune").get("left", {}), **run.metrics("heal").get("left", {})}


def read_choice(run: step.Run) -> Score:
    """Which candidate did this run choose?"""
    return msgspec.json.decode((run.step("measure") / CHOICE).read_bytes(), type=Score)


if __name__ == "__main__":
    step.main("measure", NEEDS, measure)
