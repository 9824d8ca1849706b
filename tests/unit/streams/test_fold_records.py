"""A batch may be cut anywhere, and bad records are set aside: the result is the same."""

import hashlib
import itertools
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from intentloop.adapters.codec import encode
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.facts import DeadLetter
from intentloop.fold import FoldRule
from intentloop.picks import PickRule
from streams.fold_records import DEAD, FoldContext, Output, decode, fold_batch, state_keys
from tests.unit.core_streams.make import NOW_MS, envelope, inference, view

CONTEXT = FoldContext(Keys("t"), FoldRule())


def record(offset: int, user: int, partition: int = 0) -> Record:
    ts_ms = NOW_MS + offset * 40_000
    one = envelope(
        view(f"e{offset}", ts_ms, f"a.b.{offset % 5}"),
        inference(f"i{offset}", ("买买买", "闲逛", "比价犹豫|帐篷")[offset % 3], ts_ms=ts_ms + 1),
        received_ms=ts_ms + 10,
    )
    value = encode(one).replace(b'"user_id":"u1"', f'"user_id":"u{user}"'.encode())
    return Record(partition, offset, value)


def run(
    records: list[Record], cuts: list[int], rule: FoldRule = CONTEXT.rule
) -> tuple[dict[str, bytes], Counter[str], list[tuple[str, bytes]]]:
    context = FoldContext(CONTEXT.keys, rule)
    store: dict[str, bytes] = {}
    counts: Counter[str] = Counter()
    outputs: list[Output] = []
    bounds = [0, *sorted(cuts), len(records)]
    for start, end in itertools.pairwise(bounds):
        batch = decode(records[start:end], rule)
        found = {key: store.get(key) for key in state_keys(batch, context.keys)}
        outcome = fold_batch(batch, found, {0: -1, 1: -1}, context)
        for write in outcome.writes:
            store |= write.states
            counts.update(write.counts)
        outputs.extend(outcome.outputs)
    return store, counts, sorted((output.topic.name, output.value) for output in outputs)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=20), st.data())
def test_where_batches_are_cut_does_not_matter(users: list[tuple[int, int]], data: st.DataObject) -> None:
    records = [record(offset, user, partition) for offset, (user, partition) in enumerate(users)]
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    assert run(records, cuts) == run(records, [])


def test_bad_records_become_dead_letters_and_move_the_watermark() -> None:
    deep = b'{"batch_id":"b","other":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    values = [b"\xff\xfe\x00", b"", b"[]", deep, None, encode(envelope(received_ms=5)), b'{"batch_id":"\\ud800"}']
    records = [record(0, 1), *(Record(0, 1 + index, value) for index, value in enumerate(values))]
    outcome = fold_batch(
        decode(records, CONTEXT.rule),
        dict.fromkeys(state_keys(decode(records, CONTEXT.rule), CONTEXT.keys)),
        {0: -1},
        CONTEXT,
    )
    (write,) = outcome.writes
    assert write.watermark == len(values)
    assert write.counts["undecodable"] == len(values)
    assert write.counts["records"] == len(records)
    letters = [output for output in outcome.outputs if output.topic == DEAD]
    assert [letter.key for letter in letters] == [f"0-{1 + index}" for index in range(len(values))]


def test_an_envelope_with_a_kind_of_event_that_is_not_known_is_kept_aside_whole_and_its_neighbours_go_on() -> None:
    newer = encode(envelope(view("e1"), view("e2"))).replace(b'"kind":"behaviour"', b'"kind":"hologram"', 1)
    records = [record(0, 1), Record(0, 1, newer), record(2, 1)]
    batch = decode(records, CONTEXT.rule)
    outcome = fold_batch(batch, dict.fromkeys(state_keys(batch, CONTEXT.keys)), {0: -1}, CONTEXT)
    (write,) = outcome.writes
    assert (write.counts["undecodable"], write.counts["envelopes"], write.watermark) == (1, 2, 2)
    (letter,) = [
        msgspec.json.decode(output.value, type=DeadLetter) for output in outcome.outputs if output.topic == DEAD
    ]
    assert "hologram" in letter.reason
    assert letter.sha256 == hashlib.sha256(newer).hexdigest()


def test_a_fact_too_large_for_the_broker_becomes_a_dead_letter() -> None:
    huge = inference("i", "买买买" + "！" * 400_000)  # 1.2 MB in UTF-8
    records = [Record(0, 0, encode(envelope(huge)))]
    batch = decode(records, CONTEXT.rule)
    (output,) = fold_batch(batch, dict.fromkeys(state_keys(batch, CONTEXT.keys)), {0: -1}, CONTEXT).outputs
    assert output.topic == DEAD
    assert b"SamplePicked of 1200" in output.value
    assert len(output.value) < 10_000


def test_each_partition_is_written_by_itself_from_its_own_watermark() -> None:
    records = [record(4, 1, 0), record(9, 1, 1)]
    batch = decode(records, CONTEXT.rule)
    outcome = fold_batch(batch, dict.fromkeys(state_keys(batch, CONTEXT.keys)), {0: 3, 1: 8}, CONTEXT)
    assert [(write.partition, write.expected, write.watermark) for write in outcome.writes] == [(0, 3, 4), (1, 8, 9)]
    assert all(":{0}:" in key for key in outcome.writes[0].states)
    assert all(":{1}:" in key for key in outcome.writes[1].states)


def test_the_budget_of_picks_is_spent_by_the_whole_partition_over_batches() -> None:
    rule = FoldRule(pick=PickRule(random_ratio=0.0, budget_per_hour=3))
    faulty = [record(3 * number, number) for number in range(10)]  # answer 买买买, all within one hour
    one_by_one = run(faulty, list(range(1, 10)), rule)
    assert one_by_one[1]["picked"] == 3
    assert run(faulty, [], rule)[1]["picked"] == 3
