"""What the model gets to read: caps, order, budget, and what is never cut."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop import compress, prompt
from intentloop.compress import CAPS, PRIORITY, CompressRule
from intentloop.events import Action, Behaviour

ROOMY = CompressRule(budget_tokens=100_000)


def act(number: int, action: Action, ts_ms: int | None = None, dwell_ms: int | None = None) -> Behaviour:
    return Behaviour(
        event_id=f"e{number}",
        action=action,
        ts_ms=number * 60_000 if ts_ms is None else ts_ms,
        item_id="" if action == "search" else f"i{number}",
        title=f"物件{number}号",
        category="户外.露营.帐篷",
        dwell_ms=dwell_ms,
    )


EVENTS = st.lists(st.sampled_from(sorted(PRIORITY)), max_size=120).map(
    lambda actions: [act(number, action) for number, action in enumerate(actions)]  # type: ignore[arg-type]
)


def test_the_published_caps_are_kept_and_the_newest_stay() -> None:
    events = [act(number, "item_view") for number in range(50)] + [act(100 + n, "search") for n in range(25)]
    items = compress.compress(events, ROOMY)
    assert Counter(item.action for item in items) == {"item_view": 30, "search": 20}
    assert items[0].title == "物件20号"
    assert (CAPS["search"], CAPS["purchase"], CAPS["cart"], CAPS["favourite"]) == (20, 10, 15, 10)
    assert (CAPS["item_view"], CAPS["content_view"]) == (30, 10)


@given(EVENTS)
def test_noise_is_dropped_and_order_is_kept(events: list[Behaviour]) -> None:
    kept = compress.stratify(compress.debounce(compress.filter_noise(events), 30_000), ROOMY)
    assert all(PRIORITY[event.action] < 3 for event in kept)
    assert [event.ts_ms for event in kept] == sorted(event.ts_ms for event in kept)
    assert all(count <= CAPS[action] for action, count in Counter(event.action for event in kept).items())


@given(EVENTS, st.integers(5, 400))
def test_the_budget_is_honoured_and_the_newest_p0_event_is_never_cut(events: list[Behaviour], budget: int) -> None:
    rule = CompressRule(budget_tokens=budget)
    kept = compress.stratify(compress.filter_noise(events), rule)
    newest = next((event for event in reversed(events) if PRIORITY[event.action] == 0), None)
    if newest is not None:
        assert newest in kept
    text = prompt.sequence_text([compress.enrich(event) for event in kept])
    assert compress.estimate_tokens(text) <= budget or len(kept) <= 1


def test_the_lowest_group_is_cut_first_and_the_oldest_within_it() -> None:
    events = [act(0, "cart"), act(1, "video"), act(2, "item_view"), act(3, "item_view"), act(4, "video")]
    wanted = (["e0", "e1", "e2", "e3", "e4"], ["e0", "e2", "e3", "e4"], ["e0", "e2", "e3"], ["e0", "e3"])
    for left in wanted:
        text = prompt.sequence_text([compress.enrich(event) for event in events if event.event_id in left])
        rule = CompressRule(budget_tokens=compress.estimate_tokens(text))
        assert [event.event_id for event in compress.stratify(events, rule)] == left


def test_repeats_within_the_window_are_one_behaviour_with_the_longest_dwell() -> None:
    one, two = act(1, "item_view", 0, 5_000), act(1, "item_view", 30_000, 66_000)
    (kept,) = compress.debounce([one, two], 30_000)
    assert (kept.ts_ms, kept.dwell_ms) == (0, 66_000)
    assert len(compress.debounce([one, act(1, "item_view", 30_001)], 30_000)) == 2
    assert len(compress.debounce([one, act(1, "cart", 1)], 30_000)) == 2, "another action is another behaviour"


@pytest.mark.parametrize(("dwell_ms", "dwell_s"), [(None, 0), (499, 0), (1_501, 2), (66_000, 66)])
def test_dwell_is_told_in_whole_seconds(dwell_ms: int | None, dwell_s: int) -> None:
    assert compress.enrich(act(1, "item_view", dwell_ms=dwell_ms)).dwell_s == dwell_s


def test_nothing_in_gives_nothing_out() -> None:
    assert compress.compress([], CompressRule()) == ()
