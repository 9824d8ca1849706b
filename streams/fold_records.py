"""What do records of one batch do, before anything is sent or stored? Decode, fold, and lay the outputs out as facts.

No input or output: a replay that calls this over a whole partition gives what the workers must have given. A record
that cannot be decoded becomes a dead letter and moves the watermark like any other.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from intentloop import timeline, window
from intentloop.adapters.codec import DECODERS, encode
from intentloop.adapters.facts_producer import MAX_REQUEST_BYTES
from intentloop.adapters.keys import Keys
from intentloop.adapters.state_store import PartitionWrite
from intentloop.events import Envelope
from intentloop.fold import Folded, FoldRule, fold
from intentloop.picks import Spending
from intentloop.refusal import WHOLE, Source, dead_letter
from intentloop.topics import DRIFTED, PICKED, TELEMETRY, TRIGGERED, Topic, dead
from intentloop.window import UserState

DEAD = dead(TELEMETRY)
MAX_FACT_BYTES = MAX_REQUEST_BYTES - 4_096  # room for the key and Kafka's own framing

_decode_envelope = DECODERS[TELEMETRY.name].decode
_pack_spending = msgspec.msgpack.Encoder().encode
_unpack_spending = msgspec.msgpack.Decoder(Spending).decode


class Record(NamedTuple):
    """One Kafka record of telemetry."""

    partition: int
    offset: int
    value: bytes | None


class Output(NamedTuple):
    """One fact to send, encoded."""

    topic: Topic
    key: str
    value: bytes


class Decoded(NamedTuple):
    """A record with its envelope, or with the reason why it has none."""

    record: Record
    envelope: Envelope | None
    reason: str


class Outcome(NamedTuple):
    """What a batch did: facts to send, and what to write for each partition."""

    outputs: list[Output]
    writes: list[PartitionWrite]


class FoldContext(NamedTuple):
    """What stays the same for the life of a worker."""

    keys: Keys
    rule: FoldRule
    kind_suffix: str = ""


def decode(records: Sequence[Record], rule: FoldRule) -> list[Decoded]:
    """Which envelopes do these records hold?"""
    return [Decoded(record, *_decode_one(record.value, rule)) for record in records]


def _decode_one(value: bytes | None, rule: FoldRule) -> tuple[Envelope | None, str]:
    if value is None:
        return None, "tombstone: telemetry is never deleted by key; erase a user by id instead"
    try:
        envelope: Envelope = _decode_envelope(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, f"not an envelope: {error}"
    reason = timeline.envelope_fault(envelope, rule.time)
    return (None, reason) if reason else (envelope, "")


def state_keys(decoded: Sequence[Decoded], keys: Keys) -> list[str]:
    """Which states does this batch touch? Each user's, and each partition's pick budget."""
    names = {keys.pick_spending(one.record.partition): None for one in decoded}
    for one in decoded:
        if one.envelope is not None:
            names[keys.user(one.record.partition, one.envelope.user_id)] = None
    return list(names)


def fold_batch(
    decoded: Sequence[Decoded], found: Mapping[str, bytes | None], expected: Mapping[int, int], context: FoldContext
) -> Outcome:
    """Fold a batch over the packed states that were `found` for its `state_keys`.

    Args:
        decoded: In offset order within each partition.
        expected: Watermark of each partition before the batch.
    """
    outputs: list[Output] = []
    writes: list[PartitionWrite] = []
    for partition in dict.fromkeys(one.record.partition for one in decoded):
        own = [one for one in decoded if one.record.partition == partition]
        states, counts = _fold_partition(own, found, context, outputs)
        writes.append(PartitionWrite(partition, expected[partition], own[-1].record.offset, states, counts))
    return Outcome(outputs, writes)


def _fold_partition(
    decoded: Sequence[Decoded], found: Mapping[str, bytes | None], context: FoldContext, outputs: list[Output]
) -> tuple[dict[str, bytes], Counter[str]]:
    budget_key = context.keys.pick_spending(decoded[0].record.partition)
    before = spending = _read_spending(found[budget_key])
    states: dict[str, UserState] = {}
    counts: Counter[str] = Counter(records=len(decoded))
    for record, envelope, reason in decoded:
        source = Source(TELEMETRY.name, record.partition, record.offset, context.kind_suffix)
        if envelope is None:
            counts["undecodable"] += 1
            outputs.append(_refused(source, reason, record.value))
            continue
        key = context.keys.user(record.partition, envelope.user_id)
        state = states[key] if key in states else _read_state(found[key])
        folded = fold(state, envelope, source, spending, context.rule)
        states[key], spending = folded.state, folded.spending
        counts.update(folded.counts)
        outputs.extend(_sendable(source, output) for output in _outputs(folded, envelope.user_id))
    packed = {key: window.pack(state) for key, state in states.items()}
    if spending is not before:
        packed[budget_key] = _pack_spending(spending)
    return packed, counts


def _read_state(packed: bytes | None) -> UserState:
    return UserState() if packed is None else window.unpack(packed)


def _read_spending(packed: bytes | None) -> Spending:
    return Spending() if packed is None else _unpack_spending(packed)


def _refused(source: Source, reason: str, value: bytes | None) -> Output:
    letter = dead_letter(source, WHOLE, reason, value or b"")
    return Output(DEAD, f"{source.partition}-{source.offset}", encode(letter))


def _sendable(source: Source, output: Output) -> Output:
    """A fact that the broker would refuse for its size becomes a dead letter: else no restart would get past it."""
    if len(output.value) <= MAX_FACT_BYTES:
        return output
    reason = f"{output.topic.event} of {len(output.value)} bytes is above the limit of {MAX_FACT_BYTES}"
    return _refused(source, reason, output.value)


def _outputs(folded: Folded, user_id: str) -> Iterator[Output]:
    """Which facts leave, under which keys?"""
    if folded.drifted is not None:
        yield Output(DRIFTED, user_id, encode(folded.drifted))
    for trigger in folded.triggered:
        yield Output(TRIGGERED, user_id, encode(trigger))
    for sample in folded.picked:
        yield Output(PICKED, sample.id, encode(sample))
    for letter in folded.dead:
        yield Output(DEAD, f"{letter.source_partition}-{letter.source_offset}", encode(letter))
