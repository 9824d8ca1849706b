"""How far did a user's behaviour move from what the last inference saw?

Δ = λ1·|ΔH| + λ2·(1 − Jaccard) + λ3·JS over two windows of semantic labels. With ΔH = 0 the score cannot pass λ2 + λ3,
so a clean switch from one category to another never reaches τ = 0.8; the switch rule covers it.
Not here: how states are stored, or what is done about a drift.

Source: RecGPT-Mobile (arXiv 2605.04726), drift score; log base, windows and the switch rule are ours.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
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
    return Tracker(before, after, rule).score()


class Tracker:
    """Follows one user's window label by label: `push` costs about a third of `score` and gives exactly the same.

    Sums of n * log2(n) are whole numbers (fixed point), so that no path of additions leaves a rounding error behind.

    Args:
        reference: Labels that the last inference saw.
        labels: The window now, newest last; grows up to `rule.window`, then slides.
    """

    def __init__(self, reference: Sequence[int], labels: Sequence[int], rule: DriftRule) -> None:
        self.reference, self.labels, self._rule = tuple(reference), list(labels), rule
        self._counted = False

    def push(self, label: int) -> Drift:
        """How far is the window after this label?"""
        self.labels.append(label)
        if len(self.labels) <= self._rule.window:
            self._counted = False  # sizes changed, and with them the weights of the mixture
            return self.score()
        gone = self.labels.pop(0)
        if self._counted and gone != label:
            self._change(label, 1)
            self._change(gone, -1)
        return self.score()

    def score(self) -> Drift:
        """How far is the window now?"""
        rule = self._rule
        if not self._counted:
            sizes = len(self.reference), len(self.labels)
            if min(sizes) < rule.min_window:
                return STILL
            self._count_all(sizes)
        if self._shared == self._named and self._old == self._new:
            return STILL
        old_entropy, new_log, new_scale, mixed_log, mixed_scale = self._terms
        new_entropy = new_log - self._new_sum / new_scale
        mixed = mixed_log - float(self._mixed_sum) / mixed_scale  # rounded as compiled code rounds it
        bits = unit(rule.log_base, self._named)
        entropy_change = abs(new_entropy - old_entropy) / bits
        jaccard_distance = 1.0 - self._shared / self._named
        divergence = max(0.0, mixed - (old_entropy + new_entropy) / 2) / bits
        total = (
            rule.entropy_weight * entropy_change
            + rule.jaccard_weight * jaccard_distance
            + rule.jensen_shannon_weight * divergence
        )
        switched = 1.0 - jaccard_distance <= rule.switch_jaccard
        return Drift(total, entropy_change, jaccard_distance, divergence, switched, switched or total > rule.threshold)

    def _count_all(self, sizes: tuple[int, int]) -> None:
        """Count both windows anew. Shares a/n and b/m mix to (a * m + b * n) / 2nm: whole numbers again."""
        self._weights = (1, 1) if sizes[0] == sizes[1] else (sizes[1], sizes[0])
        self._old, self._new = _count(self.reference), _count(self.labels)
        mixed = {label: count * self._weights[0] for label, count in self._old.items()}
        for label, count in self._new.items():
            mixed[label] = mixed.get(label, 0) + count * self._weights[1]
        old_sum, self._new_sum, self._mixed_sum = (
            sum(map(n_log_n, counts.values())) for counts in (self._old, self._new, mixed)
        )
        mixed_size = sizes[0] * self._weights[0] + sizes[1] * self._weights[1]
        self._terms = (_entropy(old_sum, sizes[0]), *log_and_scale(sizes[1]), *log_and_scale(mixed_size))
        self._named = len(mixed)
        self._shared = len(self._old) + len(self._new) - len(mixed)
        self._counted = True

    def _change(self, label: int, by: int) -> None:
        """One label more or less in the window: at most its own terms change."""
        old, before = self._old.get(label, 0), self._new.get(label, 0)
        after = before + by
        base = old * self._weights[0]
        self._new_sum += n_log_n(after) - n_log_n(before)
        self._mixed_sum += n_log_n(base + after * self._weights[1]) - n_log_n(base + before * self._weights[1])
        if after and before:
            self._new[label] = after
            return
        if after:
            self._new[label] = after
        else:
            del self._new[label]
        if old:
            self._shared += by
        else:
            self._named += by


def _count(window: Sequence[int]) -> dict[int, int]:
    """How often does each label occur? A plain dict: `Counter` costs twice as much on a dozen labels."""
    counts: dict[int, int] = {}
    for label in window:
        counts[label] = counts.get(label, 0) + 1
    return counts


def unit(base: LogBase, labels: int) -> float:
    """What does one unit of the chosen base measure in bits?"""
    if base == "2":
        return 1.0
    if base == "e":
        return _NAT_BITS
    return math.log2(labels) if labels > 1 else 1.0


_NAT_BITS = 1.0 / math.log(2.0)
FIXED_POINT = 1 << 44  # 13 decimals
_COUNTS = 2 * 65 * 65  # that mixtures of two windows of up to 64 labels can reach


@lru_cache(maxsize=_COUNTS)
def n_log_n(n: int) -> int:
    """n * log2(n) in fixed point; correctly rounded log2 keeps ties on a threshold."""
    return round(n * math.log2(n) * FIXED_POINT) if n else 0


def _entropy(n_log_n_sum: int, size: int) -> float:
    """Shannon entropy in bits of counts that sum to `size`: log2(size) - sum(n * log2(n)) / size."""
    log, scale = log_and_scale(size)
    return log - n_log_n_sum / scale


@lru_cache(maxsize=_COUNTS)
def log_and_scale(size: int) -> tuple[float, int]:
    """What of an entropy depends on the window's size alone?"""
    return math.log2(size), size * FIXED_POINT
