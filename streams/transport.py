"""How do records reach the agent? In batches: Faust's price is per message, so one message carries a fetched list.

A Faust transport of our own: its consumer yields one Faust message per partition and fetch (value: the list of records,
offset: the last one), and after every assignment goes to where Redis says that we are. Rebalancing, heartbeats,
commits with gap keeping and the command line stay Faust's. Not here: what is done with a batch (`apply_batch.py`).
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import faust
from faust.transport.consumer import ensure_TP
from faust.transport.drivers import TRANSPORTS
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

log = logging.getLogger("streams.transport")

SCHEME = "kafkabatch"
FETCH_WAIT_MS = 20  # Faust fixes 1500, and a broker may hold an empty fetch for as long

Positions = Callable[[dict[int, int]], Awaitable[dict[int, int]]]


class BatchTopic(faust.Topic):  # type: ignore[misc]
    """A topic whose messages are lists of records: nothing to decode here."""

    async def decode(self, message: Any, *, propagate: bool = False) -> Any:
        """Pass the list on as the event's value."""
        return self._create_event(None, message.value, headers=None, message=message)


class ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    """The thread that fetches, with a short wait."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer


class BatchConsumer(driver.Consumer):  # type: ignore[misc]
    """Yields one message per partition and fetch; starts each partition at the offset after its watermark."""

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Say when there is nothing for this worker: who scales beyond the partitions should know."""
        if not assigned:
            log.warning("no partition for this worker: it waits to take over; more workers than partitions do no more")
        await super().on_partitions_assigned(assigned, generation_id)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:
        """Fetch, and hand on what belongs to us as it lies: a list for each partition."""
        found, active = await self._wait_next_records(timeout)
        crossed = not self.flow_active  # fetched while a rebalance went on, before or after its seek
        while not (self.flow_active or self.should_stop):
            await self.wait(self.can_resume_flow)
        generation = self.app.consumer_generation_id
        if found is None or self.should_stop:
            return
        size = self.transport.app.batch_records
        for key, records in found.items():
            partition = ensure_TP(key)
            if crossed and records[0].offset > self._following(partition):
                continue  # from before the seek: fetched again from where it went
            if active is None or partition in active or partition in self._buffered_partitions:
                for start in range(0, len(records), size):
                    if not self.flow_active or self.app.consumer_generation_id != generation:
                        return  # the seek that follows goes back to the rest
                    yield partition, self._pack(partition, records[start : start + size])

    def connections(self) -> tuple[Any, ...]:
        """Which connections does the fetching thread have? A broker that began anew answers over another one."""
        consumer = self._thread._consumer
        return () if consumer is None else tuple(consumer._client._conns.values())

    def _following(self, partition: TP) -> int:
        """Which offset comes after what was handed on, or after the seek?"""
        before = self._read_offset[partition]
        return 0 if before is None else before + 1

    def _pack(self, partition: TP, records: list[Any]) -> ConsumerMessage:
        last = records[-1]
        return ConsumerMessage(
            last.topic,
            last.partition,
            last.offset,
            last.timestamp / 1000,
            last.timestamp_type,
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
        """Go to where the store says that we are, whatever was committed: the commit is for lag only."""
        app = self.transport.app
        try:
            await super().perform_seek()
            await self._seek_to(await app.positions(await self._earliest(app.source_topic)))
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

    async def _seek_to(self, offsets: dict[int, int]) -> None:
        """Seek in the thread that fetches; Faust's own `seek` reaches into it from this one, which is a race."""
        topic = self.transport.app.source_topic
        own = {tp: offsets[tp.partition] for tp in self.assignment() if tp.topic == topic and tp.partition in offsets}
        await self.seek_wait(own)
        for tp, offset in own.items():
            self._read_offset[tp] = offset - 1 if offset > 0 else None
            self._committed_offset[tp] = offset or None


class BatchTransport(driver.Transport):  # type: ignore[misc]
    """Faust's Kafka transport with our consumer."""

    Consumer = BatchConsumer


class BatchApp(faust.App):  # type: ignore[misc]
    """A Faust app that reads one source topic in batches.

    `positions` is asked after every assignment: it gets the first offset that the broker still has of each partition,
    and returns the offset to begin at. `end` is called with what makes going on impossible; it does not return.
    """

    source_topic: str
    batch_records: int
    positions: Positions
    end: Callable[[Exception], None]
    close_doors: Callable[[], Awaitable[None]]

    async def on_shutdown(self) -> None:
        """Close what the agent used, after consumer and agents have stopped."""
        await super().on_shutdown()
        await self.close_doors()


def register() -> None:
    """Make `kafkabatch://` known to Faust."""
    TRANSPORTS.aliases[SCHEME] = f"{__name__}:BatchTransport"
