"""Rates that rise, fall, jitter and stay: what two detectors together make of seeded streams."""

import math

import numpy as np
import pytest
from river.drift import ADWIN, PageHinkley

from intentloop.adapters import fleet_detectors
from intentloop.adapters.fleet_detectors import DetectorRule

RULE = DetectorRule()


def stream(seed: int, *parts: tuple[int, float]) -> list[int]:
    """(count, rate) one after the other, as zeros and ones."""
    random = np.random.default_rng(seed)
    return [int(value) for count, rate in parts for value in random.random(count) < rate]


@pytest.mark.parametrize("seed", range(20))
def test_a_rate_that_rises_is_found_soon_after_it_rose(seed: int) -> None:
    found = fleet_detectors.rise(stream(seed, (3_000, 0.02), (2_000, 0.15)), RULE)
    assert found is not None
    assert 3_000 <= found.noticed <= 3_800
    assert found.before == pytest.approx(0.02, abs=0.015)
    assert found.after >= found.before + RULE.floor


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_an_unchanged_rate_is_left_alone(rate: float) -> None:
    assert not any(fleet_detectors.rise(stream(seed, (10_000, rate)), RULE) for seed in range(10))


def test_a_rate_that_falls_or_rises_by_a_trifle_is_left_alone() -> None:
    assert fleet_detectors.rise(stream(1, (3_000, 0.2), (3_000, 0.02)), RULE) is None
    assert fleet_detectors.rise(stream(2, (10_000, 0.02), (10_000, 0.04)), RULE) is None


def test_a_rate_that_rises_after_it_fell_is_found() -> None:
    found = fleet_detectors.rise(stream(3, (3_000, 0.2), (3_000, 0.02), (3_000, 0.2)), RULE)
    assert found is not None
    assert found.noticed >= 6_000
    assert found.before < 0.1


def test_one_bad_stretch_and_a_short_history_are_no_rise() -> None:
    assert fleet_detectors.rise([0] * 2_000 + [1] * 8 + [0] * 2_000, RULE) is None
    assert fleet_detectors.rise([0] * 100 + [1] * 100, RULE) is None


def test_a_rise_that_only_one_detector_sees_is_none() -> None:
    # the wild beginning gives Page-Hinkley a threshold that this rise does not reach
    values = stream(5, (300, 0.5), (3_000, 0.02), (1_000, 0.12))
    assert fleet_detectors.adwin_rise(values, RULE) is not None
    assert fleet_detectors.page_hinkley_rise(values, RULE) is None
    assert fleet_detectors.rise(values, RULE) is None


def test_both_detectors_are_rivers_own() -> None:
    values = stream(4, (3_000, 0.02), (2_000, 0.2))
    adwin = ADWIN(delta=RULE.confidence)
    mean = (sum(values[:200]) + 1) / 202
    threshold = math.log(RULE.run_length) * mean * (1 - mean) / (2 * RULE.tolerance)
    hinkley = PageHinkley(200, delta=RULE.tolerance, threshold=threshold, alpha=1.0, mode="up")
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        for name, detector in (("adwin", adwin), ("hinkley", hinkley)):
            detector.update(value)
            if detector.drift_detected:
                first.setdefault(name, index)
    assert fleet_detectors.page_hinkley_rise(values, RULE) == first["hinkley"]
    found = fleet_detectors.adwin_rise(values, RULE)
    assert found is not None
    assert found.noticed >= first["adwin"]
