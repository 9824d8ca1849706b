"""May the candidate replace the incumbent? Judged on the same golden samples, both measured in the device engine.

The two models answer the same questions, so the difference is judged in pairs: only samples on which exactly one of
them is right say anything. Not here: measuring (`trainer/`), or what happens afterwards (rollout).

Source: Wilson (1927) for one ratio; Newcombe (1998), method 10, for the difference of paired ratios.
"""

import math
from collections.abc import Sequence

import msgspec

from intentloop.errors import ContractError
from intentloop.release import Interval

Z95 = 1.959963984540054  # two-sided 95 %


class GateRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ratios are in [0, 1]; `max_loss` is how far the lower bound of the paired difference may lie below zero.

    `max_recall_loss` is what a class may surely lose: the upper bound of its paired difference must not lie below. A
    class with fewer than `min_class_samples` golden samples is not judged by its recall.
    """

    min_samples: int = 100
    max_loss: float = 0.02
    min_accuracy: float = 0.5
    min_recall: float = 0.4
    max_recall_loss: float = 0.1
    min_class_samples: int = 20
    max_fault_ratio: float = 0.05
    min_fix_ratio: float = 0.05
    max_artefact_bytes: int = 500_000_000
    max_ttft_p95_ms: float = 1_500.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One golden sample: the true intent, and what the model said (empty: a fault)."""

    sample_id: str
    intent: str
    said: str
    weak: bool = False
    exact: bool = False

    @property
    def right(self) -> bool:
        """Is the intent right? A fault never is."""
        return self.said == self.intent


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """One artefact as the device engine measured it."""

    version: str
    outcomes: tuple[Outcome, ...]
    artefact_bytes: int
    ttft_p95_ms: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision rests on. `gain` is the paired difference of accuracies, all samples and the weak ones."""

    accuracy: Interval
    faults: Interval
    gain_all: Interval | None = None
    gain_weak: Interval | None = None
    fix_ratio: float | None = None


class Release(msgspec.Struct, frozen=True, tag=True):
    """The candidate may go out."""

    reasons: tuple[str, ...]
    evidence: Evidence


class Reject(msgspec.Struct, frozen=True, tag=True):
    """The candidate is worse or breaks a limit."""

    reasons: tuple[str, ...]
    evidence: Evidence


class Inconclusive(msgspec.Struct, frozen=True, tag=True):
    """Nothing is wrong with the candidate, but the golden set cannot tell that it is better."""

    reasons: tuple[str, ...]
    evidence: Evidence


Decision = Release | Reject | Inconclusive


def judge(candidate: Contender, incumbent: Contender | None, rule: GateRule) -> Decision:
    """May the candidate replace the incumbent?

    Limits first (accuracy, recall, faults, size, latency): any broken one rejects. Then the pair: worse rejects, no
    worse and better on all samples or on the weak ones releases, anything else is inconclusive.

    Raises:
        ContractError: the two were not judged on the same samples.
    """
    evidence = _evidence(candidate, incumbent)
    broken = (*_broken_limits(candidate, evidence, rule), *_lost_recall(candidate, incumbent, rule))
    if broken:
        return Reject(broken, evidence)
    if len(candidate.outcomes) < rule.min_samples:
        few = f"{len(candidate.outcomes)} golden samples, at least {rule.min_samples} are needed"
        return Inconclusive((few,), evidence)
    if evidence.gain_all is None:
        return Release(("first model: no incumbent to compare with",), evidence)
    return _compare(evidence.gain_all, evidence, rule)


def wilson(successes: int, samples: int, z: float = Z95) -> Interval:
    """Between which ratios does the truth lie, having seen `successes` of `samples`? 0 of 0 is [0, 1]."""
    if samples == 0:
        return Interval(value=0.0, low=0.0, high=1.0, samples=0)
    ratio, square = successes / samples, z * z
    centre = (ratio + square / (2 * samples)) / (1 + square / samples)
    half = z / (1 + square / samples) * math.sqrt(ratio * (1 - ratio) / samples + square / (4 * samples * samples))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == samples else centre + half
    return Interval(value=ratio, low=low, high=high, samples=samples)


def paired_gain(pairs: Sequence[tuple[bool, bool]], z: float = Z95) -> Interval:
    """By how much is the first of each pair more often right than the second? In [-1, 1].

    Source: Newcombe (1998), Statistics in Medicine 17:2635, method 10 with its continuity-corrected correlation.
    """
    samples = len(pairs)
    both = sum(first and second for first, second in pairs)
    only_first = sum(first and not second for first, second in pairs)
    only_second = sum(second and not first for first, second in pairs)
    neither = samples - both - only_first - only_second
    if samples == 0:
        return Interval(value=0.0, low=-1.0, high=1.0, samples=0)
    one, two = wilson(both + only_first, samples, z), wilson(both + only_second, samples, z)
    phi = _correlation(both, only_first, only_second, neither)
    gain = one.value - two.value
    down_one, up_one = one.value - one.low, one.high - one.value
    down_two, up_two = two.value - two.low, two.high - two.value
    low = gain - math.sqrt(max(0.0, down_one**2 - 2 * phi * down_one * up_two + up_two**2))
    high = gain + math.sqrt(max(0.0, up_one**2 - 2 * phi * up_one * down_two + down_two**2))
    return Interval(value=gain, low=max(-1.0, low), high=min(1.0, high), samples=samples)


def recalls(outcomes: Sequence[Outcome]) -> dict[str, Interval]:
    """Which share of each true class was found?"""
    classes = sorted({outcome.intent for outcome in outcomes})
    return {name: accuracy([outcome for outcome in outcomes if outcome.intent == name]) for name in classes}


def accuracy(outcomes: Sequence[Outcome]) -> Interval:
    """Which share of the intents is right?"""
    return wilson(sum(outcome.right for outcome in outcomes), len(outcomes))


def _evidence(candidate: Contender, incumbent: Contender | None) -> Evidence:
    known = accuracy(candidate.outcomes)
    faults = wilson(sum(not outcome.said for outcome in candidate.outcomes), len(candidate.outcomes))
    if incumbent is None:
        return Evidence(accuracy=known, faults=faults)
    if [outcome.sample_id for outcome in candidate.outcomes] != [outcome.sample_id for outcome in incumbent.outcomes]:
        raise ContractError(
            f"{candidate.version} and {incumbent.version} were judged on different samples "
            f"({len(candidate.outcomes)} and {len(incumbent.outcomes)}); measure both on one golden set"
        )
    pairs = [(new.right, old.right) for new, old in zip(candidate.outcomes, incumbent.outcomes, strict=True)]
    weak = [pair for pair, outcome in zip(pairs, candidate.outcomes, strict=True) if outcome.weak]
    missed = [new for new, old in pairs if not old]
    return Evidence(
        accuracy=known,
        faults=faults,
        gain_all=paired_gain(pairs),
        gain_weak=paired_gain(weak) if weak else None,
        fix_ratio=sum(missed) / len(missed) if missed else None,
    )


def _broken_limits(candidate: Contender, evidence: Evidence, rule: GateRule) -> tuple[str, ...]:
    checks = (
        (evidence.accuracy.value < rule.min_accuracy, f"accuracy {evidence.accuracy.value:.3f} < {rule.min_accuracy}"),
        (evidence.faults.value > rule.max_fault_ratio, f"faults {evidence.faults.value:.3f} > {rule.max_fault_ratio}"),
        (
            candidate.artefact_bytes > rule.max_artefact_bytes,
            f"artefact {candidate.artefact_bytes} bytes > {rule.max_artefact_bytes}",
        ),
        (
            candidate.ttft_p95_ms > rule.max_ttft_p95_ms,
            f"first token after {candidate.ttft_p95_ms:.0f} ms (p95) > {rule.max_ttft_p95_ms:.0f} ms",
        ),
        (
            evidence.fix_ratio is not None and evidence.fix_ratio < rule.min_fix_ratio,
            f"fixes {evidence.fix_ratio or 0:.3f} of the incumbent's errors < {rule.min_fix_ratio}",
        ),
    )
    return tuple(message for broken, message in checks if broken)


def _lost_recall(candidate: Contender, incumbent: Contender | None, rule: GateRule) -> tuple[str, ...]:
    """Which classes are found too rarely, or surely more rarely than before?

    An incumbent that always says the same finds all of that class, so a point or two less there is no loss.
    """
    reasons = []
    for name, now in recalls(candidate.outcomes).items():
        if now.samples < rule.min_class_samples:
            continue
        if now.value < rule.min_recall:
            reasons.append(f"recall of {name} {now.value:.3f} < {rule.min_recall}")
        elif incumbent is not None:
            gain = paired_gain(_pairs(candidate, incumbent, name))
            if gain.high < -rule.max_recall_loss:
                reasons.append(f"recall of {name} fell by {-gain.value:.3f} [{-gain.high:.3f}, {-gain.low:.3f}]")
    return tuple(reasons)


def _pairs(candidate: Contender, incumbent: Contender, intent: str) -> list[tuple[bool, bool]]:
    both = zip(candidate.outcomes, incumbent.outcomes, strict=True)
    return [(new.right, old.right) for new, old in both if new.intent == intent]


def _compare(gain: Interval, evidence: Evidence, rule: GateRule) -> Decision:
    if gain.high < 0:
        return Reject((f"worse than the incumbent by {-gain.value:.3f} [{-gain.high:.3f}, {-gain.low:.3f}]",), evidence)
    better = [
        f"better on {name} by {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], {found.samples} samples"
        for name, found in (("all", gain), ("weak", evidence.gain_weak))
        if found is not None and found.low > 0
    ]
    if better and gain.low >= -rule.max_loss:
        return Release(tuple(better), evidence)
    return Inconclusive((f"gain {gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}] is not outside chance",), evidence)


def _correlation(both: int, only_first: int, only_second: int, neither: int) -> float:
    """How alike are the two? Phi, pulled towards 0 by half the samples when positive, as Newcombe does."""
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    if margins == 0:
        return 0.0
    cross = float(both * neither - only_first * only_second)
    if cross > 0:
        cross = max(0.0, cross - (both + only_first + only_second + neither) / 2)
    return cross / math.sqrt(margins)
