"""Compiled code and the definition give the same bytes: states, counts and outputs, whatever phones send."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import traffic
from intentloop import compress, window
from intentloop.adapters.codec import encode
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.compress import CompressRule
from intentloop.drift import DriftRule
from intentloop.errors import ContractError
from intentloop.events import Behaviour, Envelope, Event, Rejection
from intentloop.fold import FoldRule
from intentloop.timeline import TimeRule
from streams.fold_columns import ColumnFold
from streams.fold_partition import Owned, Walked
from streams.fold_records import FEW, FoldContext, decode, fold_batch, state_keys
from tests.unit.core_streams.make import NOW_MS, TENT, envelope, inference, skipped, view

KEYS = Keys("t")
Result = tuple[dict[str, bytes], Counter[str], list[tuple[str, str, bytes]]]

actions: st.SearchStrategy[Any] = st.sampled_from(sorted(compress.PRIORITY))
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x1e"), max_size=9)
ids = st.one_of(st.integers(0, 12).map(str), texts)
EDGES_MS = [0, 10_000, 20_000, 20_001, 30_000, 40_000]  # the debounce below is 20 s
FAR_MS = [-20_000, -30_000, -30_001, -2_000_000, 601_000, 601_001, 10**15, -(10**13)]  # late, or not believed
gaps_ms = st.one_of(st.sampled_from(EDGES_MS), st.sampled_from(EDGES_MS), st.sampled_from(FAR_MS))


@st.composite
def events(draw: st.DrawFn) -> Event:
    event_id, ts_ms = draw(ids), NOW_MS + draw(gaps_ms)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        said = draw(st.sampled_from(["闲逛", "比价犹豫|帐篷", "场景购物|帐篷", "买", "!!!!!!!!!!", "比价犹豫|火箭"]))
        return inference(event_id, said, ts_ms=ts_ms, confidence=draw(st.sampled_from([None, 0.1, 0.9])))
    if kind == 1:
        return skipped(event_id, ts_ms)
    return Behaviour(
        event_id=event_id,
        action=draw(actions),
        ts_ms=ts_ms,
        seq=draw(st.integers(0, 3)),
        item_id=draw(st.sampled_from(["", "1", "2", "3"])),
        title=draw(st.sampled_from(["", "帐篷", "灯"])),
        category=draw(st.sampled_from(["", "a", "b.c", "d", "e", "f", "g"])),
    )


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    return Envelope(
        batch_id=draw(st.sampled_from(["b1", "b2"])),
        user_id=draw(st.sampled_from(["u1", "u2"])),
        device_id="d",
        sent_at_ms=draw(st.sampled_from([None, None, None, NOW_MS, NOW_MS + 3_000])),
        received_at_ms=draw(st.sampled_from([0, NOW_MS + 1_000, NOW_MS + 61_000, NOW_MS + 61_001])),
        events=tuple(draw(st.lists(events(), max_size=25))),
        rejected=tuple(Rejection(index, "bad") for index in range(draw(st.integers(0, 2)))),
    )


rules = st.builds(
    lambda window_, least, base, margin, jaccard, threshold, ttl_ms: FoldRule(
        time=TimeRule(late_grace_ms=60_000),
        compress=CompressRule(debounce_ms=20_000),
        drift=DriftRule(window=window_, min_window=least, log_base=base, switch_jaccard=jaccard, threshold=threshold),
        rearm_margin=margin,
        state_ttl_ms=ttl_ms,
    ),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(["2", "e", "normalised"]),
    st.sampled_from([0.0, 0.15, 0.5]),
    st.sampled_from([-1.0, 0.0, 0.4]),
    st.sampled_from([0.05, 0.3, 0.3 * (1 + 1 / 3), 0.8]),
    st.sampled_from([60_000, 86_400_000]),  # the shorter one is over between two envelopes below
)


class Compiled:
    """Compiled code that may not decline: else the definition would be compared with itself."""

    def __init__(self, rule: FoldRule) -> None:
        self._columns = ColumnFold(rule)

    def walk(self, owned: Sequence[Owned], found: Mapping[str, bytes | None]) -> Walked | None:
        walked = self._columns.walk(owned, found)
        assert walked is not None
        return walked


def run(records: Sequence[Record], rule: FoldRule, compiled: bool, batch: int = 3) -> Result:
    context = FoldContext(KEYS, rule, "", Compiled(rule) if compiled else None)
    store: dict[str, bytes] = {}
    counts: Counter[str] = Counter()
    outputs: list[tuple[str, str, bytes]] = []
    assert batch >= FEW
    for start in range(0, len(records), batch):
        decoded = decode(records[start : start + batch], rule)
        found = {key: store.get(key) for key in state_keys(decoded, KEYS)}
        outcome = fold_batch(decoded, found, dict.fromkeys(range(8), -1), context)
        for write in outcome.writes:
            store |= write.states
            counts.update(write.counts)
        outputs += [(output.topic.name, output.key, output.value) for output in outcome.outputs]
    return store, counts, outputs


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(envelopes(), min_size=FEW, max_size=7), rules)
def test_compiled_code_gives_what_the_definition_gives(sent: list[Envelope], rule: FoldRule) -> None:
    records = [Record(0, offset, encode(one)) for offset, one in enumerate(sent)]
    assert run(records, rule, compiled=True) == run(records, rule, compiled=False)


def test_a_replay_of_shoppers_is_the_same_to_the_last_byte() -> None:
    records = [
        Record(number % 8, number // 8, value) for number, (_, value) in enumerate(traffic.messages(11, 400, 40))
    ]
    compiled, plain = (run(records, FoldRule(), way, batch=150) for way in (True, False))
    assert compiled == plain
    store, counts, outputs = compiled
    assert counts["events_in"] == counts["applied"] + counts["inferences"] + counts["skipped"] == 10_000
    assert min(counts["drifts"], counts["triggers"], counts["picked"], counts["noise"], counts["repeats"]) > 0
    assert len(store) >= 40
    assert outputs


def walk(rule: FoldRule, one: Envelope, packed: bytes | None = None) -> Any:
    return ColumnFold(rule).walk([Owned("k", one)], {"k": packed})


def test_ordinary_batches_are_compiled_and_the_rest_goes_the_plain_way() -> None:
    assert walk(FoldRule(), envelope(view("a"), view("b", NOW_MS - 1))) is not None
    assert walk(FoldRule(), envelope()) is not None
    assert walk(FoldRule(drift=DriftRule(window=65)), envelope(view("a"))) is None
    for odd in (view("a\x1eb"), view("a", ts_ms=10**19), view("a", ts_ms=-(2**62))):
        assert walk(FoldRule(), envelope(odd)) is None
    title = Behaviour(event_id="a", action="search", ts_ms=NOW_MS, title="a\x1eb", category=TENT)
    assert walk(FoldRule(), envelope(title)) is None


def test_a_full_state_goes_through_compiled_code_unchanged() -> None:
    rule = FoldRule(drift=DriftRule(window=64))
    many = [view(f"e{n}", NOW_MS + n, f"c{n % 50}") for n in range(200)]
    first = walk(rule, envelope(*many, received_ms=NOW_MS + 500))
    packed = first.heads["k"] + window.pack_tail(window.LiveIntent("闲逛"), (1, 2))
    state = window.unpack(packed)
    assert (len(state.seen), len(state.recent), len(state.labels)) == (200 * 5, 12, 64)
    again = walk(rule, envelope(*many[:3], received_ms=NOW_MS + 500), packed)
    after = window.unpack(again.heads["k"] + again.tails["k"])
    assert (len(state.batches), len(after.batches)) == (5, 10)
    assert msgspec.structs.replace(after, batches=state.batches) == state
    assert again.counts()["duplicates"] == 3


@pytest.mark.parametrize("packed", [b"\x02" + bytes(60), b"\x03", window.pack(window.UserState())[:20]])
def test_a_state_that_cannot_be_read_is_refused_in_either_way(packed: bytes) -> None:
    assert walk(FoldRule(), envelope(view("a")), packed) is None
    rule = FoldRule()
    decoded = decode([Record(0, offset, encode(envelope(view("a")))) for offset in range(FEW)], rule)
    found = {key: packed if ":user:" in key else None for key in state_keys(decoded, KEYS)}
    with pytest.raises(ContractError, match="state"):
        fold_batch(decoded, found, {0: -1}, FoldContext(KEYS, rule, "", ColumnFold(rule)))
