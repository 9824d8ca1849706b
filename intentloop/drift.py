"""How far did a user's behaviour move from what the last inference saw?

Δ = λ1·|ΔH| + λ2·(1 − Jaccard) + λ3·JS over two windows of semantic labels. With ΔH = 0 the score cannot pass λ2 + λ3,
so a clean switch from one category to another never reaches τ = 0.8; the switch rule covers it.
Not here: how states are stored, or what is done about a drift.

Source: RecGPT-Mobile (arXiv 2605.04726), drift score; log base, windows and the switch rule are ours.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

LogBase = Literal["2", "e", "normalised"]


class DriftRule(msgspec.Struct, frozen=True, kw_only=True):
    """Constant for the life of a process and stored with every score.

    `window` and `min_window` count labels. At or below an overlap of `switch_jaccard` the windows name other things.
    """

    entropy_weight: float = 0.4
    jaccard_weight: float = 0.3
    jensen_shannon_weight: float = 0.3
    threshold: float = 0.8
    log_base: LogBase = "e"
    window: int = 12
    min_window: int = 3
    switch_jaccard: float = 0.0


class Drift(msgspec.Struct, frozen=True):
    """A score and its parts; entropies and divergence are in the unit of the rule's log base."""

    total: float
    entropy_change: float
    jaccard_distance: float
    jensen_shannon: float
    switched: bool
    fired: bool


STILL = Drift(0.0, 0.0, 0.0, 0.0, False, False)


def score(before: Sequence[int], after: Sequence[int], rule: DriftRule) -> Drift:
    """How far is the label window `after` from `before`?

    Args:
        before: Labels that the last inference saw, newest last.
        after: Labels now, newest last.
    Returns:
        `STILL` when either window holds fewer than `rule.min_window` labels, since no score means anything there.
    """
    if len(before) < rule.min_window or len(after) < rule.min_window:
        return STILL
    old, new = Counter(before), Counter(after)
    unit = _unit(rule.log_base, len(old | new))
    entropy_change = abs(_entropy(new) - _entropy(old)) / unit
    jaccard_distance = 1.0 - len(old.keys() & new.keys()) / len(old.keys() | new.keys())
    divergence = _jensen_shannon(old, new) / unit
    total = (
        rule.entropy_weight * entropy_change
        + rule.jaccard_weight * jaccard_distance
        + rule.jensen_shannon_weight * divergence
    )
    switched = 1.0 - jaccard_distance <= rule.switch_jaccard
    return Drift(total, entropy_change, jaccard_distance, divergence, switched, switched or total > rule.threshold)


def _unit(base: LogBase, labels: int) -> float:
    """What does one unit of the chosen base measure in bits?"""
    if base == "2":
        return 1.0
    if base == "e":
        return 1.0 / math.log(2.0)
    return math.log2(labels) if labels > 1 else 1.0


def _entropy(counts: Counter[int]) -> float:
    """Shannon entropy in bits; correctly rounded log2 keeps scores on a threshold from flipping."""
    size = counts.total()
    return -math.fsum(count / size * math.log2(count / size) for count in counts.values())


def _jensen_shannon(old: Counter[int], new: Counter[int]) -> float:
    """Jensen-Shannon divergence in bits, in [0, 1]."""
    sizes = old.total(), new.total()
    middle = {label: (old[label] / sizes[0] + new[label] / sizes[1]) / 2 for label in old.keys() | new.keys()}
    mixed = -math.fsum(share * math.log2(share) for share in middle.values())
    return max(0.0, mixed - (_entropy(old) + _entropy(new)) / 2)
