"""How do records reach the agent? In batches: Faust's price is per message, so one message carries a fetched list.

A Faust transport of our own: its consumer yields one Faust message per partition and fetch (value: the list of records,
offset: the last one), and after every assignment goes to where Redis says that we are. Membership, heartbeats,
rebalancing, commits with gap keeping and the command line stay Faust's; what it never does is fetch: librdkafka does
(`RecordFetcher`), in C threads, told after each assignment which partitions are ours. Not here: what is done with a
batch (`apply_batch.py`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import faust
from faust.transport.consumer import ensure_TP
from faust.transport.drivers import TRANSPORTS
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from intentloop.adapters.record_fetcher import Record, RecordFetcher

log = logging.getLogger("streams.transport")

SCHEME = "kafkabatch"
IDLE_S = 0.05  # how long a worker that may fetch nothing sleeps before it looks again
MAX_CHUNKS = 256  # lists kept of partitions that Faust has paused, which it does around a rebalance only
SEEK_S = 75.0  # longer than the broker is waited for, shorter than Faust waits for a seek

Positions = Callable[[dict[int, int]], Awaitable[dict[int, int]]]


class BatchTopic(faust.Topic):  # type: ignore[misc]
    """A topic whose messages are lists of records: nothing to decode here."""

    async def decode(self, message: Any, *, propagate: bool = False) -> Any:
        """Pass the list on as the event's value."""
        return self._create_event(None, message.value, headers=None, message=message)


class RebalanceListener(driver.ConsumerRebalanceListener):  # type: ignore[misc]
    """Keeps Faust's own client, which is the member of the group, from fetching as well."""

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Pause all of them in Faust's client, before it can ask for a record."""
        self._thread._consumer.pause(*assigned)
        await super().on_partitions_assigned(assigned)


