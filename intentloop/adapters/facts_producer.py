"""How does a fact reach Kafka? Encoded once, sent with acks=all, and waited for."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import msgspec
from aiokafka import AIOKafkaProducer

from intentloop.adapters.codec import encode
from intentloop.adapters.settings import KafkaSection
from intentloop.topics import Topic

MAX_REQUEST_BYTES = 1_000_000  # just below the broker's default limit of 1 MiB for one message


class FactProducer:
    """Sends facts of this system. Use as an async context manager; one a process is enough.

    Args:
        kafka: Where the broker is, and which prefix its topics carry.
        linger_ms: How long to wait for company; 0 favours latency.
    """

    def __init__(self, kafka: KafkaSection, linger_ms: int = 0) -> None:
        self._prefix = kafka.prefix
        self._producer = AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap,
            acks="all",
            linger_ms=linger_ms,
            max_batch_size=262_144,  # with the default 16 KB the tail latency of the gateway is half a second and more
            max_request_size=MAX_REQUEST_BYTES,
        )

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()

    async def send(self, topic: Topic, key: str, value: msgspec.Struct) -> None:
        """Store one fact; returns when all in-sync replicas have it."""
        await self.send_bytes(topic, key, encode(value))

    async def send_bytes(self, topic: Topic, key: str, value: bytes) -> None:
        """Store one fact that is encoded already."""
        await self._producer.send_and_wait(f"{self._prefix}{topic.name}", value, key.encode())

    async def send_all(self, facts: Iterable[tuple[Topic, str, bytes]]) -> None:
        """Store encoded facts; returns when all of them are stored. A task for each would cost more than sending it."""
        send, prefix = self._producer.send, self._prefix
        stored = [await send(f"{prefix}{topic.name}", value, key.encode()) for topic, key, value in facts]
        await asyncio.gather(*stored)
