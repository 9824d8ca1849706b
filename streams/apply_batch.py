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
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence

from intentloop.adapters import metrics
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.state_store import NO_WATERMARK, StateStore
from intentloop.errors import FencedError
from streams.fold_records import FoldContext, Output, decode, fold_batch, state_keys

log = logging.getLogger("streams")

OUTCOMES = ("applied", "inferences", "skipped", "late", "quarantined", "rejected", "duplicates")


class BatchApplier:
    """Applies batches of one worker, one after the other.

    Args:
        store: Where states and watermarks live.
        producer: Sends outputs.
        context: Keys, rule and id suffix of the fold.
    """

    def __init__(self, store: StateStore, producer: FactProducer, context: FoldContext) -> None:
        self._store, self._producer, self._context = store, producer, context
        self._watermarks: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self.applied_at_s = time.monotonic()

    async def positions(self, earliest: dict[int, int]) -> dict[int, int]:
        """Step 1. Where does each assigned partition begin?

        Args:
            earliest: First offset that the broker still has, by partition.
        """
        self._watermarks = await self._store.watermarks(list(earliest))
        self._next = {}
        for partition, watermark in self._watermarks.items():
            self._next[partition] = max(watermark + 1, earliest[partition])
            if watermark != NO_WATERMARK and earliest[partition] > watermark + 1:
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

    async def apply(self, records: Sequence[Record], confirmed: Awaitable[None] | None = None) -> int:
        """Steps 2 to 4 for one batch; returns how many records were new.

        Args:
            records: Of each partition in its order.
            confirmed: Returns when the broker has told whose log they are of, raises if it is another. None: not asked.

        Raises:
            FencedError: this process no longer knows the truth about a partition; it must end.
        """
        started_s = time.monotonic()
        if not (fresh := self._fresh(records)):
            await _told(confirmed)
            return 0
        decoded = decode(fresh, self._context.rule)
        expected = {record.partition: self._watermarks[record.partition] for record in fresh}
        found = await self._store.load(expected, state_keys(decoded, self._context.keys))
        outcome = fold_batch(decoded, found, expected, self._context)
        await _told(confirmed)
        await self._send(outcome.outputs)
        await self._store.apply(outcome.writes)
        for write in outcome.writes:
            self._watermarks[write.partition] = write.watermark
            self._next[write.partition] = write.watermark + 1
            self.counts.update(write.counts)
            _measure(write.counts)
        self.applied_at_s = time.monotonic()
        metrics.STREAM_RECORDS.inc(len(fresh))
        metrics.STREAM_BATCH.observe(self.applied_at_s - started_s)
        return len(fresh)

    def _fresh(self, records: Sequence[Record]) -> list[Record]:
        """Step 2, first half. Which records were not applied yet? They must follow the watermark without a gap."""
        fresh: list[Record] = []
        following = dict(self._next)
        for record in records:
            wanted = following.get(record.partition)
            if wanted is None:
                continue  # handed out before the partition was taken away
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


async def _told(confirmed: Awaitable[None] | None) -> None:
    if confirmed is not None:
        await confirmed


def _measure(counts: Mapping[str, int]) -> None:
    for outcome in OUTCOMES:
        if counts.get(outcome):
            metrics.STREAM_EVENTS.labels(outcome).inc(counts[outcome])
