"""What do the partitions of a topic hold from given offsets on? A kafka-python reader without a consumer group.

Offsets are the caller's: it stores them with its effects, so no group has to be joined. That also makes it start at
once, where the first record of a fresh group takes kafka-python about 23 s on the embedded broker. One thread at a
time may use it.
"""

from collections.abc import Mapping

import msgspec
from kafka import KafkaConsumer, TopicPartition

from intentloop.adapters.broker_epoch import LogIdentity
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import FencedError
from intentloop.topics import Topic

FETCH_WAIT_MS = 50  # how long the broker may hold a fetch back when nothing is there


class Record(msgspec.Struct, frozen=True):
    """One record as it lies in the log; no value is a tombstone."""

    partition: int
    offset: int
    value: bytes | None


class FactReader:
    """Reads one topic, all of its partitions.

    Args:
        kafka: Where the broker is.
        topic: Which topic; it must exist.
        offsets: Partition → next offset; a missing partition is read from its beginning.
        epoch: Of the log that the offsets are of (`broker_epoch`). Records of another one are never handed on; whoever
            gives none keeps no offsets.
    """

    def __init__(self, kafka: KafkaSection, topic: Topic, offsets: Mapping[int, int], epoch: str = "") -> None:
        self._epoch, self._identity = epoch, LogIdentity(kafka, topic)
        self._consumer = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # also where retention has removed what was asked for
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_poll_records=500,
        )
        self._partitions = [TopicPartition(kafka.prefix + topic.name, number) for number in range(topic.partitions)]
        self._consumer.assign(self._partitions)
        for partition in self._partitions:
            self._consumer.seek(partition, offsets.get(partition.partition, 0))

    def poll(self, timeout_ms: int) -> list[Record]:
        """Which records came? Waits up to `timeout_ms` for the first; order holds within a partition.

        Raises:
            FencedError: they are of another log than the offsets.
            UnavailableError: nobody tells which log they are of.
        """
        found = self._consumer.poll(timeout_ms=timeout_ms)
        if found and self._epoch and (now := self._identity.read()) != self._epoch:
            raise FencedError(
                f"the log was {self._epoch!r} and is {now!r} now: offsets of one mean nothing in the other"
            )
        return [
            Record(record.partition, record.offset, record.value) for records in found.values() for record in records
        ]

    def newest(self) -> dict[int, int]:
        """Which is the last offset of each partition, by the broker's word? tansu may name an earlier one."""
        return {tp.partition: end - 1 for tp, end in self._consumer.end_offsets(self._partitions).items()}

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
