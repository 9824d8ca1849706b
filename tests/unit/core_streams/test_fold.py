import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intentloop.drift import DriftRule
from intentloop.events import Behaviour, Envelope, Event, Rejection
from intentloop.fold import FoldRule
from intentloop.ids import label_code
from intentloop.picks import PickRule
from intentloop.window import UserState, pack, unpack
from tests.unit.core_streams.make import NOW_MS, PHONE_CASE, TENT, envelope, inference, run, skipped, view

OUTCOMES = ("applied", "inferences", "skipped", "late", "quarantined", "rejected", "duplicates")
PER_BATCH = ("envelopes", "events_in", "duplicates")  # what counts batches, not what they did
DAY_MS = 86_400_000


def accounted(counts: dict[str, int]) -> int:
    return sum(counts.get(outcome, 0) for outcome in OUTCOMES)


def test_a_resent_batch_is_counted_once() -> None:
    rule = FoldRule(drift=DriftRule(window=3), pick=PickRule(random_ratio=1.0))
    said = inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 3_000)
    first: list[Event] = [
        *browse(TENT, 0),
        said,
        *browse(PHONE_CASE, 10),
    ]  # case T01, with all that may follow from a batch
    again = [*first, view("e4", NOW_MS + 20_000, PHONE_CASE)]
    late_ms = NOW_MS + DAY_MS
    resent = run(
        envelope(*first, received_ms=late_ms), envelope(*again, received_ms=late_ms, batch_id="b1-retry"), rule=rule
    )
    once = run(envelope(*again, received_ms=late_ms), rule=rule)
    assert resent.counts["applied"] == 7
    assert resent.counts["duplicates"] == 7
    assert msgspec.structs.replace(resent.state, batches=b"") == msgspec.structs.replace(once.state, batches=b"")
    assert (resent.drifted, resent.triggered, resent.picked) == (once.drifted, once.triggered, once.picked)
    assert (resent.counts["drifts"], resent.counts["triggers"], resent.counts["picked"]) == (1, 1, 1)
    effects = ({name: n for name, n in one.counts.items() if name not in PER_BATCH} for one in (resent, once))
    assert next(effects) == next(effects)


def test_a_batch_of_200_sent_again_is_recognised_whole() -> None:
    events = [view(f"e{number}", NOW_MS + number) for number in range(200)]
    folded = run(envelope(*events), envelope(*events))
    assert (folded.counts["applied"], folded.counts["duplicates"]) == (200, 200)


def hundreds(batch: int) -> list[Event]:
    return [view(f"b{batch}-{number}", NOW_MS + 200 * batch + number) for number in range(200)]


def test_a_batch_sent_again_after_others_counts_once_although_its_ids_are_forgotten() -> None:
    said = inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 150)
    first = envelope(*hundreds(0)[:199], said, batch_id="b0")
    others = [envelope(*hundreds(batch), batch_id=f"b{batch}") for batch in range(1, 6)]
    folded = run(first, *others, first)
    assert (folded.counts["applied"], folded.counts["inferences"], folded.counts["duplicates"]) == (1_199, 1, 200)
    assert len(folded.triggered) == 1


def test_a_batch_that_grew_before_it_was_sent_again_loses_nothing() -> None:
    sent = [view("e1"), view("e2", NOW_MS + 1)]
    folded = run(envelope(*sent), envelope(*sent, view("e3", NOW_MS + 2)))
    assert (folded.counts["applied"], folded.counts["duplicates"]) == (3, 2)


