"""Quantiles in bounded memory and lines with intervals, against numpy, scipy and figures made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from intentloop import sketch
from intentloop.trend import BLOCKS, MIN_RUNS, T95, trend, verdict

VALUES = st.lists(st.floats(0.02, 9e6), min_size=1, max_size=200)


def filled(values: list[float]) -> sketch.Sketch:
    found: sketch.Sketch = {}
    for value in values:
        sketch.add(found, value)
    return found


@given(VALUES, st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_true_one(values: list[float], share: float) -> None:
    expected = float(np.quantile(values, share, method="lower"))
    assert sketch.quantile(filled(values), share) == pytest.approx(expected, rel=sketch.MAX_ERROR + 1e-9)


@given(VALUES, VALUES)
def test_sketches_merge_to_that_of_all_values(one: list[float], other: list[float]) -> None:
    assert sketch.merged(filled(one), filled(other)) == filled(one + other)


def test_a_sketch_stays_small_and_takes_extremes() -> None:
    found = filled([1e-9, *np.geomspace(0.01, 1e7, 20_000), 1e12])
    assert len(found) <= 1050
    assert sketch.count(found) == 20_002
    assert sketch.quantile(found, 1.0) == pytest.approx(1e7, rel=0.02)
    assert sketch.quantile({}, 0.5) is None


def test_the_line_is_that_of_scipy_through_the_blocks_medians() -> None:
    values = [float(value) for value in np.random.default_rng(3).normal(5, 1, 100) + np.arange(100) * 0.02]
    medians = [float(np.median(block)) for block in np.split(np.array(values), BLOCKS)]
    line = stats.linregress(range(BLOCKS), medians)
    found = trend(values)
    assert found is not None
    assert found.change == pytest.approx(line.slope * 9)
    assert found.start == pytest.approx(line.intercept)
    half = stats.t.ppf(0.975, BLOCKS - 2) * line.stderr * 9
    assert (found.low, found.high) == pytest.approx((found.change - half, found.change + half))
    assert pytest.approx(stats.t.ppf(0.975, 8)) == T95


def test_single_slow_runs_do_not_bend_the_line() -> None:
    found = trend([1.0] * 99 + [50.0])
    assert found is not None
    assert (found.change, found.low, found.high, found.runs) == (0.0, 0.0, 0.0, 100)


def test_few_runs_give_no_line() -> None:
    assert trend([1.0] * (MIN_RUNS - 1)) is None


def test_a_growth_is_judged_by_its_whole_interval() -> None:
    assert verdict(0.11, 0.2, 0.1) == "drifts"
    assert verdict(-0.2, 0.09, 0.1) == "steady"
    assert verdict(0.05, 0.2, 0.1) == "unclear"
