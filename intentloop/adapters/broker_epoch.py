"""Which log do offsets belong to? The broker's cluster and the topic's own id: both change when a log starts anew."""

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from intentloop.adapters.settings import KafkaSection
from intentloop.errors import UnavailableError
from intentloop.topics import Topic

TIMEOUT_MS = 5_000


def broker_epoch(kafka: KafkaSection, topic: Topic) -> str:
    """Identify the log of `topic`: `KafkaSection.epoch` where set, else `<cluster id>/<topic id>`.

    Raises:
        UnavailableError: the broker does not answer.
    """
    if kafka.epoch:
        return kafka.epoch
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=kafka.bootstrap, bootstrap_timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS
        )
        try:
            cluster = admin.describe_cluster()["cluster_id"]
            described = admin.describe_topics([f"{kafka.prefix}{topic.name}"])
        finally:
            admin.close()
    except KafkaError as error:
        raise UnavailableError(f"broker {kafka.bootstrap} does not tell who it is: {error}") from error
    return f"{cluster}/{described[0].get('topic_id', '')}"
