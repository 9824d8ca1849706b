"""One bad event never hurts its neighbours, and nobody's own id leaves the gateway."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.faults import BodyFault
from gateway.sort_batch import Sorted, sort_batch, sort_each
from intentloop.events import Behaviour, Envelope
from intentloop.intake import IntakeRule
from intentloop.privacy import user_hash

NOW_MS = 1_796_032_800_000
hash_user = partial(user_hash, key=b"key")


def event(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "behaviour",
        "event_id": f"e{number}",
        "action": "item_view",
        "ts_ms": NOW_MS,
        "seq": number,
    } | changes


def body(*events: Any, **changes: Any) -> bytes:
    head = {"batch_id": "b1", "user_id": "user-7", "device_id": "d1", "device_model": "M1", "app_version": "1.0"}
    return json.dumps(head | {"schema_version": 1, "sent_at_ms": NOW_MS - 5, "events": list(events)} | changes).encode()


def sort(raw: bytes) -> Sorted:
    return sort_batch(raw, NOW_MS, hash_user, IntakeRule())


def fault(raw: bytes) -> BodyFault:
    with pytest.raises(BodyFault) as found:
        sort(raw)
    return found.value


def test_a_sound_batch_becomes_one_envelope_with_a_hashed_user() -> None:
    found = sort(body(event(1, title="帐篷", price_yuan=5.46), event(2)))
    (envelope,) = found.envelopes
    assert envelope == Envelope(
        batch_id="b1",
        user_id=user_hash("user-7", b"key"),
        device_id="d1",
        device_model="M1",
        app_version="1.0",
        sent_at_ms=NOW_MS - 5,
        received_at_ms=NOW_MS,
        events=(
            Behaviour(event_id="e1", action="item_view", ts_ms=NOW_MS, seq=1, title="帐篷", price_yuan=5.46),
            Behaviour(event_id="e2", action="item_view", ts_ms=NOW_MS, seq=2),
        ),
    )
    assert (found.accepted, found.set_aside, found.repaired) == (2, (), ())


def test_t16_three_are_accepted_and_one_is_set_aside_with_index_and_reason() -> None:
    found = sort(body(event(1), event(2), {"type": "item_detail", "ts": NOW_MS, "dwell_s": "abc"}, event(3)))
    (envelope,) = found.envelopes
    assert [each.event_id for each in envelope.events] == ["e1", "e2", "e3"]
    assert [(each.index, each.reason) for each in envelope.rejected] == [(2, "dwell_s 'abc' is not a finite number")]
    assert found.accepted == 3
    assert '"dwell_s": "abc"' in found.set_aside[0].excerpt


def test_t01_the_same_batch_again_becomes_the_same_events() -> None:
    first, again = (
        sort(body(event(1), {"type": "pv", "ts": NOW_MS})),
        sort(body(event(1), {"type": "pv", "ts": NOW_MS})),
    )
    assert first.envelopes == again.envelopes


def test_t15_one_nan_does_not_take_the_batch_with_it() -> None:
    raw = body(event(1), event(2, price_yuan=float("nan")), event(3, item_id=3791411052119578828))
    found = sort(raw)
    (envelope,) = found.envelopes
    assert [(each.index, "price_yuan NaN" in each.reason) for each in envelope.rejected] == [(1, True)]
    last = envelope.events[-1]
    assert isinstance(last, Behaviour)
    assert last.item_id == "3791411052119578828"


def test_t15_a_user_id_of_23_digits_keeps_every_digit() -> None:
    raw = body(event(1)).replace(b'"user-7"', b"99999999999999999999999")
    assert sort(raw).envelopes[0].user_id == user_hash("99999999999999999999999", b"key")


def test_t12_t14_odd_characters_are_cleaned_once_at_the_entry() -> None:
    raw = body(
        event(1, title="空调\x00遥控器"),
        event(2, title="遥控器\ud83d"),
        event(3, title="\U0001f525火锅"),
        device_id="d\x001",
    )
    (envelope,) = sort(raw).envelopes
    titles = [each.title for each in envelope.events if isinstance(each, Behaviour)]
    assert titles == ["空调遥控器", "遥控器\ufffd", "🔥火锅"]
    assert envelope.device_id == "d1"
    assert b"\\u0000" not in msgspec.json.encode(envelope)


def test_t12_a_nul_alone_does_not_slip_through_the_fast_way() -> None:
    found = sort(body(event(1, title="空调\x00遥控器"), event(2), device_id="d\x001"))
    assert b"\\u0000" not in msgspec.json.encode(found.envelopes[0])
    assert [(each.index, each.notes) for each in found.repaired] == [(0, ("nul_removed",))]


def test_bytes_that_are_not_utf8_stay_in_their_event() -> None:
    raw = body(event(1, title="HERE"), event(2)).replace(b"HERE", b"\xff\xfeok")
    (envelope,) = sort(raw).envelopes
    assert [each.title for each in envelope.events if isinstance(each, Behaviour)] == ["\ufffd\ufffdok", ""]


def test_t19_another_account_on_the_same_phone_gets_its_own_envelope() -> None:
    found = sort(body(event(1, title="验孕棒"), event(2, title="钓鱼竿", user_id="B"), event(3, user="user-7")))
    by_user = {each.user_id: [one.event_id for one in each.events] for each in found.envelopes}
    assert by_user == {user_hash("user-7", b"key"): ["e1", "e3"], user_hash("B", b"key"): ["e2"]}
    assert found.accepted == 3


def test_t17_new_types_and_fields_are_kept_or_ignored() -> None:
    found = sort(body(event(1, action="live_room_enter", room="r1"), event(2, extra={"a": [1]})))
    actions = [each.action for each in found.envelopes[0].events if isinstance(each, Behaviour)]
    assert actions == ["other", "item_view"]
    assert found.repaired[0].notes == ("unknown_action",)


def test_t07_a_clock_at_1970_is_set_aside_and_the_rest_goes_on() -> None:
    found = sort(body({"ts": 1827, "type": "item_detail", "dwell_s": None}, {"ts": 1796032800, "type": "item_detail"}))
    assert [each.index for each in found.set_aside] == [0]
    assert len(found.envelopes[0].events) == 1


def test_an_envelope_without_a_single_good_event_still_accounts_for_them() -> None:
    found = sort(body(1, None, "x"))
    assert [len(each.rejected) for each in found.envelopes] == [3]
    assert found.accepted == 0
    assert sort(body()).envelopes == ()


def test_what_is_kept_of_a_refused_event_names_nobody() -> None:
    bad = {"type": "pv", "ts": "x", "user_id": "user-7", "uid": 12345678, "title": "寄给 user-7 13812345678"}
    excerpt = sort(body(bad)).set_aside[0].excerpt
    assert "user-7" not in excerpt
    assert "12345678" not in excerpt
    assert '"ts": "x"' in excerpt
    assert len(sort(body({"ts": "x", "title": "帐" * 5000})).set_aside[0].excerpt) == 512


@pytest.mark.parametrize("sent_at", [None, 0, -5, 10**30, "2026", 1827, True, NOW_MS + 400 * 366 * 86_400_000])
def test_a_sent_at_that_cannot_be_means_no_clock_correction(sent_at: object) -> None:
    found = sort(body(event(1), sent_at_ms=sent_at))
    assert found.envelopes[0].sent_at_ms is None
    assert found.accepted == 1


def test_k11_too_many_events_are_refused_whole() -> None:
    assert sort(body(*(event(n) for n in range(200)))).accepted == 200
    found = fault(body(*(event(n, title="帐" * 1500) for n in range(300))))
    assert (found.status, "300 events, the limit is 200" in found.reason) == (413, True)


def test_one_huge_event_is_set_aside_alone() -> None:
    found = sort(body(event(1), event(2, extra="x" * 70_000)))
    assert (found.accepted, found.set_aside[0].index) == (1, 1)
    assert "65536" in found.set_aside[0].reason


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        body(user_id=""),
        body(device_id="d" * 129),
        body(batch_id=None),
        body(events={}),
        body().replace(b'"events": []', b'"events": 1'),
        body(event(1))[:-20],
        "{}".encode("utf-16"),
    ],
)
def test_a_body_that_is_no_batch_is_a_bad_request_with_a_reason(raw: bytes) -> None:
    found = fault(raw)
    assert found.status == 400
    assert len(found.reason) > 10


_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(_TREES | st.builds(event, st.integers(), title=_TREES, ts_ms=_TREES), max_size=6), _TREES)
def test_every_event_is_accounted_for_whatever_was_sent(events: list[object], model: object) -> None:
    try:
        found = sort(body(*events, device_model=model))
    except BodyFault:  # the device model is no text
        assert isinstance(model, list | dict | bool | float)
        return
    assert found.accepted + len(found.set_aside) == len(events)
    assert sum(len(each.events) for each in found.envelopes) == found.accepted
    for envelope in found.envelopes:
        assert msgspec.json.decode(msgspec.json.encode(envelope), type=Envelope) == envelope


def test_deep_nesting_inside_an_event_is_its_own_problem() -> None:
    deep = b"[" * 900 + b"]" * 900
    raw = body(event(1), event(2, title="DEEP")).replace(b'"DEEP"', deep)
    found = sort(raw)
    assert (found.accepted, found.set_aside[0].index) == (1, 1)


_CHANGES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"title": "帐篷", "price_yuan": 5.46, "dwell_ms": 3},
        {"title": '"user_id"'},
        {"title": "caf\u00e9"},
        {"title": "空调\x00"},
        {"title": "x" * 501},
        {"title": "x" * 70_000},
        {"item_id": "i" * 129},
        {"category": "c" * 201},
        {"price_yuan": -1},
        {"price_yuan": 1e12},
        {"dwell_ms": -1},
        {"seq": -1},
        {"seq": 2**63},
        {"ts_ms": 1827},
        {"ts_ms": NOW_MS + 400 * 86_400_000},
        {"event_id": ""},
        {"user_id": "B"},
        {"user": "user-7"},
        {"uid": 5},
        {"action": "live_room_enter", "room": "r1"},
        {"kind": "inference_skipped", "check": "fatigued"},
        {"kind": "inference", "model_version": "v", "prompt_version": "p", "read": [], "sequence_digest": "d"},
    ]
)
_HEADS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"user_id": "user_id"},
        {"device_model": "M" * 129},
        {"app_version": "1\x00"},
        {"sent_at_ms": 1},
        {"sent_at_ms": NOW_MS + 11 * 366 * 86_400_000},
        {"schema_version": -1},
        {"rejected": [{"index": 0, "reason": "made up"}], "received_at_ms": 5},
        {"rejected": 1},
        {"batch_id": ""},
        {"device_id": "d" * 129},
    ]
)


def outcome(sorted_by: Callable[..., Sorted], raw: bytes) -> Sorted | tuple[int, str]:
    try:
        return sorted_by(raw, NOW_MS, hash_user, IntakeRule())
    except BodyFault as found:
        return found.status, found.reason


@given(st.lists(_CHANGES, max_size=5), _HEADS, st.booleans())
def test_a_body_in_one_pass_ends_as_it_does_event_by_event(
    changes: list[dict[str, Any]], head: dict[str, Any], raw_utf8: bool
) -> None:
    events = [event(number, answer="闲逛", **change) for number, change in enumerate(changes)]
    raw = body(*events, **head)
    if raw_utf8:
        raw = json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace")
    assert outcome(sort_batch, raw) == outcome(sort_each, raw)


def test_a_key_in_disguise_is_still_another_account() -> None:
    raw = body(event(1, title="验孕棒"), event(2, user_id="B")).replace(b'"user_id": "B"', b'"\\u0075ser_id": "B"')
    assert raw.count(b'"user_id"') == 1
    assert len(sort(raw).envelopes) == 2
