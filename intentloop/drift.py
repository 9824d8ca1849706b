"""How far did a user's behaviour move from what the last inference saw?

Δ = λ1·|ΔH| + λ2·(1 − Jaccard) + λ3·JS over two windows of semantic labels. With ΔH = 0 the score cannot pass λ2 + λ3,
so a clean switch from one category to another never reaches τ = 0.8; the switch rule covers it.
Not here: how states are stored, or what is done about a drift.

Source: RecGPT-Mobile (arXiv 2605.04726), drift score; log base, windows and the switch rule are ours.
"""

import math
from collections.abc import Collection, Sequence
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
        `STILL` when both windows hold the same labels as often, or when either holds fewer than `rule.min_window`
        labels, since no score means anything there.
    """
    if len(before) < rule.min_window or len(after) < rule.min_window:
        return STILL
    old, new = _count(before), _count(after)
    if old == new:
        return STILL
    sizes = len(before), len(after)
    shared = sum(label in old for label in new)
    named = len(old) + len(new) - shared
    unit = _unit(rule.log_base, named)
    entropies = _entropy(old.values(), sizes[0]), _entropy(new.values(), sizes[1])
    entropy_change = abs(entropies[1] - entropies[0]) / unit
    jaccard_distance = 1.0 - shared / named
    divergence = max(0.0, _mixed_entropy(old, new, sizes) - (entropies[0] + entropies[1]) / 2) / unit
    total = (
        rule.entropy_weight * entropy_change
        + rule.jaccard_weight * jaccard_distance
        + rule.jensen_shannon_weight * divergence
    )
    switched = 1.0 - jaccard_distance <= rule.switch_jaccard
    return Drift(total, entropy_change, jaccard_distance, divergence, switched, switched or total > rule.threshold)


def _count(window: Sequence[int]) -> dict[int, int]:
    """How often does each label occur? A plain dict: `Counter` costs twice as much on a dozen labels."""
    counts: dict[int, int] = {}
    for label in window:
        counts[label] = counts.get(label, 0) + 1
    return counts


def _unit(base: LogBase, labels: int) -> float:
    """What does one unit of the chosen base measure in bits?"""
    if base == "2":
        return 1.0
    if base == "e":
        return 1.0 / math.log(2.0)
    return math.log2(labels) if labels > 1 else 1.0


# n * log2(n) for mixtures of two windows of up to 64 labels; correctly rounded log2 keeps ties on a threshold
_N_LOG_N = (0.0, *(n * math.log2(n) for n in range(1, 2 * 64 * 64 + 1)))


def _entropy(counts: Collection[int], size: int) -> float:
    """Shannon entropy in bits of counts that sum to `size`: log2(size) - sum(n * log2(n)) / size."""
    if size < len(_N_LOG_N):
        return math.log2(size) - math.fsum(map(_N_LOG_N.__getitem__, counts)) / size
    return math.log2(size) - math.fsum(n * math.log2(n) for n in counts) / size


def _mixed_entropy(old: dict[int, int], new: dict[int, int], sizes: tuple[int, int]) -> float:
    """Entropy in bits of the even mixture of both windows, in whole numbers: a/n and b/m mix to (am + bn) / 2nm."""
    weights = (1, 1) if sizes[0] == sizes[1] else (sizes[1], sizes[0])
    mixed = {label: count * weights[0] for label, count in old.items()}
    for label, count in new.items():
        mixed[label] = mixed.get(label, 0) + count * weights[1]
    return _entropy(mixed.values(), sizes[0] * weights[0] + sizes[1] * weights[1])
