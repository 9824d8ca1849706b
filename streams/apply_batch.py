"""How is a batch applied exactly once in effect? The protocol, in order; Redis is the truth about progress.

1. On assignment: read the watermark of each partition from Redis and begin at watermark + 1; missing means the start.
2. Per batch: drop what lies at or below the watermark; the rest must follow it without a gap. One MGET of the touched
   watermarks and states; a watermark that differs from memory stops this process: another worker owns the partition, or
   Redis went back.
3. Fold in memory (pure), and wait for the broker's word that the records are of the log that the watermarks are of;
   send the outputs with acks=all, and wait until all of them are stored.
4. One script per partition: if the watermark is the expected one, write states, counters and the new watermark.
5. Only then acknowledge to Kafka (the caller does). Any exception before that ends the process unacknowledged.

Killed between 3 and 4, the batch is folded again and the same facts are sent again under the same ids.

While one batch waits for broker and Redis (`finish`), the next one is folded already (`fold`): over what the first one
will have written, whether Redis has it yet or not. Nothing of it is sent before the first one is written, and the
script compares, so a first one that fails takes the second one with it.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterator, Sequence
from typing import NamedTuple

from intentloop.adapters import metrics
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.state_store import NO_WATERMARK, PartitionWrite, StateStore
from intentloop.errors import FencedError
from streams.fold_records import FoldContext, Outcome, Output, decode, fold_batch, state_keys

log = logging.getLogger("streams")

OUTCOMES = ("applied", "inferences", "skipped", "late", "quarantined", "rejected", "duplicates")


class Folded(NamedTuple):
    """A batch that is folded, and not sent or written yet. `records`: how many of it were new."""

    records: int
    outcome: Outcome
    begun_s: float


class BatchApplier:
    """Applies batches of one worker: each is folded after the one before, and finished after the one before.

    Args:
        store: Where states and watermarks live.
        producer: Sends outputs.
        context: Keys, rule and id suffix of the fold.
    """

    def __init__(self, store: StateStore, producer: FactProducer, context: FoldContext) -> None:
        self._store, self._producer, self._context = store, producer, context
        self._watermarks: dict[int, int] = {}  # as Redis confirmed them
        self._folded: dict[int, int] = {}  # as they will be once `_ahead` is written
        self._next: dict[int, int] = {}
        self._sought: set[int] = set()  # partitions of which nothing has come since the last seek
        self._ahead: deque[Outcome] = deque()
        self._writing = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        self.applied_at_s = time.monotonic()

    async def positions(self, earliest: dict[int, int]) -> dict[int, int]:
        """Step 1. Where does each assigned partition begin? After what is being written, too.

        Args:
            earliest: First offset that the broker still has, by partition.
        """
        async with self._writing:
            self._watermarks = await self._store.watermarks(list(earliest))
            self._folded = dict(self._watermarks)
            for write in self._writes_ahead():
                if write.partition in self._folded:
                    self._folded[write.partition] = max(self._folded[write.partition], write.watermark)
        self._next, self._sought = {}, set(self._folded)
        for partition, watermark in self._folded.items():
            self._next[partition] = max(watermark + 1, earliest[partition])
            if watermark > NO_WATERMARK and earliest[partition] > watermark + 1:
                log.error(
                    "partition %d: records %d to %d were deleted by retention before they were applied",
                    partition,
                    watermark + 1,
                    earliest[partition] - 1,
                )
        log.info("partitions begin at offsets %s", dict(sorted(self._next.items())))
        return dict(self._next)

    def applied(self) -> dict[int, int]:
        """Up to which offset has Redis confirmed each partition of this worker?"""
        return dict(self._watermarks)

    async def apply(self, records: Sequence[Record]) -> int:
        """Steps 2 to 4 for one batch and no other meanwhile; returns how many records were new."""
        folded = await self.fold(records)
        await self.finish(folded)
        return folded.records

    async def fold(self, records: Sequence[Record]) -> Folded:
        """Step 2, and the first half of 3. At most one batch may be unfinished when this is called.

        Args:
            records: Of each partition in its order.

        Raises:
            FencedError: this process no longer knows the truth about a partition; it must end.
        """
        begun_s = time.monotonic()
        fresh = self._fresh(records)
        if not fresh:
            return Folded(0, Outcome([], []), begun_s)
        decoded = decode(fresh, self._context.rule)
        expected = {record.partition: self._folded[record.partition] for record in fresh}
        confirmed = {partition: self._watermarks[partition] for partition in expected}
        unwritten = {key: value for write in self._writes_ahead() for key, value in write.states.items()}
        found = await self._store.load(expected, state_keys(decoded, self._context.keys), confirmed)
        outcome = fold_batch(decoded, found | unwritten, expected, self._context)
        for write in outcome.writes:
            self._folded[write.partition] = write.watermark
            self._next[write.partition] = write.watermark + 1
        self._ahead.append(outcome)
        return Folded(len(fresh), outcome, begun_s)

    async def finish(self, folded: Folded, confirmed: Awaitable[None] | None = None) -> None:
        """The second half of step 3, and 4, of the batch that was folded first of all unfinished ones.

        Args:
            folded: What `fold` gave.
            confirmed: Returns when the broker has told whose log they are of, raises if it is another. None: not asked.

        Raises:
            FencedError: this process no longer knows the truth about a partition; it must end.
        """
        if confirmed is not None:
            await confirmed
        if not folded.records:
            return
        await self._send(folded.outcome.outputs)
        async with self._writing:
            await self._store.apply(folded.outcome.writes)
            self._ahead.popleft()
            for write in folded.outcome.writes:
                self._watermarks[write.partition] = write.watermark
        self._count(folded)

    def _writes_ahead(self) -> Iterator[PartitionWrite]:
        """What is folded and perhaps not written yet, oldest first."""
        return (write for outcome in self._ahead for write in outcome.writes)

    def _fresh(self, records: Sequence[Record]) -> list[Record]:
        """Step 2, first half. Which records were not applied yet? They must follow the watermark without a gap.

        Only what comes first after a seek may lie further on: the broker has nothing at the offsets before it, such as
        those of a transaction's markers. A gap later on is ours, or is found to be none by seeking there.
        """
        fresh: list[Record] = []
        following = dict(self._next)
        for record in records:
            wanted = following.get(record.partition)
            if wanted is None:
                continue  # handed out before the partition was taken away
            if record.offset > wanted and record.partition in self._sought:
                log.warning("partition %d: no records at offsets %d to %d", record.partition, wanted, record.offset - 1)
                wanted = record.offset
            self._sought.discard(record.partition)
            if record.offset > wanted:
                raise FencedError(
                    f"partition {record.partition} goes on at offset {record.offset}, expected {wanted}: records are "
                    "missing between; this process stops and starts again from the watermark"
                )
            if record.offset == wanted:
                fresh.append(record)
                following[record.partition] = wanted + 1
        return fresh

    async def _send(self, outputs: Sequence[Output]) -> None:
        """Step 3, second half. All outputs are stored by the broker before anything else happens."""
        if not outputs:
            return
        await self._producer.send_all(outputs)
        for name, count in Counter(output.topic.name for output in outputs).items():
            metrics.STREAM_OUTPUTS.labels(name).inc(count)

    def _count(self, folded: Folded) -> None:
        self.applied_at_s = time.monotonic()
        metrics.STREAM_RECORDS.inc(folded.records)
        metrics.STREAM_BATCH.observe(self.applied_at_s - folded.begun_s)
        for write in folded.outcome.writes:
            self.counts.update(write.counts)
            for outcome in OUTCOMES:
                if write.counts.get(outcome):
                    metrics.STREAM_EVENTS.labels(outcome).inc(write.counts[outcome])
