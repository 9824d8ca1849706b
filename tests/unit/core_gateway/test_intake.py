"""What phones meant, row by row of the public faults (T.. are their names), and what is refused."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop import fields
from intentloop.events import Behaviour, Event, Inference, InferenceSkipped
from intentloop.intake import ACTIONS, NOTES, IntakeRule, Refused, Taken, batch_facts, sound, take
from intentloop.lenient_json import parse

NOW_MS = 1_796_032_800_000  # 1796032800 s since 1970
RULE = IntakeRule()
FACTS = batch_facts("d1", None, NOW_MS, RULE)


def taken(raw: str | dict[str, object]) -> Taken:
    result = take(parse((raw if isinstance(raw, str) else json.dumps(raw)).encode()), FACTS, RULE)
    assert isinstance(result, Taken), result
    return result


def behaviour(raw: str | dict[str, object]) -> Behaviour:
    event = taken(raw).event
    assert isinstance(event, Behaviour)
    return event


def reason(raw: str | dict[str, object]) -> str:
    result = take(parse((raw if isinstance(raw, str) else json.dumps(raw)).encode()), FACTS, RULE)
    assert isinstance(result, Refused), result
    return result.reason


@pytest.mark.parametrize(
    "ts", ["1796032800", "1796032800000", "1796032800000000", '"1796032800"', '"2026-12-01T10:00:00+08:00"']
)
def test_t08_every_way_to_write_one_instant_is_that_instant(ts: str) -> None:
    expected = 1_796_090_400_000 if "T" in ts else NOW_MS
    assert behaviour(f'{{"type":"pv","ts":{ts}}}').ts_ms == expected


def test_t08_a_fraction_of_a_second_is_kept() -> None:
    assert behaviour('{"type":"pv","ts":1796032800.123}').ts_ms == NOW_MS + 123


@pytest.mark.parametrize("ts", ["-1", "true", "null", "NaN", '""', '"yesterday"', "[]", "1e400", "1827", "0"])
def test_t08_and_t07_what_is_no_instant_is_refused(ts: str) -> None:
    assert "ts" in reason(f'{{"type":"pv","ts":{ts}}}')


def test_t07_a_clock_at_1970_is_refused_also_in_the_canonical_form() -> None:
    event = Behaviour(event_id="e", action="item_view", ts_ms=1_827)
    assert not sound((event,), FACTS, RULE)
    assert "1827 is before 2010" in reason('{"event_id":"e","action":"item_view","ts_ms":1827}')


def test_a_local_time_without_a_zone_is_not_guessed() -> None:
    assert "time zone" in reason('{"type":"pv","ts":"2026-11-30T10:00:00"}')


def test_t04_a_clock_three_days_ahead_is_taken_with_its_own_time() -> None:
    sent_at_ms = NOW_MS + 3 * 86_400_000 + 5_000
    facts = batch_facts("d1", sent_at_ms, NOW_MS, RULE)
    result = take(parse(f'{{"type":"pv","ts":{sent_at_ms - 7}}}'.encode()), facts, RULE)
    assert isinstance(result, Taken)
    assert result.event.ts_ms == sent_at_ms - 7


def test_t05_an_old_event_without_sent_at_keeps_its_time() -> None:
    assert behaviour({"type": "pv", "ts": NOW_MS - 4 * 86_400_000}).ts_ms == NOW_MS - 4 * 86_400_000


def test_t12_a_nul_is_removed_and_told() -> None:
    result = taken('{"type":"pv","ts":1796032800,"title":"空调\\u0000遥控器"}')
    assert isinstance(result.event, Behaviour)
    assert result.event.title == "空调遥控器"
    assert "nul_removed" in result.notes


def test_t14_a_lone_surrogate_is_replaced_and_a_whole_emoji_stays() -> None:
    event = behaviour('{"type":"pv","ts":1796032800,"title":"遥控器\\ud83d"}')
    assert event.title == "遥控器\ufffd"
    assert behaviour('{"type":"query","ts":1796032800,"q":"\\ud83d\\udd25火锅"}').title == "🔥火锅"
    msgspec.json.encode(event)


def test_t15_ids_survive_digit_for_digit() -> None:
    result = taken('{"type":"pv","ts":1796032800,"item_id":3791411052119578828,"user_id":99999999999999999999999}')
    assert isinstance(result.event, Behaviour)
    assert result.event.item_id == "3791411052119578828"
    assert result.user_id == "99999999999999999999999"


@pytest.mark.parametrize("field", ['"price":NaN', '"dwell_s":1e309', '"price":-Infinity', '"dwell_ms":Infinity'])
def test_t15_what_is_not_finite_is_refused_with_its_field(field: str) -> None:
    assert field.split('"')[1] in reason(f'{{"type":"pv","ts":1796032800,{field}}}')


def test_t16_a_dwell_that_is_no_number_is_refused_with_its_value() -> None:
    assert "'abc'" in reason({"type": "item_detail", "ts": 1796032800, "dwell_s": "abc"})


@pytest.mark.parametrize("dwell", [-1, 86_401, 56 * 366 * 86_400])
def test_t07_a_dwell_is_never_56_years(dwell: int) -> None:
    assert "dwell_s" in reason({"type": "pv", "ts": 1796032800, "dwell_s": dwell})


def test_t17_a_new_app_version_is_understood_as_far_as_it_goes() -> None:
    unknown = taken({"v": 3, "type": "live_room_enter", "room": "r1", "ts": 1796032800})
    assert isinstance(unknown.event, Behaviour)
    assert (unknown.event.action, "unknown_action" in unknown.notes) == ("other", True)
    known = behaviour(
        {"type": "item_detail", "title": "帐篷", "price": "¥5.46", "ts": 1796032800, "extra": {}}
        | {"category": "50011972.50011866.50016107"}
    )
    assert (known.action, known.title, known.price_yuan) == ("item_view", "帐篷", 5.46)
    assert known.category == "50011972.50011866.50016107"


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        (["家电", "空调", "遥控器"], "家电.空调.遥控器"),
        ("家电>空调>遥控器", "家电.空调.遥控器"),
        ("家电 / 空调 / 遥控器", "家电.空调.遥控器"),
        (50_016_107, "50016107"),
        (["3.5寸", "", None], "3·5寸"),
    ],
)
def test_a_category_becomes_a_dotted_path(category: object, expected: str) -> None:
    assert behaviour({"type": "pv", "ts": 1796032800, "category": category}).category == expected


@pytest.mark.parametrize(
    ("price", "expected"),
    [("￥1,299.00", 1299.0), ("9.9-19.9", 9.9), ("59元", 59.0), ("5.46", 5.46), (5, 5.0), ("", None), (None, None)],
)
def test_a_price_is_read_as_people_write_it(price: object, expected: float | None) -> None:
    assert behaviour({"type": "pv", "ts": 1796032800, "price": price}).price_yuan == expected


def test_an_event_without_an_id_gets_the_same_one_when_it_is_sent_again() -> None:
    raw: dict[str, object] = {"type": "pv", "ts": 1796032800, "title": "帐篷"}
    first, again = behaviour(raw), behaviour(dict(reversed(raw.items())))
    assert first.event_id == again.event_id != ""
    assert behaviour(raw | {"title": "睡袋"}).event_id != first.event_id


def test_texts_are_cut_and_ids_are_not() -> None:
    assert behaviour({"type": "pv", "ts": 1796032800, "title": "帐" * 501}).title == "帐" * 500
    assert "129 characters" in reason({"type": "pv", "ts": 1796032800, "event_id": "e" * 129})


INFERENCE: dict[str, object] = {
    "kind": "inference",
    "event_id": "i1",
    "ts_ms": NOW_MS,
    "model_version": "v1",
    "prompt_version": "p1",
    "read": [{"action": "item_view", "title": "帐\x00篷", "price_yuan": 5}],
    "sequence_digest": "d",
    "answer": "闲逛\ud83d",
}


def test_an_inference_is_repaired_like_a_behaviour() -> None:
    event = taken(INFERENCE | {"confidence": "0.5", "model_version": 7}).event
    assert isinstance(event, Inference)
    assert (event.answer, event.read[0].title, event.confidence) == ("闲逛\ufffd", "帐篷", 0.5)
    assert event.model_version == "7"


def test_t17_what_the_model_read_may_hold_actions_of_a_newer_app() -> None:
    result = taken(INFERENCE | {"read": [{"action": "live_room_enter"}, {"action": "cart", "title": "帐篷"}]})
    assert isinstance(result.event, Inference)
    assert [item.action for item in result.event.read] == ["other", "cart"]
    assert "unknown_action" in result.notes


@pytest.mark.parametrize(
    "change", [{"confidence": float("nan")}, {"read": 1}, {"event_id": ""}, {"answer": None, "read": None}]
)
def test_an_inference_that_cannot_be_read_is_refused(change: dict[str, object]) -> None:
    assert reason(INFERENCE | change)


def test_a_skipped_inference_is_read() -> None:
    raw = {"kind": "inference_skipped", "event_id": 9, "ts": 1796032800, "check": "fatigued"}
    assert taken(raw).event == InferenceSkipped(event_id="9", ts_ms=NOW_MS, check="fatigued")


@pytest.mark.parametrize("raw", ["1", "null", '"x"', "[]", "{}", '{"kind":"inference"}', "[[[[]]]]"])
def test_what_is_no_event_is_refused(raw: str) -> None:
    assert reason(raw)


def test_every_canonical_action_is_its_own_alias() -> None:
    assert set(ACTIONS.values()) == set(
        msgspec.json.schema(Behaviour)["$defs"]["Behaviour"]["properties"]["action"]["enum"]
    )
    assert all(ACTIONS[action] == action for action in ACTIONS.values())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(
    ["event_id", "type", "action", "kind", "ts", "ts_ms", "title", "q", "price", "dwell_s", "category", "item_id"]
) | st.sampled_from(["seq", "user", "read", "answer", "check", "model_version"])
_TIMES = st.sampled_from([NOW_MS, NOW_MS // 1000, str(NOW_MS), "2026-11-30T10:00:00Z"])


@given(st.dictionaries(_NAMES, _JSON | st.sampled_from(["inference", "inference_skipped", "pv"]), max_size=8), _TIMES)
def test_whatever_is_sent_is_taken_soundly_or_refused_with_a_reason(raw: dict[str, object], ts: object) -> None:
    result = take(parse(json.dumps({"ts": ts} | raw).encode()), FACTS, RULE)
    if isinstance(result, Refused):
        assert 0 < len(result.reason) <= 300
        return
    assert sound((result.event,), FACTS, RULE)
    assert set(result.notes) <= set(NOTES)
    encoded = msgspec.json.encode(result.event)
    assert b"\\u0000" not in encoded
    assert msgspec.json.decode(encoded, type=Event) == result.event
    assert fields.EARLIEST_MS <= result.event.ts_ms <= FACTS.latest_ms
