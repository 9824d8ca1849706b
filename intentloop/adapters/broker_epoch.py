"""Which log do offsets belong to? The broker's cluster and the topic's own id: both change when a log starts anew."""

from threading import Lock
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from intentloop.adapters.settings import KafkaSection
from intentloop.errors import UnavailableError
from intentloop.topics import Topic

TIMEOUT_MS = 5_000


def broker_epoch(kafka: KafkaSection, topic: Topic) -> str:
    """Identify the log of `topic` once; who asks again and again keeps a `LogIdentity`.

    Raises:
        UnavailableError: the broker does not answer, or does not have the topic.
    """
    identity = LogIdentity(kafka, topic)
    try:
        return identity.read()
    finally:
        identity.close()


class LogIdentity:
    """Tells again and again which log a topic has, over one connection: half a millisecond once it is open.

    Args:
        kafka: Where the broker is; a `KafkaSection.epoch` that is set is the answer, and nobody is asked.
        topic: Whose log.
    """

    def __init__(self, kafka: KafkaSection, topic: Topic) -> None:
        self._kafka, self._name = kafka, f"{kafka.prefix}{topic.name}"
        self._lock = Lock()
        self._admin: Any = None
        self._cluster = self._topic = ""

    def read(self) -> str:
        """Identify the log now: `<cluster id>/<topic id>`. An identity that was once left never returns.

        Raises:
            UnavailableError: the broker does not answer, or the topic is not there (yet).
        """
        if self._kafka.epoch:
            return self._kafka.epoch
        with self._lock:
            try:
                return self._read()
            except KafkaError as error:
                self._close()
                raise UnavailableError(
                    f"broker {self._kafka.bootstrap} does not tell who it is: {error or type(error).__name__}"
                ) from error

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._close()

    def _read(self) -> str:
        if self._admin is None:
            self._admin = KafkaAdminClient(
                bootstrap_servers=self._kafka.bootstrap,
                bootstrap_timeout_ms=TIMEOUT_MS,
                request_timeout_ms=TIMEOUT_MS,
            )
        described = self._admin.describe_topics([self._name])
        missing = not described or described[0].get("error_code")
        topic = "" if missing else str(described[0].get("topic_id") or "")
        if not topic or topic != self._topic:  # the same topic id is of the same cluster
            cluster = str(self._admin.describe_cluster()["cluster_id"])
            if missing and self._cluster in ("", cluster):
                raise UnavailableError(
                    f"broker {self._kafka.bootstrap} has no topic {self._name}; is it being created?"
                )
            self._cluster, self._topic = cluster, topic
        return f"{self._cluster}/{self._topic}"

    def _close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