class BatchConsumer(driver.Consumer):  # type: ignore[misc]
    """Yields one message per partition and fetch; starts each partition at the offset after its watermark."""

    RebalanceListener = RebalanceListener

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._source: RecordFetcher | None = None
        self._assignment = 0  # which one it is; what was fetched for another is dropped
        self._generation = 0  # of the group, when the assignment began
        self._chunks: deque[tuple[TP, list[Record]]] = deque()

    async def on_stop(self) -> None:
        """Commit for the last time, and hang up."""
        await super().on_stop()
        source, self._source = self._source, None
        if source is not None:
            await source.close()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Hand nothing on until the next assignment has begun, and let what is being worked on end."""
        self.stop_flow()  # Faust does not where nothing was ours, and would clear the queue after the seek
        self.app.flow_control.suspend()
        await super().on_partitions_revoked(revoked)
        await self._begin_at({})
        await self.transport.app.settle()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Say when there is nothing for this worker: who scales beyond the partitions should know."""
        if not assigned:
            log.warning("no partition for this worker: it waits to take over; more workers than partitions do no more")
        await super().on_partitions_assigned(assigned, generation_id)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Fetch, and hand on what belongs to us as it lies: a list for each partition."""
        while not (self.flow_active or self.should_stop):
            await self.wait(self.can_resume_flow)
        self._show_activity()
        chunk = self._next_chunk()
        if chunk is None:
            await self._fetch()
            chunk = self._next_chunk()
        while chunk is not None:
            partition, records = chunk
            yield partition, self._pack(partition, records)
            chunk = self._next_chunk()

    def _show_activity(self) -> None:
        """Count as a fetch for Faust's client, which leaves the group when none has come for long."""
        with self._thread._consumer._subscription.fetch_context():
            pass

    def _next_chunk(self) -> tuple[TP, list[Record]] | None:
        """What is handed on next? Nothing while a rebalance goes on: the seek that follows goes back to it."""
        if not self.flow_active or self.should_stop or self._generation != self.app.consumer_generation_id:
            return None
        for number, chunk in enumerate(self._chunks):
            if chunk[0] not in self._paused_partitions:
                del self._chunks[number]
                return chunk
        return None

    async def _fetch(self) -> None:
        """Have the next records ready, by partition."""
        app, assignment = self.transport.app, self._assignment
        if self._source is None or len(self._chunks) > MAX_CHUNKS:
            await self.sleep(IDLE_S)
            return
        try:
            records = await self._source.fetch(app.batch_records)
        except Exception as error:
            if not (self.should_stop or app.should_stop):
                app.end(error)
            return
        if assignment == self._assignment:
            found: dict[int, list[Record]] = {}
            for record in records:
                found.setdefault(record.partition, []).append(record)
            self._chunks.extend((TP(app.source_topic, number), own) for number, own in found.items())

    def on_buffer_full(self, tp: TP) -> None:
        """Nothing: a full queue holds `getmany` back by itself; Faust's own way then waits for a second."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Nothing: Faust would miss the fetches of its own client. `RecordFetcher` logs what keeps it from fetching."""

    def _pack(self, partition: TP, records: list[Record]) -> ConsumerMessage:
        return ConsumerMessage(
            partition.topic,
            partition.partition,
            records[-1].offset,
            0.0,
            0,
            [],
            None,
            records,
            None,
            0,
            0,
            partition,
            generation_id=self.app.consumer_generation_id,
        )

    async def perform_seek(self) -> None:
        """Go to where the store says that we are. Whatever was committed is not even asked for: it is for lag only.

        Faust gives up waiting for this after `broker_request_timeout`, and then never fetches again.
        """
        app = self.transport.app
        try:
            async with asyncio.timeout(SEEK_S):
                offsets = await app.positions(await self._earliest(app.source_topic))
                own = {tp.partition for tp in self.assignment() if tp.topic == app.source_topic}
                await self._begin_at({partition: offset for partition, offset in offsets.items() if partition in own})
        except Exception as error:
            if self.should_stop or app.should_stop:
                raise
            app.end(error)

    async def _earliest(self, topic: str) -> dict[int, int]:
        """Which is the first offset that the broker still has, of each partition that is ours?"""
        own = [tp for tp in self.assignment() if tp.topic == topic]
        found = await self.earliest_offsets(*own) if own else {}
        first = {ensure_TP(tp): offset or 0 for tp, offset in found.items()}
        return {tp.partition: first.get(tp, 0) for tp in own}

    async def _begin_at(self, offsets: dict[int, int]) -> None:
        """Read these partitions from these offsets on, and forget what was fetched before."""
        topic = self.transport.app.source_topic
        if self._source is None and not self.should_stop:
            servers = driver.server_list(self.transport.url, self.transport.default_port)
            self._source = RecordFetcher(",".join(servers), topic, self.app.conf.id)
        self._assignment += 1
        self._generation = self.app.consumer_generation_id
        self._chunks.clear()
        if self._source is not None:
            await self._source.begin_at(offsets)
        for partition, offset in offsets.items():
            tp = TP(topic, partition)
            self._read_offset[tp] = offset - 1 if offset > 0 else None
            self._committed_offset[tp] = offset or None


class BatchTransport(driver.Transport):  # type: ignore[misc]
    """Faust's Kafka transport with our consumer."""

    Consumer = BatchConsumer


class BatchApp(faust.App):  # type: ignore[misc]
    """A Faust app that reads one source topic in batches.

    `positions` is asked after every assignment: it gets the first offset that the broker still has of each partition,
    and returns the offset to begin at. `settle` waits, not for ever, until nothing is being worked on. `end` is called
    with what makes going on impossible; it does not return.
    """

    source_topic: str
    batch_records: int
    positions: Positions
    settle: Callable[[], Awaitable[None]]
    end: Callable[[Exception], None]
    close_doors: Callable[[], Awaitable[None]]

    async def on_shutdown(self) -> None:
        """Close what the agent used, after consumer and agents have stopped."""
        await super().on_shutdown()
        await self.close_doors()


def register() -> None:
    """Make `kafkabatch://` known to Faust."""
    TRANSPORTS.aliases[SCHEME] = f"{__name__}:BatchTransport"
