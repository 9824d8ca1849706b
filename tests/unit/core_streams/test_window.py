import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop import compress, window
from intentloop.errors import ContractError
from intentloop.events import Behaviour
from intentloop.ids import label_code
from intentloop.timeline import Clock
from intentloop.window import MAX_IDS, UserState
from tests.unit.core_streams.make import NOW_MS, TENT, view

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20_000), st.sampled_from(["item_view", "cart"])))


@given(STEPS)
def test_debouncing_one_by_one_is_debouncing_the_list(steps: list[tuple[int, int, str]]) -> None:
    events: list[Behaviour] = []
    now_ms = NOW_MS
    for number, (thing, gap_ms, action) in enumerate(steps):
        now_ms += gap_ms
        events.append(
            Behaviour(event_id=str(number), action=action, ts_ms=now_ms, item_id=str(thing))  # type: ignore[arg-type]
        )
    recent: dict[int, int] = {}
    kept = []
    for event in events:
        repeat = window.is_repeat(recent, event, event.ts_ms, 30_000)
        recent = dict(window.newest_recent(recent, 30_000))
        if not repeat:
            kept.append(event.event_id)
    assert kept == [event.event_id for event in compress.debounce(events, 30_000)]


def test_labels_name_the_full_category_or_the_query() -> None:
    assert window.label(view("e")) == label_code(TENT)
    search = Behaviour(event_id="e", action="search", ts_ms=1, title="帐篷", category="ignored")
    assert window.label(search) == label_code("search:帐篷")
    assert window.label(Behaviour(event_id="e", action="cart", ts_ms=1)) is None
    assert window.label(Behaviour(event_id="e", action="search", ts_ms=1)) is None


def test_a_full_state_is_small_and_survives_packing() -> None:
    state = UserState(
        clock=Clock(NOW_MS, NOW_MS),
        inferred_ms=NOW_MS - 1,
        seen=window.join_ids([window.id_code(str(number)) for number in range(500)]),
        batches=window.join_ids([window.id_code(str(number)) for number in range(500)], window.MAX_BATCHES),
        recent=tuple((label_code(str(number)), NOW_MS) for number in range(window.MAX_RECENT)),
        labels=tuple(label_code(str(number)) for number in range(12)),
        reference=tuple(label_code(str(number)) for number in range(12)),
        live=window.LiveIntent("比价犹豫", NOW_MS, True, ("空调遥控器", "美的", "通用款"), "家电.空调.遥控器"),
        tops=tuple(label_code(str(number)) for number in range(window.MAX_TOPS)),
    )
    packed = window.pack(state)
    assert window.unpack(packed) == state
    assert len(packed) < 1_800
    assert len(window.split_ids(state.seen)) == MAX_IDS >= 200
    assert len(window.split_ids(state.batches)) == window.MAX_BATCHES


def test_the_newest_ids_are_remembered() -> None:
    codes = [window.id_code(str(number)) for number in range(300)]
    assert window.split_ids(window.join_ids(codes)) == codes[-MAX_IDS:]


@given(st.lists(st.text(max_size=60), min_size=2, max_size=2, unique=True))
def test_a_code_is_the_remainder_of_the_text_read_as_a_number(texts: list[str]) -> None:
    first, second = (int.from_bytes(b"\x01" + text.encode(), "big") for text in texts)
    same = (first - second) % 679_535_557_021 == 0
    assert (window.id_code(texts[0]) == window.id_code(texts[1])) == same
    assert window.id_code(texts[0]) == (first % 679_535_557_021).to_bytes(5, "little")
    action_then_thing = int.from_bytes(b"\x01cart\x00" + texts[0].encode(), "big")
    assert window.thing_code("cart", texts[0]) == action_then_thing % 2_654_435_761


def test_ids_of_phones_that_count_up_do_not_meet() -> None:
    ids = [f"{phone:08x}-{number}" for phone in range(300) for number in range(300)]
    assert len({window.id_code(one) for one in ids}) == len(ids)


@pytest.mark.parametrize("packed", [b"", b"\x98\x92\x00\x00", b"\x02" + bytes(40)])
def test_a_state_of_an_unknown_version_is_refused(packed: bytes) -> None:
    with pytest.raises(ContractError, match="this software reads 03"):
        window.unpack(packed)
