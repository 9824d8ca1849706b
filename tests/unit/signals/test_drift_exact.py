"""Drift while it happens: the followed window against the definition by scipy, and what the emitted facts carry."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from intentloop.drift import Drift, DriftRule, LogBase, Tracker
from intentloop.facts import DriftScored
from intentloop.fold import Folded, FoldRule
from intentloop.picks import PickRule
from tests.unit.core_streams.make import NOW_MS, PHONE_CASE, TENT, envelope, inference, run, view

BASES: dict[str, float] = {"2": 2.0, "e": math.e}
WINDOWS = (3, 5, 8, 12, 15, 40, 64)
LABELS = st.integers(0, 9)
LONG_MS = 86_400_000


def by_definition(before: Sequence[int], after: Sequence[int], base: LogBase) -> tuple[float, float, float]:
    """|ΔH|, 1 - Jaccard and the Jensen-Shannon divergence, all from scipy and sets."""
    labels = sorted({*before, *after})
    number = BASES.get(base, float(max(2, len(labels))))
    old, new = ([Counter(window)[label] / len(window) for label in labels] for window in (before, after))
    overlap = len({*before} & {*after}) / len(labels)
    change = abs(float(entropy(new, base=number)) - float(entropy(old, base=number)))
    return change, 1 - overlap, float(jensenshannon(old, new, base=number)) ** 2


def assert_defined(scored: Drift, parts: tuple[float, float, float], rule: DriftRule) -> None:
    found = scored.entropy_change, scored.jaccard_distance, scored.jensen_shannon
    assert found == pytest.approx(parts, abs=1e-9)
    total = sum(
        weight * part
        for weight, part in zip(
            (rule.entropy_weight, rule.jaccard_weight, rule.jensen_shannon_weight), parts, strict=True
        )
    )
    assert scored.total == pytest.approx(total, abs=1e-9)
    assert scored.switched == (parts[1] == 1.0)


@pytest.mark.parametrize("base", ["2", "e", "normalised"])
@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_followed_window_scores_as_the_definition_at_every_step(
    base: LogBase, window: int, data: st.DataObject
) -> None:
    reference = data.draw(st.lists(LABELS, min_size=3, max_size=window))
    stream = data.draw(st.lists(LABELS, min_size=3, max_size=2 * window))
    rule = DriftRule(log_base=base, window=window)
    tracker = Tracker(reference, (), rule)
    for end, label in enumerate(stream, start=1):
        scored = tracker.push(label)
        after = stream[:end][-window:]
        assert tracker.labels == after
        if len(after) >= rule.min_window:
            assert_defined(scored, by_definition(reference, after, base), rule)


WEIGHT = st.floats(0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(LABELS, min_size=3, max_size=12), st.lists(LABELS, min_size=3, max_size=30), WEIGHT, WEIGHT, WEIGHT)
def test_weights_are_taken_from_the_rule(
    reference: list[int], stream: list[int], entropy_weight: float, jaccard_weight: float, divergence_weight: float
) -> None:
    rule = DriftRule(
        entropy_weight=entropy_weight, jaccard_weight=jaccard_weight, jensen_shannon_weight=divergence_weight
    )
    tracker = Tracker(reference, (), rule)
    for label in stream:
        scored = tracker.push(label)
    assert_defined(scored, by_definition(reference, stream[-rule.window :], "e"), rule)


@pytest.mark.parametrize(("base", "most"), [("2", 0.6), ("e", 0.3 + 0.3 * math.log(2)), ("normalised", 0.6)])
def test_a_clean_switch_fires_at_the_label_that_pushes_the_last_old_one_out(base: LogBase, most: float) -> None:
    rule = DriftRule(log_base=base, window=6)
    tracker = Tracker([1] * 6, [1] * 6, rule)
    scores = [tracker.push(2) for _ in range(6)]
    assert [scored.switched for scored in scores] == [False] * 5 + [True]
    assert scores[-1].total == pytest.approx(most)  # ΔH = 0, so the sum cannot reach 0.8
    assert scores[-1].total < rule.threshold
    assert [scored.fired for scored in scores] == [scored.total > 0.8 for scored in scores[:-1]] + [True]


def drifted(base: LogBase, second: str = PHONE_CASE) -> Folded:
    """Four tents, an inference, then other goods until the window holds nothing else."""
    rule = FoldRule(drift=DriftRule(window=4, log_base=base), pick=PickRule(random_ratio=0.0))
    first = [view(f"a{n}", NOW_MS + n * 1_000, TENT) for n in range(4)]
    said = inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 5_000)
    later = [view(f"b{n}", NOW_MS + 6_000 + n * 1_000, second) for n in range(4)]
    return run(envelope(*first, said, *later, received_ms=NOW_MS + LONG_MS), rule=rule)


@pytest.mark.parametrize("base", ["2", "e", "normalised"])
def test_every_emitted_fact_carries_its_components_and_its_rule(base: LogBase) -> None:
    fact = drifted(base).drifted
    assert fact is not None
    (score,) = fact.scores
    assert_components(score, by_definition(fact.before, fact.after, base))
    assert (score.log_base, score.window, score.event_id) == (base, 4, "b3")
    assert (len(fact.before), len(fact.after)) == (4, 4)
    assert fact.stale_until_ms == score.ts_ms + 30 * 60_000


def assert_components(score: DriftScored, parts: tuple[float, float, float]) -> None:
    found = score.entropy_change, score.jaccard_distance, score.jensen_shannon
    assert found == pytest.approx(parts, abs=1e-9)
    assert score.total == pytest.approx(0.4 * parts[0] + 0.3 * parts[1] + 0.3 * parts[2], abs=1e-9)


def test_a_drift_makes_the_live_intent_stale_and_the_same_goods_do_not() -> None:
    assert drifted("e").state.live.stale
    assert not drifted("e", second=TENT).state.live.stale


def browsing_after(gap_ms: int, name: str = "比价犹豫|帐篷") -> Folded:
    said, later = inference("i1", name), inference("i2", "闲逛", ts_ms=NOW_MS + gap_ms)
    rule = FoldRule(pick=PickRule(random_ratio=0.0))
    return run(envelope(said), envelope(later, received_ms=NOW_MS + gap_ms + 1_000), rule=rule)


def test_a_phone_that_says_browsing_takes_back_its_live_trigger() -> None:
    folded = browsing_after(60_000)
    assert folded.drifted is not None
    assert (folded.drifted.id, folded.drifted.user_id, folded.drifted.scores) == ("drift-3-18-0", "u1", ())
    assert folded.drifted.stale_until_ms == NOW_MS + 60_000 + 30 * 60_000
    assert folded.counts["drifts"] == 0
    assert browsing_after(30 * 60_000 - 1).drifted is not None
    assert browsing_after(30 * 60_000).drifted is None, "it had expired"
    assert browsing_after(60_000, "闲逛").drifted is None, "nothing to take back"
    assert browsing_after(60_000, "!!!!!!!!").drifted is None, "no intent was stated"


def test_an_intent_stated_after_browsing_in_one_envelope_outlives_what_was_taken_back() -> None:
    said = [
        inference("i1", "比价犹豫|帐篷"),
        inference("i2", "闲逛", ts_ms=NOW_MS + 1),
        inference("i3", "比价犹豫|帐篷", ts_ms=NOW_MS + 2),
    ]
    folded = run(envelope(*said))
    assert folded.drifted is not None
    first, second = (trigger.data.expires_at_ms for trigger in folded.triggered)
    assert first < folded.drifted.stale_until_ms < second
