"""Do the topics exist as the table says? Creates what is missing and refuses what differs (kafka-python's admin)."""

from contextlib import suppress

from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from intentloop.adapters.settings import KafkaSection
from intentloop.errors import ConfigurationError
from intentloop.topics import ALL, Topic


def ensure_topics(kafka: KafkaSection, table: tuple[Topic, ...] = ALL) -> None:
    """Create the missing topics, then compare partition counts.

    Raises:
        ConfigurationError: a topic exists with another number of partitions.
    """
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
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
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap)
    try:
        for topic in table:
            found = len(consumer.partitions_for_topic(kafka.prefix + topic.name) or ())
            if found != topic.partitions:
                raise ConfigurationError(
                    f"topic {kafka.prefix + topic.name} has {found} partitions, the table says {topic.partitions}; "
                    "move its data to a new version of the topic, see docs/operations.md"
                )
    finally:
        consumer.close()
