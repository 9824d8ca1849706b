import pytest

from intentloop import picks
from intentloop.picks import HOUR_MS, HOURS_KEPT, Pick, PickRule, Spending

HARD = PickRule(random_ratio=0.0)


def test_the_priority_is_the_sum_of_the_weights() -> None:
    pick = picks.choose("s", ("rule_disagrees", "flip_flop"), 0, HARD)
    assert pick is not None
    assert pick.priority == pytest.approx(1.7)
    assert not pick.random


def test_weak_reasons_alone_are_not_worth_a_label() -> None:
    assert picks.choose("s", ("rare_class",), 0, HARD) is None
    assert picks.choose("s", (), 0, HARD) is None


def test_a_spent_budget_ends_hard_picks_but_not_the_random_share() -> None:
    rule = PickRule(random_ratio=0.0, budget_per_hour=3)
    assert picks.choose("s", ("ungrounded",), 2, rule) == Pick(1.0, random=False)
    assert picks.choose("s", ("ungrounded",), 3, rule) is None
    everyone = PickRule(random_ratio=1.0, budget_per_hour=0)
    assert picks.choose("s", (), 0, everyone) == Pick(0.0, random=True)


def random_share(ids: list[str], reasons: tuple[picks.Reason, ...], rule: PickRule) -> set[str]:
    chosen = {one: picks.choose(one, reasons, 0, rule) for one in ids}
    return {one for one, pick in chosen.items() if pick is not None and pick.random}


def test_the_random_share_is_even_and_blind_to_reasons() -> None:
    rule = PickRule(random_ratio=0.1)
    ids = [f"sample-0-{number}-0" for number in range(20_000)]
    chosen = random_share(ids, (), rule)
    # binomial: mean 2,000, deviation sqrt(20000 * 0.1 * 0.9) = 42.4
    assert abs(len(chosen) - 2_000) < 5 * 42.4
    assert chosen == random_share(ids, ("ungrounded",), rule)


def test_every_reason_has_a_weight() -> None:
    assert set(picks.WEIGHTS) == set(picks.Reason.__args__)  # type: ignore[attr-defined]


def test_spending_is_by_hour_of_event_time_and_forgets_old_hours() -> None:
    spending = Spending()
    for hour in (5, 5, 6):
        spending = picks.spend(spending, hour * HOUR_MS + 1)
    assert picks.spent_in(spending, 5 * HOUR_MS) == 2
    assert picks.spent_in(spending, 6 * HOUR_MS + HOUR_MS - 1) == 1
    assert picks.spent_in(spending, 7 * HOUR_MS) == 0
    for hour in range(100):
        spending = picks.spend(spending, hour * HOUR_MS)
    assert len(spending.hours) == HOURS_KEPT


def test_an_hour_that_is_forgotten_has_no_budget_left() -> None:
    spending = Spending()
    for hour in range(1, picks.HOURS_KEPT + 1):
        assert picks.spent_in(spending, 0) == 0
        spending = picks.spend(spending, hour * picks.HOUR_MS)
    assert picks.spent_in(spending, picks.HOUR_MS) == 1
    assert picks.spent_in(spending, 0) >= picks.PickRule().budget_per_hour
    assert picks.spent_in(spending, 1_000 * picks.HOUR_MS) == 0