def test_a_user_who_comes_back_after_a_day_begins_anew_also_in_a_replay() -> None:
    rule = FoldRule(drift=DriftRule(window=3))
    before = envelope(
        *browse(TENT, 0), inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 5_000), received_ms=NOW_MS + 6_000
    )
    back_ms = NOW_MS + 6_000 + DAY_MS

    def later(received_ms: int) -> Envelope:
        return envelope(*browse(PHONE_CASE, (received_ms - NOW_MS) // 1_000 - 10), received_ms=received_ms)

    soon, back = run(before, later(back_ms - 1), rule=rule), run(before, later(back_ms), rule=rule)
    assert (soon.counts["drifts"], back.counts["drifts"]) == (1, 0)
    assert back.state == run(later(back_ms), rule=rule).state  # as if Redis had forgotten the user


def test_an_older_inference_takes_nothing_back_from_a_newer_one() -> None:
    rule = FoldRule(drift=DriftRule(window=3))
    newer = envelope(*browse(TENT, 0), inference("i2", "闲逛", ts_ms=NOW_MS + 600_000), batch_id="b2")
    drifting = envelope(*browse(PHONE_CASE, 601), batch_id="b3", received_ms=NOW_MS + 700_000)
    older = envelope(inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 100_000), batch_id="b1")
    straight, mixed = run(newer, drifting, rule=rule), run(newer, drifting, older, rule=rule)
    assert straight.counts["drifts"] == 1
    assert mixed.triggered == ()
    assert mixed.counts["outdated"] == 1
    assert mixed.drifted == straight.drifted
    for name in ("live", "reference", "armed", "inferred_ms", "labels"):
        assert getattr(mixed.state, name) == getattr(straight.state, name), name
    assert mixed.state.live.stale


def test_two_intents_far_apart_are_no_flip_flop_in_whatever_order_they_come() -> None:
    rule = FoldRule(pick=PickRule(random_ratio=1.0))
    for gap_ms, contradicts in ((25 * 60_000, False), (4 * 60_000, True)):
        newer = envelope(inference("i2", "闲逛", ts_ms=NOW_MS + gap_ms), batch_id="b2")
        older = envelope(inference("i1", "比价犹豫|帐篷"), batch_id="b1")
        *_, sample = run(newer, older, rule=rule).picked
        assert ("flip_flop" in sample.reasons) == contradicts


@pytest.mark.parametrize("ts_ms", [NOW_MS + 50_000, NOW_MS + 50_001, NOW_MS + 20_000])
def test_a_drift_outlives_the_trigger_that_it_takes_back(ts_ms: int) -> None:
    rule = FoldRule(drift=DriftRule(window=3))
    said = inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 50_000)
    away = [view(f"p{place}", ts_ms - 2 + place, PHONE_CASE) for place in range(3)]
    folded = run(envelope(*browse(TENT, 0), said), envelope(*away, batch_id="b2"), rule=rule)
    (trigger,) = folded.triggered
    assert folded.drifted is not None
    assert folded.drifted.stale_until_ms > trigger.data.expires_at_ms


def test_the_budget_is_of_an_hour_of_receipt_whatever_hours_phones_name() -> None:
    rule = FoldRule(pick=PickRule(random_ratio=0.0, budget_per_hour=5))
    faults = [
        envelope(
            inference(f"i{hour}", "买买买", ts_ms=NOW_MS - hour * 3_600_000), received_ms=NOW_MS, batch_id=f"b{hour}"
        )
        for hour in reversed(range(100))
    ]
    assert run(*faults, rule=rule).counts["picked"] == 4  # of one class: at most 0.7 of the budget, rounded up


def test_a_clock_days_ahead_does_not_move_the_user_into_the_future() -> None:
    ahead = NOW_MS + 3 * DAY_MS
    shifted = envelope(view("e1", ahead - 10_000), received_ms=NOW_MS, sent_ms=ahead)
    folded = run(shifted, envelope(view("e2", NOW_MS + 5_000), received_ms=NOW_MS + 6_000))
    assert folded.counts["applied"] == 2  # case T04
    assert folded.state.clock.newest_ms == NOW_MS + 5_000


def test_old_events_of_a_new_user_count_at_their_own_time() -> None:
    old = NOW_MS - 4 * DAY_MS
    folded = run(envelope(view("e1", old), received_ms=NOW_MS))  # case T05
    assert folded.counts["applied"] == 1
    assert folded.state.clock.newest_ms == old


