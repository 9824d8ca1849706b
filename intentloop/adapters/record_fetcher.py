"""What do the partitions that a group gave us hold from given offsets on? librdkafka, which fetches ahead in C threads.

Who is a member of the group, and commits, is another client (`streams/transport.py`): this one only reads what it is
told to. Every call into the client runs in one thread of its own, one after the other, so what `fetch` returns is of
the last `begin_at` that was awaited before it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from intentloop.errors import UnavailableError

log = logging.getLogger("streams.fetch")

WAIT_S = 0.1  # one wait for the first record; a new assignment waits for it, too
FETCH_WAIT_MS = 20  # how long the broker may hold a fetch back when nothing is there; one broker always does so
AHEAD_KIB = 16_384  # with more ready librdkafka asks for no more; its default of 64 MiB is half a worker's memory
FULL_BACKOFF_MS = 20  # how long it waits when it holds that much; its default of 1 s stalls a fast reader
_PASSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

_HINTS = {
    KafkaError._AUTO_OFFSET_RESET: ". If the broker lost records that were applied already, and does not find them "
    "again, use a fresh Redis prefix and replay"
}

_Result = TypeVar("_Result")


class Record(NamedTuple):
    """One record as it lies in the log; no value is a tombstone."""

    partition: int
    offset: int
    value: bytes | None


class RecordFetcher:
    """Reads given partitions of one topic. Make it inside the event loop that awaits its calls.

    Args:
        bootstrap: The broker, `host:port`, or several with commas.
        topic: Full name.
        group: Whose name the broker may want to know (access rights); it is never joined, nothing is committed.
    """

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._topic, self._bootstrap = topic, bootstrap
        self._told: set[int] = set()  # kinds of faults since a record came
        self._consumer = Consumer({**_configuration(bootstrap, group), "error_cb": self._tell})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fetch")

    async def begin_at(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from now on, each from its offset, and no others."""
        await self._run(self._consumer.assign, [TopicPartition(self._topic, *begin) for begin in offsets.items()])

    async def fetch(self, most: int) -> list[Record]:
        """Up to `most` records, of each partition in its order; waits `WAIT_S` for the first, and for no other.

        Raises:
            UnavailableError: the broker refuses a partition, or sends what cannot be read.
        """
        return await self._run(self._fetch, most)

    async def close(self) -> None:
        """Hang up."""
        await self._run(self._consumer.close)
        self._thread.shutdown()

    async def _run(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    def _tell(self, error: KafkaError) -> None:
        """Log what keeps librdkafka from the broker; it goes on trying, and says the same many times."""
        if error.code() not in self._told:
            log.warning("records of %s cannot be fetched from %s: %s", self._topic, self._bootstrap, error)
        self._told.add(error.code())

    def _fetch(self, most: int) -> list[Record]:
        first = self._consumer.poll(WAIT_S)
        if first is None:
            return []
        self._told.clear()
        messages = [first, *self._consumer.consume(most - 1, 0)]
        return [Record(one.partition(), one.offset(), one.value()) for one in messages if _is_record(one)]


def _is_record(message: Message) -> bool:
    """Is it a record, and not word of a fault? A topic that is not there (yet) is waited for."""
    error = message.error()
    if error is None:
        return True
    if error.code() not in _PASSING:
        place = f"partition {message.partition()} of {message.topic()} cannot be read from offset {message.offset()}"
        raise UnavailableError(f"{place}: {error}{_HINTS.get(error.code(), '')}")
    log.warning("partition %s of %s is not there: %s", message.partition(), message.topic(), error)
    return False


def _configuration(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # else a log that was cut would be read from its start, and skipped as known
        "check.crcs": True,
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.queue.backoff.ms": FULL_BACKOFF_MS,
        "queued.max.messages.kbytes": AHEAD_KIB,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 2,
    }
