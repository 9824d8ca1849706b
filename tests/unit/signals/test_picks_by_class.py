"""The budget of hard picks, in all and by class, and what a partition remembers of it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from intentloop import picks
from intentloop.fold import FoldRule
from intentloop.picks import HOUR_MS, HOURS_KEPT, PickRule, Spending
from intentloop.timeline import TimeRule
from tests.unit.core_streams.make import NOW_MS, envelope, inference, run

RULE = FoldRule(pick=PickRule(random_ratio=0.0, budget_per_hour=10, class_ratio=0.7))


def picked(*answers: str) -> list[str]:
    """Which answers were picked? All of them have a reason: they contradict the rules, or mean nothing."""
    events = [inference(f"i{number}", answer, ts_ms=NOW_MS + number) for number, answer in enumerate(answers)]
    return [sample.device_answer for sample in run(envelope(*events), rule=RULE).picked]


def test_one_class_leaves_room_for_the_others() -> None:
    found = picked(*["闲逛"] * 20, *["场景购物|帐篷"] * 20)
    assert found.count("闲逛") == 7
    assert found.count("场景购物|帐篷") == 3  # and there the budget in all ends


def test_faults_are_a_class_of_their_own() -> None:
    assert len(picked(*["买买买"] * 9, *["比价犹豫|雪橇"] * 9)) == 7


def test_the_next_hour_begins_anew() -> None:
    hours = [
        envelope(
            *[inference(f"i{hour}-{number}", "闲逛") for number in range(9)],
            received_ms=NOW_MS + hour * HOUR_MS,
            batch_id=f"b{hour}",
        )
        for hour in (0, 1)
    ]
    assert len(run(*hours, rule=FoldRule(pick=RULE.pick, time=TimeRule(late_grace_ms=2 * HOUR_MS))).picked) == 14


@given(st.lists(st.tuples(st.integers(0, 120), st.sampled_from(["", "闲逛", "场景购物"])), max_size=200))
def test_the_classes_of_an_hour_add_up_to_it(spent: list[tuple[int, str]]) -> None:
    spending = Spending()
    for hour, name in spent:
        spending = picks.spend(spending, hour * HOUR_MS, name)
    assert len(spending.hours) <= HOURS_KEPT
    for hour, count in spending.hours:
        parts = [picks.class_spent_in(spending, hour * HOUR_MS, name) for name in ("", "闲逛", "场景购物")]
        assert sum(parts) == count == picks.spent_in(spending, hour * HOUR_MS)
    assert {hour for hour, _, _ in spending.classes} == {hour for hour, _ in spending.hours}


def test_what_was_packed_before_classes_were_counted_is_read() -> None:
    before = msgspec.msgpack.encode([[[5, 3]]])
    assert msgspec.msgpack.decode(before, type=Spending) == Spending(((5, 3),))
    spending = picks.spend(Spending(((5, 3),)), 5 * HOUR_MS, "闲逛")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spending), type=Spending) == spending
