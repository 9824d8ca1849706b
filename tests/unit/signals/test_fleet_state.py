"""One version's fleet from look to look: windows, confirmation, return, and what a crash may not change."""

import msgspec
import pytest

from intentloop import fleet_state
from intentloop.fleet_drift import Baseline, FleetRule, RateBlocks
from intentloop.fleet_state import FleetState, Looked
from intentloop.fold import FoldRule
from intentloop.picks import PickRule
from tests.unit.core_streams.make import envelope, inference, run
from tests.unit.core_workers.samples import labelled, picked, vote

RULE = FleetRule(window=100, window_ms=1_000, confirm=2, clear=2, block=10, label_block=2)
USUAL = {"闲逛": 780, "比价犹豫": 150, "场景购物": 70}
OTHER = {"闲逛": 40, "比价犹豫": 15, "场景购物": 45}
SAME = {"闲逛": 78, "比价犹豫": 15, "场景购物": 7}
LEARNT = FleetState(version="v3", baseline=Baseline(intents=USUAL, categories={"c1": 1_000}, source="snapshot"))


def totals(*windows: dict[str, int]) -> dict[str, int]:
    """What the streams' counters say after these windows."""
    said = {f"said:{name}": sum(window[name] for window in windows) for name in USUAL}
    return {**said, "top:c1": 100 * len(windows), "fault:format": 0}


def looked(state: FleetState, *windows: dict[str, int]) -> list[Looked]:
    results: list[Looked] = []
    for end in range(1, len(windows) + 1):
        now_ms = 10_000 * end
        state = fleet_state.take_totals(state, totals(*windows[:end]), RULE, now_ms - 5_000)
        results.append(fleet_state.look_at_mixes(state, RULE, now_ms))
        state = results[-1].state
    return results


def test_two_unlike_windows_in_a_row_are_one_drift_with_its_evidence() -> None:
    results = looked(LEARNT, OTHER, OTHER, OTHER)
    assert [len(result.drifts) for result in results] == [0, 1, 0]
    (fact,) = results[1].drifts
    assert (fact.id, fact.model_version, fact.signal) == ("fleet-v3-intent_mix-2", "v3", "intent_mix")
    assert (fact.test, fact.reference, fact.before_samples, fact.after_samples) == ("g_test", "snapshot", 1_000, 100)
    assert fact.effect == pytest.approx(0.38)  # |0.78 - 0.40| = |0.07 - 0.45|, and half of their sum
    assert fact.before["场景购物"] == pytest.approx(0.07)
    assert fact.after["场景购物"] == pytest.approx(0.45)
    assert "场景购物 7.0% → 45.0%" in fact.reason
    assert results[-1].state.stated == ("intent_mix",)


def test_one_unlike_window_alone_is_a_burst() -> None:
    assert not any(result.drifts for result in looked(LEARNT, OTHER, SAME, OTHER, SAME))


def test_quiet_windows_in_a_row_end_a_drift_and_it_may_come_again_under_another_id() -> None:
    results = looked(LEARNT, OTHER, OTHER, SAME, OTHER, SAME, SAME, OTHER, OTHER)
    assert [result.state.stated for result in results[3:]] == [("intent_mix",)] * 2 + [()] * 2 + [("intent_mix",)]
    assert [fact.id for result in results for fact in result.drifts] == [
        "fleet-v3-intent_mix-2",
        "fleet-v3-intent_mix-8",
    ]


def test_a_window_is_judged_when_it_is_full_and_old_enough() -> None:
    state = fleet_state.take_totals(LEARNT, totals(OTHER), RULE, 5_000)
    assert fleet_state.look_at_mixes(state, RULE, 5_999).state is state
    assert fleet_state.look_at_mixes(state, RULE, 6_000).state.looks == 1
    few = fleet_state.take_totals(LEARNT, {"said:闲逛": 99}, RULE, 5_000)
    assert fleet_state.look_at_mixes(few, RULE, 60_000).state.looks == 0


def test_without_a_snapshot_the_first_window_is_the_reference() -> None:
    results = looked(FleetState(version="v0"), SAME, SAME, OTHER, OTHER)
    assert [result.state.looks for result in results] == [0, 1, 2, 3]
    (fact,) = results[-1].drifts
    assert (fact.reference, fact.before_samples) == ("first_window", 100)


def test_totals_are_taken_once_however_often_they_are_read() -> None:
    once = fleet_state.take_totals(LEARNT, totals(SAME), RULE, 1)
    again = fleet_state.take_totals(once, totals(SAME), RULE, 2)
    assert again == once
    more = fleet_state.take_totals(again, totals(SAME, OTHER), RULE, 3)
    assert sum(more.intents.values()) == 200


def test_counters_that_began_anew_count_from_zero() -> None:
    before = fleet_state.take_totals(LEARNT, totals(SAME, SAME), RULE, 1)
    after = fleet_state.take_totals(before, totals(SAME), RULE, 2)
    assert sum(after.intents.values()) == 300


def test_faults_become_blocks_of_the_rate() -> None:
    state = fleet_state.take_totals(LEARNT, {"said:闲逛": 15, "fault:format": 3, "fault:degenerate": 2}, RULE, 1)
    blocks = state.rates["format_faults"]
    assert (len(blocks.means), blocks.waiting) == (2, 0)
    assert sum(blocks.means) == pytest.approx(0.5)  # 5 of 20 in two blocks of 10


