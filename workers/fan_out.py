"""Picked samples become labelling jobs: from `stream.sample-picked.v1` into the job queue, each sample once.

1. One worker holds the lease `fan-out`; the others stand by.
2. It reads the stored offsets; those of another broker epoch are void, since a reset broker counts from zero again.
   A log that begins anew meanwhile is noticed before any of its records is carried, and read from its beginning.
3. Poll → decode → put jobs (idempotent by sample id) → only then store the offsets. A crash in between repeats puts
   that change nothing. What cannot be decoded goes to the dead-letter topic and is never tried again.

Not here: labelling (`label.py`).
"""

import asyncio
import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor

from intentloop import topics
from intentloop.adapters import codec, metrics
from intentloop.adapters.broker_epoch import broker_epoch
from intentloop.adapters.fact_reader import FactReader, Record
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue
from intentloop.adapters.leases import Lease
from intentloop.adapters.offset_store import OffsetStore
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ContractError, FencedError
from intentloop.facts import DeadLetter, SamplePicked

log = logging.getLogger(__name__)

LEASE_MS = 4_000  # after a kill this long nobody fans out or decides; a paused owner does no harm
POLL_MS = 500
STAND_BY_S = 1.0
EXCERPT_CHARS = 512


class FanOut:
    """Carries picked samples into a queue.

    Args:
        kafka: Where the broker is.
        offsets: How far it has come.
        queue: Of labelling jobs.
        producer: For dead letters.
    """

    def __init__(self, kafka: KafkaSection, offsets: OffsetStore, queue: JobQueue, producer: FactProducer) -> None:
        self._kafka, self._offsets, self._queue, self._producer = kafka, offsets, queue, producer

    async def run(self, lease: Lease, stop: asyncio.Event) -> None:
        """Carry samples while the lease is ours, until told to stop."""
        with ThreadPoolExecutor(1, thread_name_prefix="fan-out") as thread:
            while not stop.is_set():
                if await lease.hold():
                    await self._carry(lease, stop, thread)
                await _pause(stop, STAND_BY_S)
        await lease.release()

    async def _carry(self, lease: Lease, stop: asyncio.Event, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        epoch = await loop.run_in_executor(thread, broker_epoch, self._kafka, topics.PICKED)
        offsets = await self._offsets.load(epoch)
        if offsets is None:
            log.warning("the broker's log began anew (epoch %s): reading it from its beginning", epoch)
        reader = await loop.run_in_executor(thread, FactReader, self._kafka, topics.PICKED, offsets or {}, epoch)
        log.info("fan-out reads %s from %s", topics.PICKED.name, offsets or "the beginning")
        try:
            while not stop.is_set() and await lease.hold():
                records = await loop.run_in_executor(thread, reader.poll, POLL_MS)
                await self.carry(records)
                await self._offsets.save(epoch, records)
        except FencedError as error:
            log.warning("fan-out starts over: %s", error)
        finally:
            await loop.run_in_executor(thread, reader.close)

    async def carry(self, records: list[Record]) -> None:
        """Put a job for each record; returns when Redis, or the dead-letter topic, has all of them."""
        for start in range(0, len(records), 100):
            await asyncio.gather(*(self._carry_one(record) for record in records[start : start + 100]))

    async def _carry_one(self, record: Record) -> None:
        try:
            sample: SamplePicked = codec.read(topics.PICKED, record.value)
        except ContractError as error:
            key = f"{record.partition}-{record.offset}"
            await self._producer.send(topics.dead(topics.PICKED), key, _dead_letter(record, str(error)))
            metrics.FAN_OUT_RECORDS.labels("dead").inc()
            return
        new = await self._queue.put(sample.id, record.value or b"")
        metrics.FAN_OUT_RECORDS.labels("queued" if new else "repeated").inc()


def _dead_letter(record: Record, reason: str) -> DeadLetter:
    value = record.value or b""
    return DeadLetter(
        source_topic=topics.PICKED.name,
        source_partition=record.partition,
        source_offset=record.offset,
        index=0,
        reason=reason,
        sha256=hashlib.sha256(value).hexdigest(),
        size_bytes=len(value),
        excerpt=value[:EXCERPT_CHARS].decode("utf-8", "replace")[:EXCERPT_CHARS],
    )


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
