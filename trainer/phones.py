"""What do phones themselves report of each release? Reads their telemetry on from where it stopped.

The table and the offsets behind it lie in one file that is replaced as a whole, so every envelope counts once, whatever
is killed meanwhile. Reading is bounded by time; the next report goes on. The end of a partition is where nothing more
comes, since the embedded broker's end offsets are wrong. A broker that began anew is read from its beginning.
"""

import contextlib
import time
from pathlib import Path

import msgspec

from intentloop import phone_speed
from intentloop.adapters import codec
from intentloop.adapters.broker_epoch import broker_epoch
from intentloop.adapters.fact_reader import FactReader
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ContractError, FencedError
from intentloop.phone_speed import PhoneTable
from intentloop.topics import TELEMETRY
from trainer import step

POLL_MS = 500
EMPTY_POLLS = 2  # in a row: nothing more lies there


class Collected(msgspec.Struct, kw_only=True):
    """The table, the next offset of each partition in the log `epoch`, and how many records were no envelope."""

    epoch: str = ""
    offsets: dict[int, int] = {}
    table: PhoneTable = msgspec.field(default_factory=PhoneTable)
    undecodable: int = 0


def collect(kafka: KafkaSection, path: Path, budget_s: float) -> Collected:
    """Read on for at most `budget_s` and keep in `path` what is known then.

    Raises:
        UnavailableError: the broker does not answer, or has no such topic.
    """
    known, epoch = read(path), broker_epoch(kafka, TELEMETRY)
    if known.epoch != epoch:
        known.epoch, known.offsets = epoch, {}
    reader = FactReader(kafka, TELEMETRY, known.offsets, epoch)
    try:
        with contextlib.suppress(FencedError):  # it began anew while we read: the next report begins there
            _read_on(reader, known, time.monotonic() + budget_s)
    finally:
        reader.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    step.write_atomically(path, msgspec.json.encode(known))
    return known


def _read_on(reader: FactReader, known: Collected, ends_at: float) -> None:
    empty = 0
    while empty < EMPTY_POLLS and time.monotonic() < ends_at:
        records = reader.poll(POLL_MS)
        empty = 0 if records else empty + 1
        for record in records:
            known.offsets[record.partition] = record.offset + 1
            try:
                phone_speed.fold(known.table, codec.read(TELEMETRY, record.value))
            except ContractError:
                known.undecodable += 1


def read(path: Path) -> Collected:
    """What is known so far? Nothing where there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=Collected) if path.is_file() else Collected()
