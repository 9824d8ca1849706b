"""The drift score against scipy, by hand, and at its limits."""

import math
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from intentloop import drift
from intentloop.drift import STILL, DriftRule

WINDOW = st.lists(st.integers(0, 6), min_size=3, max_size=15)
BASES = {"2": 2.0, "e": math.e}


def shares(window: list[int], labels: list[int]) -> list[float]:
    counts = Counter(window)
    return [counts[label] / len(window) for label in labels]


@pytest.mark.parametrize("base", ["2", "e", "normalised"])
@given(WINDOW, WINDOW)
def test_parts_and_sum_are_those_of_scipy(base: drift.LogBase, before: list[int], after: list[int]) -> None:
    labels = sorted({*before, *after})
    number = BASES.get(base, float(max(len(labels), 2)))
    old, new = shares(before, labels), shares(after, labels)
    scored = drift.score(before, after, DriftRule(log_base=base))
    entropy_change = abs(entropy(new, base=number) - entropy(old, base=number))
    divergence = jensenshannon(old, new, base=number) ** 2
    jaccard = len({*before} & {*after}) / len(labels)
    assert scored.entropy_change == pytest.approx(entropy_change, abs=1e-9)
    assert scored.jensen_shannon == pytest.approx(divergence, abs=1e-9)
    assert scored.jaccard_distance == pytest.approx(1 - jaccard)
    assert scored.total == pytest.approx(0.4 * entropy_change + 0.3 * (1 - jaccard) + 0.3 * divergence, abs=1e-9)


def test_by_hand_in_bits() -> None:
    # before {a, a, b, b}: H = 1 bit; after {a, a, a, a}: H = 0. Mixture {3/4, 1/4}: 0.811278 bits; JS = 0.811278 - 0.5
    scored = drift.score([1, 1, 2, 2], [1, 1, 1, 1], DriftRule(log_base="2"))
    assert scored.entropy_change == pytest.approx(1.0)
    assert scored.jaccard_distance == pytest.approx(0.5)
    assert scored.jensen_shannon == pytest.approx(0.311278, abs=1e-6)
    assert scored.total == pytest.approx(0.4 + 0.15 + 0.3 * 0.311278, abs=1e-6)
    assert not scored.fired


@given(WINDOW)
def test_the_same_window_in_any_order_is_no_drift(window: list[int]) -> None:
    scored = drift.score(window, window[::-1], DriftRule())
    assert scored.total == 0.0
    assert not scored.fired


@given(WINDOW, WINDOW)
def test_direction_does_not_matter(before: list[int], after: list[int]) -> None:
    forth, back = drift.score(before, after, DriftRule()), drift.score(after, before, DriftRule())
    assert forth.total == pytest.approx(back.total, abs=1e-12)
    assert forth.switched == back.switched


@pytest.mark.parametrize("base", ["2", "normalised"])
def test_a_clean_switch_never_reaches_the_threshold_and_fires_by_the_switch_rule(base: drift.LogBase) -> None:
    scored = drift.score([1] * 12, [2] * 12, DriftRule(log_base=base))
    assert scored.total == pytest.approx(0.6)
    assert scored.switched
    assert scored.fired
    assert not drift.score([1] * 12, [2] * 12, DriftRule(log_base=base, switch_jaccard=-1.0)).fired


@given(WINDOW, WINDOW)
def test_scores_stay_in_their_range(before: list[int], after: list[int]) -> None:
    assume(len({*before, *after}) > 1)
    scored = drift.score(before, after, DriftRule(log_base="normalised"))
    assert 0.0 <= scored.total <= 1.0
    assert 0.0 <= scored.jensen_shannon <= 1.0


@pytest.mark.parametrize(("before", "after"), [([], [1, 2, 3]), ([1, 2], [1, 2, 3]), ([1, 2, 3], [4, 5])])
def test_short_windows_say_nothing(before: list[int], after: list[int]) -> None:
    assert drift.score(before, after, DriftRule()) == STILL


def test_a_score_on_the_threshold_does_not_fire() -> None:
    total = drift.score([1, 1, 2, 2], [1, 1, 1, 1], DriftRule(log_base="2")).total
    assert not drift.score([1, 1, 2, 2], [1, 1, 1, 1], DriftRule(log_base="2", threshold=total)).fired
    assert drift.score([1, 1, 2, 2], [1, 1, 1, 1], DriftRule(log_base="2", threshold=total - 1e-12)).fired


def test_windows_beyond_the_table_are_scored_as_well() -> None:
    before, after = [number % 7 for number in range(300)], [number % 5 for number in range(1_000)]
    labels = list(range(7))
    scored = drift.score(before, after, DriftRule(log_base="2"))
    assert scored.jensen_shannon == pytest.approx(
        jensenshannon(shares(before, labels), shares(after, labels), base=2) ** 2, abs=1e-9
    )


@given(WINDOW, st.lists(st.integers(0, 6), max_size=40), st.integers(3, 12), st.integers(0, 3))
def test_following_a_window_gives_exactly_the_scores_of_scoring_it_anew(
    reference: list[int], labels: list[int], window: int, start: int
) -> None:
    rule = DriftRule(window=window)
    followed = drift.Tracker(reference, labels[:start], rule)
    for end in range(start + 1, len(labels) + 1):
        assert followed.push(labels[end - 1]) == drift.score(reference, labels[:end][-window:], rule)
