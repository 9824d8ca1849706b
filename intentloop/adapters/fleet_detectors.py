"""Did a rate rise, and where? river's ADWIN and Page-Hinkley over the zeros and ones of one rate.

Both must agree. ADWIN finds the cut and hardly ever errs, but it is slow where a change is small; Page-Hinkley sums up
small rises and needs a threshold, which follows here from the rate's own variance. Detectors run anew over what is
remembered at each look (0.3 µs a value), so that nothing but numbers survives a crash. Not for mixes
(`fleet_drift.mix_test`).

Source: Bifet & Gavaldà 2007 (ADWIN); Page 1954. Wald's approximation of a one-sided test's run length, e^(2δλ/σ²).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from river.drift import ADWIN, PageHinkley

RECENT = 500  # values that tell what a rate is now; one that rises slowly is measured at its end


class DetectorRule(NamedTuple):
    """`confidence` is ADWIN's δ. Page-Hinkley ignores rises up to `tolerance`, and on an unchanged rate, with the
    variance of its first `burn_in` values, errs once in about `run_length` of them. A smaller rise than `floor` does
    not matter.
    """

    confidence: float = 0.002
    tolerance: float = 0.02
    run_length: float = 1_000_000.0
    burn_in: int = 200
    floor: float = 0.05


class Rise(NamedTuple):
    """A rate rose at value `cut`, noticed at value `noticed` (both from 0), from `before` to `after`."""

    cut: int
    noticed: int
    before: float
    after: float


def rise(values: Sequence[int], rule: DetectorRule) -> Rise | None:
    """Did this rate of zeros and ones rise for good? Both detectors must have fired, and the rise must matter."""
    if len(values) <= rule.burn_in:
        return None
    hinkley = page_hinkley_rise(values, rule)
    adwin = adwin_rise(values, rule) if hinkley is not None else None
    return adwin._replace(noticed=max(adwin.noticed, hinkley or 0)) if adwin else None


def adwin_rise(values: Sequence[int], rule: DetectorRule) -> Rise | None:
    """When has what ADWIN calls a change raised the mean by `floor` or more, and where was the change?

    ADWIN begins anew after each change, so a rise that seems small at first is measured again as values come in.
    """
    detector = ADWIN(delta=rule.confidence)
    sums = np.concatenate([[0], np.cumsum(values)])
    start = cut = 0  # of the past that is compared; of what came after it, 0 for nothing yet
    for index, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            cut = start + _change_point(values[start : index + 1])
            if _mean(sums, cut, index + 1) < _mean(sums, start, cut):
                start, cut = cut, 0
        if cut:
            before, after = _mean(sums, start, cut), _mean(sums, max(cut, index + 1 - RECENT), index + 1)
            if after - before >= rule.floor:
                return Rise(cut, index, before, after)
    return None


def _mean(sums: np.ndarray[Any, Any], start: int, end: int) -> float:
    return float(sums[end] - sums[start]) / (end - start)


def _change_point(values: Sequence[int]) -> int:
    """Before which value did the mean most likely change? The likelihood ratio's maximum; at least one lies before."""
    total = len(values)
    steps = np.arange(1, total)
    excess = np.cumsum(values[:-1]) - steps * (sum(values) / total)
    return int(np.argmax(np.abs(excess) / np.sqrt(steps * (total - steps)))) + 1


def page_hinkley_rise(values: Sequence[int], rule: DetectorRule) -> int | None:
    """At which value has Page-Hinkley summed up enough?"""
    variance = _variance(values[: rule.burn_in])
    detector = PageHinkley(
        min_instances=rule.burn_in,
        delta=rule.tolerance,
        threshold=math.log(rule.run_length) * variance / (2 * rule.tolerance),
        alpha=1.0,
        mode="up",
    )
    for index, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            return index
    return None


def _variance(values: Sequence[int]) -> float:
    """Of one value, with one more bad and one more good one: so that a first fault is no alarm."""
    mean = (sum(values) + 1) / (len(values) + 2)
    return mean * (1 - mean)
