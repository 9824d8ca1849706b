"""How does a phone's batch reach Kafka at the rate of a fleet? librdkafka, acks=all, no thread of ours.

The gateway's own producer: librdkafka bounds the delivery time of each message, which "202 after Kafka has it, else
503 in time" needs; its rate beside aiokafka is a close call (`python -m bench.gateway`). Facts of the loop itself go
through `facts_producer.py`. Idempotence is off: the embedded broker has none, and a batch that is stored twice is told
apart by its event ids.
"""

import asyncio

import msgspec
from confluent_kafka import KafkaException, Message, Producer

from intentloop.adapters.facts_producer import MAX_REQUEST_BYTES
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ContractError, UnavailableError
from intentloop.topics import Topic

_POLL_S = 0.001
_STOP_POLL_S = 0.01
_PATIENCE_S = 1.0  # librdkafka looks for timed-out messages once a second
_OVERHEAD_BYTES = 4_096  # key, headers and framing of one message
_MAX_WAITING_KIB = 131_072  # what may wait in memory while the broker is away; more is refused at once


class Position(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    partition: int
    offset: int


class TelemetryProducer:
    """Sends encoded envelopes; one a process is enough. Needs a running event loop from `start` to `stop`.

    Deliveries are fetched by the event loop itself, every millisecond while any is outstanding: a polling thread would
    have to win the interpreter's lock from a busy loop for each of them.

    Args:
        kafka: Where the broker is, and which prefix its topics carry.
        timeout_s: After how long a batch that the broker did not confirm counts as not stored.
    """

    def __init__(self, kafka: KafkaSection, timeout_s: float) -> None:
        self._kafka, self._timeout_s = kafka, timeout_s
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outstanding = 0
        self._polling = False

    def start(self) -> None:
        """Begin; the broker need not be there yet."""
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(_configuration(self._kafka, self._timeout_s))

    async def stop(self) -> None:
        """Wait for what is under way, at most the time-out."""
        if self._producer is not None:
            deadline_s = asyncio.get_running_loop().time() + self._timeout_s + _PATIENCE_S
            while self._outstanding and asyncio.get_running_loop().time() < deadline_s:
                await asyncio.sleep(_STOP_POLL_S)
            self._producer = None

    async def send(self, topic: Topic, key: str, value: bytes) -> Position:
        """Store one encoded value; returns when all in-sync replicas have it.

        Raises:
            ContractError: it is larger than the broker takes.
            UnavailableError: the broker did not confirm in time; the value may or may not be stored.
        """
        if len(value) > MAX_REQUEST_BYTES:
            raise ContractError(f"{len(value)} bytes are too many for one message, the limit is {MAX_REQUEST_BYTES}")
        if self._producer is None or self._loop is None:
            raise ContractError("send before start or after stop")
        future: asyncio.Future[Position] = self._loop.create_future()

        def on_delivery(error: object, message: Message) -> None:
            self._outstanding -= 1
            if future.done():  # the request was cancelled
                return
            if error is None:
                future.set_result(Position(message.partition() or 0, message.offset() or 0))
            else:
                future.set_exception(UnavailableError(f"Kafka did not confirm: {error}"))

        try:
            self._producer.produce(f"{self._kafka.prefix}{topic.name}", value, key.encode(), on_delivery=on_delivery)
        except (BufferError, KafkaException) as error:
            raise UnavailableError(f"Kafka takes no more messages now: {error}") from error
        self._outstanding += 1
        if not self._polling:
            self._polling = True
            self._loop.call_later(_POLL_S, self._poll)
        return await future

    def ailment(self, topic: Topic) -> str:
        """Why can this topic not be written? Empty if it can. Blocks up to two seconds; call it in a thread."""
        if self._producer is None:
            return "the producer is not started"
        name = f"{self._kafka.prefix}{topic.name}"
        try:
            found = self._producer.list_topics(name, timeout=2.0).topics[name]
        except KafkaException as error:
            return f"Kafka at {self._kafka.bootstrap} does not answer: {error}"
        return "" if len(found.partitions) == topic.partitions else f"topic {name} is not ready: {found.error}"

    def _poll(self) -> None:
        """Settle what was delivered; callbacks run in here, and so in the event loop's own thread."""
        if self._producer is None or self._loop is None:
            return
        try:
            self._producer.poll(0)
        finally:
            self._polling = self._outstanding > 0
            if self._polling:
                self._loop.call_later(_POLL_S, self._poll)


def _configuration(kafka: KafkaSection, timeout_s: float) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": kafka.bootstrap,
        "acks": "all",
        "enable.idempotence": False,
        "linger.ms": 2,
        "message.timeout.ms": int(timeout_s * 1000),
        "message.max.bytes": MAX_REQUEST_BYTES + _OVERHEAD_BYTES,
        "queue.buffering.max.kbytes": _MAX_WAITING_KIB,
        "allow.auto.create.topics": False,  # a topic made by asking for it would have the broker's partition count
        "partitioner": "murmur2_random",  # as Java's and aiokafka's: one user is in one partition, whoever sends
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 30_000,
        "log_level": 2,
    }
