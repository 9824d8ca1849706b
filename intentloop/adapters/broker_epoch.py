"""Which log do offsets belong to? The broker's cluster and the topic's own id: both change when a log starts anew."""

from kafka.admin import KafkaAdminClient

from intentloop.adapters.settings import KafkaSection
from intentloop.topics import Topic


def broker_epoch(kafka: KafkaSection, topic: Topic) -> str:
    """Identify the log of `topic`: `KafkaSection.epoch` where set, else `<cluster id>/<topic id>`."""
    if kafka.epoch:
        return kafka.epoch
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        cluster = admin.describe_cluster()["cluster_id"]
        described = admin.describe_topics([f"{kafka.prefix}{topic.name}"])
        return f"{cluster}/{described[0].get('topic_id', '')}"
    finally:
        admin.close()
