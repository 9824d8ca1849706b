"""A phone infers after three item views, when its five checks agree, and reports exactly the bytes it fed."""

from random import Random

import msgspec
import pytest

from demo import phone
from intentloop import prompt, shoppers
from intentloop.events import Behaviour, Event

RULE = phone.PhoneRule()


def behaviour(number: int, action: str = "item_view") -> Behaviour:
    return msgspec.convert(
        {
            "kind": "behaviour",
            "event_id": f"e{number}",
            "action": action,
            "ts_ms": 1_000 * number,
            "item_id": f"i{number}",
            "title": f"山雀帐篷{number}",
            "category": "户外.露营.帐篷",
        },
        Behaviour,
    )


def seen(*actions: str) -> phone.PhoneState:
    state = phone.PhoneState()
    for number, action in enumerate(actions):
        state = phone.notice(state, behaviour(number, action), RULE)
    return state


def test_three_item_views_are_enough_and_two_are_not() -> None:
    assert not phone.wants_inference(seen("item_view", "search", "cart", "item_view", "exposure"), RULE)
    assert phone.wants_inference(seen("item_view", "search", "item_view", "exposure", "item_view"), RULE)


def test_views_count_anew_after_an_inference() -> None:
    state = phone.after_inference(seen("item_view", "item_view", "item_view"), 5_000, RULE)
    assert not phone.wants_inference(state, RULE)
    for number in range(3, 6):
        state = phone.notice(state, behaviour(number), RULE)
    assert phone.wants_inference(state, RULE)


def test_nothing_of_a_visit_is_left_after_it_but_the_times_of_inferences() -> None:
    state = phone.leave(phone.after_inference(seen("item_view"), 7_000, RULE))
    assert state == phone.PhoneState(inferred_ms=(7_000,))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({}, None),
        ({"switched_on": False}, "switched_off"),
        ({"device_allowed": False}, "device_not_allowed"),
        ({"model_ready": False}, "model_not_ready"),
        ({"runtime_free": False}, "runtime_busy"),
        ({"switched_on": False, "runtime_free": False}, "switched_off"),
    ],
)
def test_each_admission_check_is_named(change: dict[str, bool], check: str | None) -> None:
    assert phone.failed_check(phone.PhoneState(), phone.Conditions(**change), 0, RULE) == check


def test_a_phone_tires_of_inferring_and_recovers() -> None:
    rule = phone.PhoneRule(fatigue_inferences=2, fatigue_ms=1_000)
    state = phone.after_inference(phone.after_inference(phone.PhoneState(), 100, rule), 600, rule)
    assert phone.failed_check(state, phone.Conditions(), 1_000, rule) == "fatigued"
    assert phone.failed_check(state, phone.Conditions(), 1_100, rule) is None


def test_what_is_reported_as_read_renders_to_the_digest_of_what_was_fed() -> None:
    question = phone.ask(seen("item_view", "exposure", "item_view", "item_view").window, RULE)
    said = phone.Said(version="v1", answer="闲逛", ttft_ms=1, total_ms=2, prompt_tokens=300, output_tokens=2)
    event = phone.report(question, said, phone.Stamp("x", 9_000, 4))
    sequence = prompt.sequence_text(event.read)
    assert len(event.read) == 3
    assert question.prompt == prompt.render(sequence)
    assert event.sequence_digest == prompt.digest(sequence)
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_the_window_keeps_the_newest_behaviours() -> None:
    rule = phone.PhoneRule(window_events=5)
    state = phone.PhoneState()
    for number in range(9):
        state = phone.notice(state, behaviour(number), rule)
    assert [event.event_id for event in state.window] == ["e4", "e5", "e6", "e7", "e8"]


def test_a_shoppers_steps_become_behaviours_that_survive_the_wire() -> None:
    random = Random(11)
    session = shoppers.session(random, shoppers.ShopperRule())
    events = [
        phone.behave(step, phone.Stamp(f"e{number}", number, number)) for number, step in enumerate(session.steps)
    ]
    assert msgspec.json.decode(msgspec.json.encode(events), type=list[Event]) == events
    assert [event.action for event in events] == [step.action for step in session.steps]


def test_a_visit_of_the_generator_triggers_an_inference_whatever_its_intent() -> None:
    random = Random(3)
    rule = shoppers.ShopperRule(intents=(0.4, 0.3, 0.3))
    for _ in range(200):
        session = shoppers.session(random, rule)
        assert sum(step.action == "item_view" for step in session.steps) >= RULE.min_views