def risen(before: float, after: float) -> fleet_state.FleetState:
    rise = fleet_state.RateRise(before, after, 300, 200)
    state = msgspec.structs.replace(LEARNT, rates={"format_faults": RateBlocks((0.3,), total=9)})
    return fleet_state.state_rate(state, fleet_state.rate_drifted(state, "format_faults", rise, 0.05, 1))


def after(state: fleet_state.FleetState, *means: float) -> fleet_state.FleetState:
    rates = {"format_faults": RateBlocks(means, total=9 + len(means))}
    rule = FleetRule(clear_values=40, rate_floor=0.05)
    return fleet_state.settle_rate(msgspec.structs.replace(state, rates=rates), "format_faults", 10, rule)


def test_a_rate_that_has_come_back_is_no_drift_any_more() -> None:
    state = risen(0.02, 0.3)
    assert state.stated == ("format_faults",)
    assert after(state, 0.0, 0.0, 0.0).stated == ("format_faults",)  # too few values to tell
    assert after(state, 0.3, 0.3, 0.3, 0.3).stated == ("format_faults",)
    assert after(state, 0.1, 0.0, 0.1, 0.0).stated == ("format_faults",)  # 5 %: more than half the floor above 2 %
    back = after(state, 0.3, 0.1, 0.0, 0.0, 0.0)
    assert (back.stated, back.levels) == ((), {})
    assert after(back, 0.0, 0.0, 0.0, 0.0) == msgspec.structs.replace(
        back, rates={"format_faults": RateBlocks((0.0,) * 4, total=13)}
    )


def test_a_rate_that_rose_twice_has_to_come_back_to_where_it_was_first() -> None:
    once = msgspec.structs.replace(risen(0.02, 0.3), rates={"format_faults": RateBlocks((0.3,), total=20)})
    again = fleet_state.rate_drifted(once, "format_faults", fleet_state.RateRise(0.3, 0.6, 300, 200), 0.05, 2)
    twice = fleet_state.state_rate(once, again)
    assert after(twice, 0.3, 0.3, 0.3, 0.3).stated == ("format_faults",)
    assert after(twice, 0.0, 0.0, 0.1, 0.0).stated == ()


def test_labels_tell_of_the_teachers_and_the_random_share_of_the_phone() -> None:
    split = (vote("比价犹豫"), vote("闲逛", teacher="b"))
    state = LEARNT
    for number, label in enumerate(
        (
            labelled(0),  # both say 比价犹豫, the phone said 闲逛
            labelled(1, votes=split, verdict="people", intent=""),
            labelled(2, sample=picked(2, device_intent="比价犹豫")),
            labelled(3, sample=picked(3, random=False)),
            labelled(4, votes=(vote("比价犹豫"),)),  # one teacher failed: no vote on agreement
            labelled(5, source="person"),
        )
    ):
        state = fleet_state.take_label(state, label, RULE)
        assert number >= 0
    assert state.rates["teacher_disagreement"] == RateBlocks((0.5, 0.0), 0, 0, 2)
    assert state.rates["device_disagreement"] == RateBlocks((0.5,), 0, 0, 1)


def test_the_streams_count_what_a_version_says_and_reads() -> None:
    rule = FoldRule(pick=PickRule(random_ratio=0.0))
    said = [
        inference(f"i{number}", answer) for number, answer in enumerate(("比价犹豫|帐篷", "闲逛", "!!!!!!!!", "比价"))
    ]
    counts = run(envelope(*said), rule=rule).counts
    found = fleet_state.version_totals(counts, "v7")
    (bucket,) = (name for name in found if name.startswith("top:"))
    assert found == {"said:比价犹豫": 1, "said:闲逛": 1, "fault:degenerate": 1, "fault:unknown": 1, bucket: 4}
    assert fleet_state.version_totals(counts, "v") == {}


@pytest.mark.parametrize(
    ("name", "version", "other"),
    [
        ("fleet:v3:said:闲逛", "v3", "fleet:other:said:闲逛"),
        ("fleet:a:b:top:c7", "a:b", "fleet:other:top:c7"),
        ("fleet:v1:said:junk:said:闲逛", "v1:said:junk", "fleet:other:said:闲逛"),
        ("fleet::fault:format", "", "fleet:other:fault:format"),
        ("faults_degenerate:v3", "v3", "faults_degenerate:other"),
        ("faults_degenerate", None, ""),
        ("applied", None, ""),
        ("skipped_fatigued", None, ""),
    ],
)
def test_a_counter_tells_its_version_and_how_it_is_named_without(name: str, version: str | None, other: str) -> None:
    assert fleet_state.version_of(name) == version
    assert fleet_state.under_other(name) == other


def test_a_version_with_colons_in_its_name_does_not_count_as_another() -> None:
    counts = {"fleet:v1:said:闲逛": 3, "fleet:v1:said:junk:said:闲逛": 5, "fleet:v1:fault:format": 1}
    assert fleet_state.version_totals(counts, "v1") == {"said:闲逛": 3, "fault:format": 1}
    assert fleet_state.version_totals(counts, "v1:said:junk") == {"said:闲逛": 5}
