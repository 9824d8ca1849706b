"""What do records of one batch do, before anything is sent or stored? Decode, fold, and lay the outputs out as facts.

No input or output: a replay that calls this over a whole partition gives what the workers must have given. A record
that cannot be decoded becomes a dead letter and moves the watermark like any other.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from intentloop import timeline
from intentloop.adapters import codec
from intentloop.adapters.facts_producer import MAX_REQUEST_BYTES
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.state_store import PartitionWrite
from intentloop.errors import ContractError
from intentloop.events import Envelope
from intentloop.findings import Facts
from intentloop.fold import FoldRule
from intentloop.picks import Spending
from intentloop.refusal import WHOLE, Source, dead_letter
from intentloop.topics import DRIFTED, PICKED, TELEMETRY, TRIGGERED, Topic, dead
from streams.fold_partition import NOTHING, CompiledWay, Owned, PlainWay, Walk, Way

DEAD = dead(TELEMETRY)
FEW = 3  # records of a partition in a batch; fewer are folded faster by the definition than laid out in columns
MAX_FACT_BYTES = MAX_REQUEST_BYTES - 4_096  # room for the key and Kafka's own framing

_pack_spending = msgspec.msgpack.Encoder().encode
_unpack_spending = msgspec.msgpack.Decoder(Spending).decode


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
    compiled: Walk | None = None


def decode(records: Sequence[Record], rule: FoldRule) -> list[Decoded]:
    """Which envelopes do these records hold?"""
    return [Decoded(record, *_decode_one(record.value, rule)) for record in records]


def _decode_one(value: bytes | None, rule: FoldRule) -> tuple[Envelope | None, str]:
    try:
        envelope: Envelope = codec.read(TELEMETRY, value)
    except ContractError as error:
        return None, str(error)
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
    before = _read_spending(found[budget_key])
    way = _way(decoded, found, before, context)
    for record, envelope, reason in decoded:
        source = Source(TELEMETRY.name, record.partition, record.offset, context.kind_suffix)
        if envelope is None:
            way.counts["undecodable"] += 1
            outputs.append(_refused(source, reason, record.value))
            continue
        facts = way.fold(_owned(record, envelope, context.keys), source)
        if facts is not NOTHING:
            outputs.extend([_sendable(source, output) for output in _outputs(facts, envelope.user_id)])
    way.counts["records"] = len(decoded)
    packed = way.packed()
    if way.spending is not before:
        packed[budget_key] = _pack_spending(way.spending)
    return packed, way.counts


def _owned(record: Record, envelope: Envelope, keys: Keys) -> Owned:
    return Owned(keys.user(record.partition, envelope.user_id), envelope)


def _way(
    decoded: Sequence[Decoded], found: Mapping[str, bytes | None], spending: Spending, context: FoldContext
) -> Way:
    """Compiled where there is compiled code and the batch is ordinary and not small; else by the definition."""
    if context.compiled is not None and len(decoded) >= FEW:
        owned = [_owned(one.record, one.envelope, context.keys) for one in decoded if one.envelope is not None]
        walked = context.compiled.walk(owned, found)
        if walked is not None:
            return CompiledWay(walked, spending, context.rule)
    return PlainWay(found, spending, context.rule)


def _read_spending(packed: bytes | None) -> Spending:
    return Spending() if packed is None else _unpack_spending(packed)


def _refused(source: Source, reason: str, value: bytes | None) -> Output:
    letter = dead_letter(source, WHOLE, reason, value or b"")
    return Output(DEAD, f"{source.partition}-{source.offset}", codec.encode(letter))


def _sendable(source: Source, output: Output) -> Output:
    """A fact that the broker would refuse for its size becomes a dead letter: else no restart would get past it."""
    if len(output.value) <= MAX_FACT_BYTES:
        return output
    reason = f"{output.topic.event} of {len(output.value)} bytes is above the limit of {MAX_FACT_BYTES}"
    return _refused(source, reason, output.value)


def _outputs(facts: Facts, user_id: str) -> Iterator[Output]:
    """Which facts leave, under which keys?"""
    if facts.drifted is not None:
        yield Output(DRIFTED, user_id, codec.encode(facts.drifted))
    for trigger in facts.triggered:
        yield Output(TRIGGERED, user_id, codec.encode(trigger))
    for sample in facts.picked:
        yield Output(PICKED, sample.id, codec.encode(sample))
    for letter in facts.dead:
        yield Output(DEAD, f"{letter.source_partition}-{letter.source_offset}", codec.encode(letter))
