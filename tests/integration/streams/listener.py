"""The worker's own Faust app with an agent that notes what it is handed, in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types import TP

from intentloop.adapters.settings import KafkaSection
from intentloop.topics import TELEMETRY
from streams.run_worker import batch_app
from streams.settings import StreamsSection, StreamsSettings
from streams.transport import BatchTopic, Positions
from tests.integration.streams import world

SESSION_TIMEOUT_S = 6.0


class Listener:
    """`applied` stands for Redis: what an agent has handled, by partition; every assignment begins after it."""

    def __init__(self, kafka: KafkaSection, applied: dict[int, int], batch_records: int) -> None:
        section = StreamsSection(session_timeout_s=SESSION_TIMEOUT_S, heartbeat_s=1.5, batch_records=batch_records)
        self.app = batch_app(StreamsSettings(kafka=kafka, streams=section))
        self.applied, self.taken = applied, list[Any]()
        self.assignments: list[dict[int, int]] = []
        self.ends: list[Exception] = []
        self.fault: Exception | None = None
        self.go_on, self.acknowledges, self.block_s = asyncio.Event(), True, 0.0
        self.go_on.set()
        self.app.positions, self.app.settle = self.positions, self.close
        self.app.end, self.app.close_doors = self.ends.append, self.close
        source = BatchTopic(self.app, topics=[self.app.source_topic], partitions=TELEMETRY.partitions, acks=True)
        self.app.agent(source, name="listen")(self.listen)

    async def positions(self, earliest: dict[int, int]) -> dict[int, int]:
        if self.fault is not None:
            raise self.fault
        begin = {partition: self.applied.get(partition, -1) + 1 for partition in earliest}
        self.assignments.append(begin)
        return begin

    async def listen(self, stream: Any) -> None:
        """Note each batch, wait for the gate, acknowledge."""
        async for event in stream.noack().events():
            self.taken.append(event)
            time.sleep(self.block_s)
            await self.go_on.wait()
            if self.acknowledges:
                self.applied[event.message.partition] = max(
                    event.message.offset, self.applied.get(event.message.partition, -1)
                )
                await stream.ack(event)

    async def close(self) -> None:
        """Nothing is open."""

    def offsets(self, partition: int, since: int = 0) -> list[int]:
        """Which records was the agent handed, in order?"""
        return [
            record.offset
            for event in self.taken[since:]
            if event.message.partition == partition
            for record in event.value
        ]

    def tp(self, partition: int) -> TP:
        return TP(self.app.source_topic, partition)

    async def until_applied(self, wanted: dict[int, int], timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while self.applied != wanted:
                await asyncio.sleep(0.05)

    async def until_taken(self, count: int, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while len(self.taken) < count:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def listening(
    kafka: KafkaSection,
    applied: dict[int, int] | None = None,
    batch_records: int = 20,
    fault: Exception | None = None,
    positions: Positions | None = None,
) -> AsyncIterator[Listener]:
    listener = Listener(kafka, {} if applied is None else applied, batch_records)
    listener.fault = fault
    if positions is not None:
        listener.app.positions = positions
    await listener.app.start()
    try:
        yield listener
    finally:
        listener.go_on.set()
        await listener.app.stop()


async def send_numbers(kafka: KafkaSection, count: int) -> dict[int, int]:
    """Put records of many users on the topic; returns the last offset of each partition."""
    await world.send(kafka, [(f"u{number % 60}", b"%d" % number) for number in range(count)])
    return await last_offsets(kafka)


async def last_offsets(kafka: KafkaSection) -> dict[int, int]:
    last: dict[int, int] = {}
    for record in await world.read_records(kafka, TELEMETRY, 0.5):
        last[record.partition] = max(last.get(record.partition, -1), record.offset)
    return last


async def committed(kafka: KafkaSection, partitions: Sequence[int]) -> dict[int, int]:
    """What does the broker know as the group's commits? Partitions without one are left out."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, group_id=f"{kafka.prefix}streams", enable_auto_commit=False
    )
    await consumer.start()
    try:
        topic = f"{kafka.prefix}{TELEMETRY.name}"
        found = {number: await consumer.committed(TopicPartition(topic, number)) for number in partitions}
        return {number: offset for number, offset in found.items() if offset is not None}
    finally:
        await consumer.stop()


async def commit(kafka: KafkaSection, offsets: dict[int, int]) -> None:
    """Commit for the group, as a predecessor might have."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, group_id=f"{kafka.prefix}streams", enable_auto_commit=False
    )
    await consumer.start()
    try:
        topic = f"{kafka.prefix}{TELEMETRY.name}"
        consumer.assign([TopicPartition(topic, number) for number in offsets])
        await consumer.commit({TopicPartition(topic, number): offset for number, offset in offsets.items()})
    finally:
        await consumer.stop()
