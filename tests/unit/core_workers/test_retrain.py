from typing import Any

import pytest

from intentloop.retrain import LoopFacts, Request, RetrainRule, Wait, decide

RULE = RetrainRule(hard_new=10, rearm_hard=5, min_per_class=2, cooldown_s=60, daily_requests=2, drift_min_hard=4)
ENOUGH = {"闲逛": 2, "比价犹豫": 2, "场景购物": 2}
NOW = 1_790_000_000_000


def facts(**changes: Any) -> LoopFacts:
    values: dict[str, Any] = {"now_ms": NOW, "release": "v1", "hard_new": 10, "samples": 20, "per_class": ENOUGH}
    return LoopFacts(**(values | changes))


def test_enough_hard_samples_ask_for_a_model() -> None:
    assert decide(facts(), RULE) == Request("10 new hard samples, 10 are enough")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"release": ""}, "no release yet"),
        ({"training_now": True}, "a training run is waiting or running"),
        ({"hard_new": 9}, "9 of 10 new hard samples"),
        ({"per_class": {"闲逛": 5, "比价犹豫": 5}}, "0 of 2 samples of 场景购物"),
        ({"per_class": ENOUGH | {"闲逛": 1}}, "1 of 2 samples of 闲逛"),
        ({"asked_at_ms": (NOW - 59_000,)}, "cooling down for 1 s"),
        ({"asked_at_ms": (NOW - 90_000_000, NOW - 80_000_000, NOW - 61_000)}, "2 of 2 requests"),
        ({"hard_new": 14, "hard_at_last_request": 10, "asked_at_ms": (NOW - 61_000,)}, "5 more are needed"),
        ({"hard_new": 3, "drift_confirmed": True}, "3 of 10 new hard samples"),
    ],
)
def test_each_obstacle_is_told(changes: dict[str, Any], reason: str) -> None:
    outcome = decide(facts(**changes), RULE)
    assert isinstance(outcome, Wait)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"asked_at_ms": (NOW - 60_000,)},
        {"asked_at_ms": (NOW - 86_400_000, NOW - 86_400_001, NOW - 61_000)},
        {"hard_new": 15, "hard_at_last_request": 10, "asked_at_ms": (NOW - 61_000,)},
    ],
)
def test_what_is_over_stops_nothing(changes: dict[str, Any]) -> None:
    assert isinstance(decide(facts(**changes), RULE), Request)


def test_what_a_rejected_run_has_seen_is_told_when_it_is_asked_for_again() -> None:
    outcome = decide(facts(hard_new=17, hard_at_last_request=12, asked_at_ms=(NOW - 61_000,)), RULE)
    assert outcome == Request("17 new hard samples, 10 are enough, 5 of them since the last run")


def test_a_drift_that_goes_on_does_not_ask_again_for_what_its_run_has_seen() -> None:
    asked = {"hard_at_last_request": 4, "asked_at_ms": (NOW - 61_000,), "drift_confirmed": True}
    assert isinstance(decide(facts(hard_new=8, **asked), RULE), Wait)
    assert isinstance(decide(facts(hard_new=9, **asked), RULE), Request)


def test_a_confirmed_drift_needs_fewer_hard_samples() -> None:
    outcome = decide(facts(hard_new=4, drift_confirmed=True), RULE)
    assert isinstance(outcome, Request)
    assert "drift" in outcome.reason


def test_no_data_at_all_waits() -> None:
    assert isinstance(decide(facts(hard_new=0, samples=0, per_class={}), RULE), Wait)
