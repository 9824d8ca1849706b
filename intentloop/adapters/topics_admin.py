"""Do the topics exist as the table says? Creates what is missing and refuses what differs (kafka-python's admin)."""

import time
from contextlib import suppress

from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ConfigurationError, UnavailableError
from intentloop.topics import ALL, Topic

_VISIBLE_S = 15.0  # a topic that was just created may take a moment until every broker tells of it
_COMPLETE_S = 3.0  # while another process creates it, the embedded broker may tell of some of its partitions first
_BACKOFF_MS = 1_000  # the client's own grows to half a minute, and a broker that starts late would be found late


def ensure_topics(kafka: KafkaSection, table: tuple[Topic, ...] = ALL) -> None:
    """Create the missing topics, then compare partition counts.

    Raises:
        ConfigurationError: a topic exists with another number of partitions.
        UnavailableError: the broker does not answer, or does not create a topic.
    """
    try:
        _ensure(kafka, table)
    except KafkaError as error:
        raise UnavailableError(
            f"broker {kafka.bootstrap} does not show or create topics: {error}; is it there, and may we ask it?"
        ) from error


def _ensure(kafka: KafkaSection, table: tuple[Topic, ...]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap, reconnect_backoff_max_ms=_BACKOFF_MS)
    try:
        present = set(admin.list_topics())
        for topic in table:
            if kafka.prefix + topic.name not in present:
                _create(admin, kafka, topic)
    finally:
        admin.close()
    _compare(kafka, table)


def _create(admin: KafkaAdminClient, kafka: KafkaSection, topic: Topic) -> None:
    new = NewTopic(
        kafka.prefix + topic.name,
        topic.partitions,
        kafka.replication_factor,
        topic_configs={"retention.ms": str(topic.retention_ms)},
    )
    with suppress(TopicAlreadyExistsError):  # another process was faster; the comparison still follows
        admin.create_topics([new])


def _compare(kafka: KafkaSection, table: tuple[Topic, ...]) -> None:
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, reconnect_backoff_max_ms=_BACKOFF_MS)
    try:
        for topic in table:
            found = _partitions(consumer, kafka.prefix + topic.name, topic.partitions)
            if found != topic.partitions:
                raise ConfigurationError(
                    f"topic {kafka.prefix + topic.name} has {found} partitions, the table says {topic.partitions}; "
                    "move its data to a new version of the topic, see docs/operations.md"
                )
    finally:
        consumer.close()


def _partitions(consumer: KafkaConsumer, name: str, wanted: int) -> int:
    """How many partitions does this topic have? 0 only if it stays invisible."""
    began_s = time.monotonic()
    found = len(consumer.partitions_for_topic(name) or ())
    while found < wanted and time.monotonic() - began_s < (_COMPLETE_S if found else _VISIBLE_S):
        time.sleep(0.1)
        consumer.topics()  # asks the broker anew; the client remembers what it was told before
        found = len(consumer.partitions_for_topic(name) or ())
    return found
