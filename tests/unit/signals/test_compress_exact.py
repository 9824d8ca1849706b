"""Compression at its edges: what is cut, in which order, and what a budget means, against a plain reference."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intentloop import compress, prompt
from intentloop.compress import CAPS, PRIORITY, CompressRule
from intentloop.events import Action, Behaviour, SequenceItem

ROOMY = CompressRule(budget_tokens=100_000)
USEFUL: list[Action] = [
    "search",
    "purchase",
    "cart",
    "favourite",
    "item_view",
    "content_view",
    "video",
    "external_open",
]
TITLES = ("帐篷", "美的空调遥控器通用款 KT-2018", "a", "加厚羽绒服2026新款男士连帽保暖外套", "½ × 3|5；→【】")


def act(number: int, action: Action, **changes: object) -> Behaviour:
    event = Behaviour(event_id=f"e{number}", action=action, ts_ms=number * 60_000, item_id=f"i{number}")
    filled = msgspec.structs.replace(
        event, title=TITLES[number % len(TITLES)], category="户外.露营.帐篷", price_yuan=9.9
    )
    return msgspec.structs.replace(filled, **changes)


EVENTS = st.lists(st.sampled_from([*USEFUL, "exposure", "ui"]), max_size=140).map(
    lambda actions: [act(number, action) for number, action in enumerate(actions)]
)


def tokens(items: list[SequenceItem] | tuple[SequenceItem, ...]) -> int:
    return compress.estimate_tokens(prompt.sequence_text(items))


def by_reference(events: list[Behaviour], budget: int) -> list[Behaviour]:
    """Take away one by one, worst first: lowest group, then oldest; never the newest of P0."""
    useful = [event for event in events if PRIORITY[event.action] < 3]
    capped = [
        event
        for place, event in enumerate(useful)
        if sum(later.action == event.action for later in useful[place + 1 :]) < CAPS[event.action]
    ]
    strong = [event for event in capped if PRIORITY[event.action] == 0]

    while tokens([compress.enrich(event) for event in capped]) > budget:
        loose = [event for event in capped if event is not (strong[-1] if strong else None)]
        if not loose:
            break
        capped.remove(max(loose, key=lambda event: (PRIORITY[event.action], -event.ts_ms)))
    return capped


@settings(deadline=None, max_examples=80)
@given(EVENTS, st.integers(100, 400))
def test_what_is_kept_is_what_the_reference_keeps(events: list[Behaviour], budget: int) -> None:
    kept = compress.stratify(compress.filter_noise(events), CompressRule(budget_tokens=budget))
    assert kept == by_reference(events, budget)


@settings(deadline=None, max_examples=80)
@given(EVENTS, st.integers(100, 300))
def test_the_sequence_stays_within_its_budget_and_keeps_the_newest_strong_signal(
    events: list[Behaviour], budget: int
) -> None:
    rule = CompressRule(budget_tokens=budget)
    items = compress.compress(events, rule)
    useful = compress.filter_noise(events)
    assert tokens(items) <= (400 if len(useful) >= rule.active_events else budget)
    strong = [event for event in useful if PRIORITY[event.action] == 0]
    assert not strong or compress.enrich(strong[-1]) in items


def test_a_strong_signal_that_is_longer_than_the_budget_stands_alone() -> None:
    huge = act(3, "purchase", title="7" * 500, category=".".join(["9" * 60] * 3))
    items = compress.compress(
        [act(1, "search"), act(2, "item_view"), huge, act(4, "video")], CompressRule(budget_tokens=100)
    )
    assert [item.action for item in items] == ["purchase"]
    assert tokens(items) > 100


@pytest.mark.parametrize(("done", "most"), [(99, 300), (100, 400)])
def test_only_the_most_active_get_the_larger_budget(done: int, most: int) -> None:
    actions: list[Action] = [USEFUL[number % len(USEFUL)] for number in range(done)]
    events = [act(number, action) for number, action in enumerate(actions)]
    repeats = [msgspec.structs.replace(event, event_id=f"r{event.event_id}") for event in events[-5:]]
    items = compress.compress([*events, *repeats], CompressRule())
    assert most - 50 < tokens(items) <= most


@pytest.mark.parametrize(("action", "cap"), CAPS.items())
def test_a_cap_holds_at_its_edge(action: Action, cap: int) -> None:
    for count in (cap - 1, cap, cap + 1):
        kept = compress.stratify([act(number, action) for number in range(count)], ROOMY)
        assert [event.ts_ms // 60_000 for event in kept] == list(range(max(0, count - cap), count))


def test_a_repeat_restarts_the_window_and_an_earlier_time_is_no_repeat() -> None:
    def at(ts_ms: int, item_id: str = "i") -> Behaviour:
        return act(0, "item_view", ts_ms=ts_ms, item_id=item_id)

    assert len(compress.debounce([at(0), at(30_000), at(60_000)], 30_000)) == 1
    assert len(compress.debounce([at(0), at(30_000), at(60_001)], 30_000)) == 2
    assert len(compress.debounce([at(5_000), at(0)], 30_000)) == 2
    assert len(compress.debounce([at(0), at(1, "j"), at(2)], 30_000)) == 2, "others between do not matter"


def test_what_has_no_item_is_the_same_by_its_text() -> None:
    searches = [act(number, "search", item_id="", title=title, ts_ms=number) for number, title in enumerate("帐灯帐")]
    assert [event.title for event in compress.debounce(searches, 30_000)] == ["帐", "灯"]


@given(EVENTS)
def test_the_stages_are_the_whole(events: list[Behaviour]) -> None:
    distinct = compress.debounce(compress.filter_noise(events), ROOMY.debounce_ms)
    by_stage = [compress.enrich(event) for event in compress.stratify(distinct, ROOMY)]
    assert compress.compress(events, ROOMY) == tuple(by_stage)
    assert Counter(item.action for item in by_stage) <= Counter(CAPS)


def test_each_item_is_told_with_category_price_and_dwell() -> None:
    items = compress.compress([act(1, "item_view", title="帐篷", price_yuan=199.0, dwell_ms=66_400)], CompressRule())
    assert prompt.sequence_text(items) == "【行为序列】商详页(帐篷,¥199,cat:户外.露营.帐篷,66s)"