def test_an_event_of_1970_is_set_aside_with_a_reason_and_the_rest_goes_on() -> None:
    folded = run(envelope(view("e1", 1_827), view("e2", NOW_MS)))  # case T07
    assert (folded.counts["quarantined"], folded.counts["applied"]) == (1, 1)
    (letter,) = folded.dead
    assert (letter.source_partition, letter.source_offset, letter.index) == (3, 17, 0)
    assert "1827" in letter.reason
    assert '"e1"' in letter.excerpt


def test_out_of_order_is_ordered_and_late_is_counted_late() -> None:
    events = [view(f"e{seq}", NOW_MS + ts * 1_000, f"a.b.{seq}") for seq, ts in ((5, 50), (3, 30), (4, 40))]
    late = envelope(view("e1", NOW_MS + 10_000, "a.b.1"), received_ms=NOW_MS + 51_000 + 2_400_000)
    folded = run(envelope(*events, received_ms=NOW_MS + 51_000), late)  # case T09
    assert folded.state.labels == tuple(label_code(f"a.b.{seq}") for seq in (3, 4, 5))
    assert (folded.counts["applied"], folded.counts["late"]) == (3, 1)


def test_noise_and_repeats_are_counted_as_applied_and_leave_no_label() -> None:
    again = msgspec.structs.replace(view("e1", NOW_MS), event_id="e3", ts_ms=NOW_MS + 30_000)
    folded = run(envelope(view("e1", NOW_MS), view("e2", NOW_MS + 1, action="exposure"), again))
    assert (folded.counts["applied"], folded.counts["noise"], folded.counts["repeats"]) == (3, 1, 1)
    assert folded.state.labels == (label_code(TENT),)


def browse(category: str, start: int, count: int = 3) -> list[Behaviour]:
    return [view(f"{category}{start + n}", NOW_MS + (start + n) * 1_000, category) for n in range(count)]


def test_one_drift_fires_once_until_the_next_inference() -> None:
    rule = FoldRule(drift=DriftRule(window=3), pick=PickRule(random_ratio=1.0))
    before = envelope(
        *browse(TENT, 0), inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 3_000), received_ms=NOW_MS + DAY_MS
    )
    after = envelope(*browse(PHONE_CASE, 10, 6), received_ms=NOW_MS + DAY_MS)
    folded = run(before, after, rule=rule)
    assert folded.counts["drifts"] == 1
    assert folded.drifted is not None
    assert folded.drifted.id == "drift-3-18-0"
    assert folded.drifted.before == (label_code(TENT),) * 3
    assert folded.drifted.after == (label_code(PHONE_CASE),) * 3
    (score,) = folded.drifted.scores
    # one category before, another after: no entropy change, nothing shared, divergence of 1 bit = ln 2
    assert score.total == pytest.approx(0.3 + 0.3 * 0.6931471805599453)
    assert score.switched
    assert folded.state.live.stale
    again = envelope(
        inference("i2", "比价犹豫|帐篷", ts_ms=NOW_MS + 20_000), *browse(TENT, 30), received_ms=NOW_MS + DAY_MS
    )
    armed = run(before, after, again, rule=rule)
    assert armed.counts["drifts"] == 2
    assert "drifted" in armed.picked[-1].reasons
    assert not armed.state.armed


def test_an_inference_makes_a_trigger_and_a_pick_with_derived_ids() -> None:
    everyone = FoldRule(pick=PickRule(random_ratio=1.0))
    folded = run(envelope(view("e1"), inference("i1", "比价犹豫|帐篷", ts_ms=NOW_MS + 1)), rule=everyone)
    (trigger,), (sample,) = folded.triggered, folded.picked
    assert (trigger.id, sample.id) == ("trigger-3-17-1", "sample-3-17-1")
    assert folded.counts["triggers"] == folded.counts["picked"] == folded.counts["picked_random"] == 1
    assert sample.random


