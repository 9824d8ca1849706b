"""On the broker that production runs: what was acknowledged is there after `kill -9` of the broker."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.topics import TELEMETRY
from tests.integration.conftest import start_apache_kafka
from tests.integration.gateway.conftest import RunningGateway, running_gateway, stored, wait_for
from tests.integration.gateway.test_telemetry import batch, event

pytestmark = pytest.mark.needs_apache_kafka


class Phone(threading.Thread):
    """Sends batch after batch, each again until it is acknowledged, as phones do."""

    def __init__(self, gateway: RunningGateway) -> None:
        super().__init__()
        self._gateway = gateway
        self.acknowledged: list[str] = []
        self.statuses: set[int] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            name = f"b{len(self.acknowledged)}"
            status = self._gateway.client.post("/v1/telemetry", json=batch(name, event(name))).status_code
            self.statuses.add(status)
            if status == 202:
                self.acknowledged.append(name)


@pytest.fixture
def kafka_port() -> int:
    return embedded.free_port()


@pytest.fixture
def on_apache_kafka(kafka_port: int, redis_section: RedisSection, tmp_path: Path) -> Iterator[RunningGateway]:
    kafka = KafkaSection(bootstrap=f"127.0.0.1:{kafka_port}")
    with running_gateway(kafka, redis_section, tmp_path, INTENTLOOP_LIMITS__KAFKA_TIMEOUT_S="1") as running:
        yield running


def test_a_broker_that_is_killed_and_comes_back_has_every_acknowledged_batch(
    on_apache_kafka: RunningGateway, kafka_port: int, tmp_path: Path
) -> None:
    kafka = KafkaSection(bootstrap=f"127.0.0.1:{kafka_port}")
    brokers = [start_apache_kafka(kafka_port, tmp_path / "kafka", tmp_path / "kafka.log")]
    phone = Phone(on_apache_kafka)
    try:
        wait_for(lambda: on_apache_kafka.client.get("/health").status_code == 200, "not healthy on Apache Kafka")
        phone.start()
        wait_for(lambda: len(phone.acknowledged) >= 50, "batches are not taken")
        for child in psutil.Process(brokers[0].pid).children(recursive=True):
            child.kill()
        brokers[0].wait(120)
        wait_for(lambda: 503 in phone.statuses, "a dead broker went unnoticed")
        before = len(phone.acknowledged)
        brokers.append(start_apache_kafka(kafka_port, tmp_path / "kafka", tmp_path / "kafka.log"))
        wait_for(lambda: len(phone.acknowledged) >= before + 50, "no recovery after the broker came back")
        phone.stopping.set()
        phone.join(20)
        found = {envelope.batch_id for _, envelope in stored(kafka, TELEMETRY, len(phone.acknowledged))}
        assert set(phone.acknowledged) <= found
        assert phone.statuses == {202, 503}
    finally:
        phone.stopping.set()
        for broker in brokers:
            embedded.stop(broker, timeout_s=20)
            if broker.stdout is not None:
                broker.stdout.close()
