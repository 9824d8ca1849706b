"""Mixes: the test against scipy, what it may cost in false alarms, and what it must not miss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from intentloop import fleet_drift
from intentloop.events import SequenceItem
from intentloop.fleet_drift import FleetRule, RateBlocks
from tests.unit.core_workers.samples import labelled, picked

RULE = FleetRule()
COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 400), min_size=2, max_size=8)


@given(st.floats(0.001, 400.0), st.integers(1, 60))
def test_the_tail_of_chi_square_is_that_of_scipy(statistic: float, freedom: int) -> None:
    expected = float(stats.chi2.sf(statistic, freedom))
    assert fleet_drift.chi_square_tail(statistic, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@given(COUNTS, COUNTS)
def test_the_mix_test_is_the_g_test_of_scipy(before: dict[str, int], after: dict[str, int]) -> None:
    found = fleet_drift.mix_test(before, after, min_expected=0.0)
    names = sorted({*before, *after})
    table = [[side.get(name, 0) for name in names] for side in (before, after)]
    expected = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood")
    assert found.statistic == pytest.approx(float(expected.statistic), abs=1e-8)
    assert (found.freedom, found.before, found.after) == (expected.dof, sum(before.values()), sum(after.values()))
    assert found.p_value == pytest.approx(float(expected.pvalue), abs=1e-9)


def test_rare_cells_are_taken_together() -> None:
    before, after = {"a": 500, "b": 480, "x": 3, "y": 4, "z": 1}, {"a": 50, "b": 48, "x": 1, "w": 1}
    found = fleet_drift.mix_test(before, after)
    assert found.freedom == 2  # a, b, and the rest: 988 + 100 samples expect fewer than 5 of any other
    expected = stats.chi2_contingency([[500, 480, 8], [50, 48, 2]], correction=False, lambda_="log-likelihood")
    assert found.statistic == pytest.approx(float(expected.statistic))


@pytest.mark.parametrize(("before", "after"), [({}, {"a": 5}), ({"a": 5}, {}), ({}, {}), ({"a": 9}, {"a": 7})])
def test_nothing_to_compare_is_no_drift(before: dict[str, int], after: dict[str, int]) -> None:
    found = fleet_drift.mix_test(before, after)
    assert (found.p_value, found.distance) == (1.0, 0.0)


def test_all_looks_together_spend_no_more_than_alpha() -> None:
    spent = sum(fleet_drift.alpha_at(look, 0.01) for look in range(1, 100_001))
    assert 0.00999 < spent < 0.01


def test_a_large_fleet_is_not_called_drifted_for_a_trifle_nor_a_small_one_for_a_chance() -> None:
    trifle = fleet_drift.mix_test({"a": 70_000, "b": 30_000}, {"a": 68_000, "b": 32_000})
    assert trifle.p_value < 1e-15
    assert not fleet_drift.is_unlike(trifle, 1, RULE.alpha, RULE.intent_floor)
    chance = fleet_drift.mix_test({"a": 7, "b": 3}, {"a": 4, "b": 6})
    assert chance.distance == pytest.approx(0.3)
    assert not fleet_drift.is_unlike(chance, 1, RULE.alpha, RULE.intent_floor)
    real = fleet_drift.mix_test({"a": 700, "b": 300}, {"a": 350, "b": 150 + 200})
    assert fleet_drift.is_unlike(real, 1_000, RULE.alpha, RULE.intent_floor)


def test_an_unchanged_mix_is_hardly_ever_called_unlike() -> None:
    random = np.random.default_rng(20_261_130)
    shares, names = (0.78, 0.15, 0.07), ("browse", "hesitate", "scene")
    alarms = 0
    for _ in range(2_000):
        before, after = (
            dict(zip(names, map(int, random.multinomial(size, shares)), strict=True)) for size in (100, 200)
        )
        alarms += fleet_drift.is_unlike(fleet_drift.mix_test(before, after), 1, alpha=0.05, floor=0.0)
    # the first look spends α / 2 = 2.5 % of 2,000 = 50; three standard deviations are 21
    assert 29 <= alarms <= 71


def test_a_category_counts_once_an_inference_by_its_newest_item() -> None:
    items = [SequenceItem(action="item_view", category=category) for category in ("食品.零食.坚果", "户外.露营.帐篷")]
    search = SequenceItem(action="search", title="帐篷")
    assert fleet_drift.category_bucket([*items, search]) == fleet_drift.category_bucket([items[1]])
    assert fleet_drift.category_bucket([*items, search]) != fleet_drift.category_bucket([items[0]])
    assert fleet_drift.category_bucket([search]) == ""


def test_the_snapshots_mix_is_that_of_its_random_share() -> None:
    chance = [labelled(number) for number in range(100)]
    hard = [labelled(number, sample=picked(number, random=False), intent="场景购物") for number in range(100, 400)]
    found = fleet_drift.snapshot_baseline([*chance, *hard], RULE)
    assert found is not None
    assert (found.intents, found.source) == ({"比价犹豫": 100}, "snapshot")
    assert sum(found.categories.values()) == 100
    assert fleet_drift.snapshot_baseline(chance[:99] + hard, RULE) is None


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), max_size=30), st.integers(1, 60))
def test_blocks_of_a_rate_lose_nothing(parts: list[tuple[int, float]], size: int) -> None:
    blocks, bad = RateBlocks(), 0
    for count, share in parts:
        bad += round(count * share)
        blocks = fleet_drift.add_to_rate(blocks, count, round(count * share), size)
    assert blocks.total * size + blocks.waiting == sum(count for count, _ in parts)
    assert blocks.waiting < size
    if blocks.total <= fleet_drift.HISTORY_BLOCKS:
        assert round(sum(blocks.means) * size) + blocks.waiting_bad == bad
    assert all(0.0 <= mean <= 1.0 for mean in blocks.means)


def test_the_evidence_names_what_moved_most() -> None:
    before, after = fleet_drift.shares({"a": 78, "b": 15, "c": 7}), fleet_drift.shares({"a": 60, "b": 15, "c": 25})
    assert fleet_drift.largest_moves(before, after, 2) == "a 78.0% → 60.0%, c 7.0% → 25.0%"