def test_a_degenerate_answer_is_no_sample_even_by_chance() -> None:
    everyone = FoldRule(pick=PickRule(random_ratio=1.0))
    folded = run(envelope(inference("i1", "!!!!!!!!!!!!")), rule=everyone)
    assert folded.picked == ()
    assert folded.counts["inferences"] == folded.counts["faults_degenerate:v7"] == 1
    assert folded.counts["intent_闲逛"] == 0


def test_the_budget_of_an_hour_bounds_hard_picks() -> None:
    rule = FoldRule(pick=PickRule(random_ratio=0.0, budget_per_hour=2))
    faults = [inference(f"i{number}", "买买买", ts_ms=NOW_MS + number) for number in range(5)]
    folded = run(envelope(*faults), rule=rule)
    assert folded.counts["picked"] == 2
    assert folded.spending.hours == ((NOW_MS // 3_600_000, 2),)


def test_rejected_events_are_counted_once_although_the_batch_comes_again() -> None:
    one = msgspec.structs.replace(envelope(view("e1")), rejected=(Rejection(1, "no ts"), Rejection(2, "no ts")))
    folded = run(one, one)
    assert (folded.counts["rejected"], folded.counts["duplicates"]) == (2, 3)


def test_skipped_inferences_are_counted_by_check() -> None:
    folded = run(envelope(skipped("s1")))
    assert folded.counts["skipped"] == folded.counts["skipped_fatigued"] == 1


EVENT = st.builds(
    lambda number, ts, kind: (
        view(f"e{number}", ts, f"a.b.{number % 4}")
        if kind == 0
        else skipped(f"e{number}", ts)
        if kind == 1
        else inference(f"e{number}", ("闲逛", "比价犹豫|帐篷", "!!!!!!!!")[number % 3], ts_ms=ts)
    ),
    st.integers(0, 60),
    st.one_of(st.integers(NOW_MS - 7_200_000, NOW_MS), st.just(1_827)),
    st.integers(0, 2),
)
ENVELOPES = st.lists(st.lists(EVENT, max_size=8), max_size=8).map(
    lambda batches: [envelope(*events, batch_id=f"b{index}") for index, events in enumerate(batches)]
)


@settings(deadline=None, max_examples=60)
@given(ENVELOPES)
def test_every_event_is_accounted_for_exactly_once(envelopes: list[Envelope]) -> None:
    counts = run(*envelopes).counts
    assert accounted(counts) == counts["events_in"] == sum(len(one.events) for one in envelopes)


@settings(deadline=None, max_examples=60)
@given(ENVELOPES, st.data())
def test_sending_any_batch_again_changes_nothing_but_duplicates(envelopes: list[Envelope], data: st.DataObject) -> None:
    straight = run(*envelopes)
    doubled: list[Envelope] = []
    for one in envelopes:
        doubled.append(one)
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(["", "again"]))
            sent = data.draw(st.sampled_from(doubled))
            doubled.append(msgspec.structs.replace(sent, batch_id=name or sent.batch_id))
    again = run(*doubled)
    assert msgspec.structs.replace(again.state, batches=b"") == msgspec.structs.replace(straight.state, batches=b"")
    assert again.counts["drifts"] == straight.counts["drifts"]
    for outcome in OUTCOMES[:-1]:
        assert again.counts[outcome] == straight.counts[outcome]


@settings(deadline=None, max_examples=40)
@given(ENVELOPES, st.integers(0, 8))
def test_stopping_and_packing_between_any_two_envelopes_changes_nothing(envelopes: list[Envelope], cut: int) -> None:
    straight = run(*envelopes)
    first = run(*envelopes[:cut])
    assert pack(run(*envelopes[cut:], state=unpack(pack(first.state))).state) == pack(straight.state)
    assert isinstance(straight.state, UserState)
