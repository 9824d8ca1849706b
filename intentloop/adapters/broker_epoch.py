"""Which log do offsets belong to? The broker's cluster and the topic's own id: both change when a log starts anew."""

from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from intentloop.adapters.settings import KafkaSection
from intentloop.errors import UnavailableError
from intentloop.topics import Topic

TIMEOUT_S = 5.0
_WORD = 1 << 64


def broker_epoch(kafka: KafkaSection, topic: Topic) -> str:
    """Identify the log of `topic` once; who asks again and again keeps a `LogIdentity`.

    Raises:
        UnavailableError: the broker does not answer, or does not have the topic.
    """
    return LogIdentity(kafka, topic).read()


class LogIdentity:
    """Tells again and again which log a topic has, over one connection: half a millisecond once it is open.

    librdkafka keeps the connection, and makes it anew where it is lost; a client of kafka-python that finds no broker
    leaves a thread and four descriptors behind each time.

    Args:
        kafka: Where the broker is; a `KafkaSection.epoch` that is set is the answer, and nobody is asked.
        topic: Whose log.
    """

    def __init__(self, kafka: KafkaSection, topic: Topic) -> None:
        self._kafka, self._name = kafka, f"{kafka.prefix}{topic.name}"
        self._admin: AdminClient | None = None
        self._cluster = self._topic = ""

    def read(self) -> str:
        """Identify the log now: `<cluster id>/<topic id>`. An identity that was once left never returns.

        Raises:
            UnavailableError: the broker does not answer, or the topic is not there (yet).
        """
        if self._kafka.epoch:
            return self._kafka.epoch
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap, "log_level": 2})
        try:
            return self._read(self._admin)
        except (KafkaException, TimeoutError) as error:
            raise UnavailableError(
                f"broker {self._kafka.bootstrap} does not tell who it is: {error or type(error).__name__}"
            ) from error

    def _read(self, admin: AdminClient) -> str:
        topic = self._topic_id(admin)
        if not topic or topic != self._topic:  # the same topic id is of the same cluster
            cluster = str(admin.describe_cluster(request_timeout=TIMEOUT_S).result(2 * TIMEOUT_S).cluster_id)
            if not topic and self._cluster in ("", cluster):
                raise UnavailableError(
                    f"broker {self._kafka.bootstrap} has no topic {self._name}; is it being created?"
                )
            self._cluster, self._topic = cluster, topic
        return f"{self._cluster}/{self._topic}"

    def _topic_id(self, admin: AdminClient) -> str:
        """Which id has the topic? Empty where there is no such topic."""
        asked = admin.describe_topics(TopicCollection([self._name]), request_timeout=TIMEOUT_S)
        try:
            return _text(asked[self._name].result(2 * TIMEOUT_S).topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise


def _text(number: Uuid) -> str:
    """How is this id written everywhere but in librdkafka?"""
    high, low = number.get_most_significant_bits() % _WORD, number.get_least_significant_bits() % _WORD
    return str(UUID(int=high * _WORD + low))
