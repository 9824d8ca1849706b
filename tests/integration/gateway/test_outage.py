"""What phones see while Kafka or Redis is away: 503 with a time to come back, nothing acknowledged, then service."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import TELEMETRY
from tests.integration.gateway.conftest import RunningGateway, end_of_gateway, running_gateway, stored, wait_for
from tests.integration.gateway.test_telemetry import batch, event


@pytest.fixture
def own_port() -> int:
    return embedded.free_port()


@pytest.fixture
def fragile(own_port: int, redis_section: RedisSection, tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway that starts before its broker; its patience with Kafka is one second."""
    kafka = KafkaSection(bootstrap=f"127.0.0.1:{own_port}")
    with running_gateway(kafka, redis_section, tmp_path, INTENTLOOP_LIMITS__KAFKA_TIMEOUT_S="1") as running:
        yield running


def post(gateway: RunningGateway, name: str) -> tuple[int, float]:
    begun = time.monotonic()
    answer = gateway.client.post("/v1/telemetry", json=batch(name, event(name)))
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["retry"] is True
    return answer.status_code, time.monotonic() - begun


def test_a_broker_that_is_late_or_dies_costs_no_acknowledged_batch(
    fragile: RunningGateway, own_port: int, tmp_path: Path
) -> None:
    kafka = KafkaSection(bootstrap=f"127.0.0.1:{own_port}")
    brokers: list[subprocess.Popen[bytes]] = []
    try:
        status, seconds = post(fragile, "before")
        assert (status, seconds < 5) == (503, True)
        health = fragile.client.get("/health")
        assert (health.status_code, bool(health.json()["checks"]["kafka"])) == (503, True)

        brokers.append(embedded.start_broker(own_port, tmp_path / "broker1.log"))
        wait_for(lambda: fragile.client.get("/health").status_code == 200, "no recovery after a late broker")
        assert post(fragile, "first")[0] == 202
        assert len(stored(kafka, TELEMETRY, 1)) == 1

        brokers[0].kill()
        brokers[0].wait()
        status, seconds = post(fragile, "lost")
        assert (status, seconds < 8) == (503, True)
        wait_for(lambda: fragile.client.get("/health").status_code == 503, "a dead broker went unnoticed")

        brokers.append(embedded.start_broker(own_port, tmp_path / "broker2.log"))
        ensure_topics(kafka)  # the embedded broker forgot them; Apache Kafka would not
        wait_for(lambda: post(fragile, "again")[0] == 202, "no recovery after the broker came back")
        wait_for(lambda: fragile.client.get("/health").status_code == 200, "the broker is back, health says no")
        batches = [envelope.batch_id for _, envelope in stored(kafka, TELEMETRY, 1)]
        assert set(batches) == {"again"}
        assert fragile.process.poll() is None
    finally:
        for broker in brokers:
            embedded.stop(broker)


def test_telemetry_goes_on_without_redis_and_config_says_come_back(kafka: KafkaSection, tmp_path: Path) -> None:
    nowhere = RedisSection(url=f"redis://127.0.0.1:{embedded.free_port()}/0")
    with running_gateway(kafka, nowhere, tmp_path) as running:
        wait_for(lambda: post(running, "b")[0] == 202, "telemetry does not need Redis")
        for path in ("/v1/device/config?user_id=u", "/v1/models/v1/manifest.json"):
            answer = running.client.get(path)
            assert (answer.status_code, answer.json()["retry"]) == (503, True)
        health = running.client.get("/health")
        assert health.status_code == 503
        assert "Redis" in health.json()["checks"]["redis"]


def test_a_topic_with_other_partitions_ends_the_gateway_with_both_numbers(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    ensure_topics(kafka, (msgspec.structs.replace(TELEMETRY, partitions=3),))
    status, log = end_of_gateway(kafka, redis_section, tmp_path)
    assert status == 78
    assert "has 3 partitions, the table says 8" in log


def test_a_redis_that_forgets_ends_the_gateway(kafka: KafkaSection, tmp_path: Path) -> None:
    port = embedded.free_port()
    redis = embedded.start_redis(port, tmp_path / "redis", tmp_path / "redis.log")
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(b"CONFIG SET maxmemory-policy allkeys-lru\r\n")
            assert raw.recv(100).startswith(b"+OK")
        section = RedisSection(url=f"redis://127.0.0.1:{port}/0")
        status, log = end_of_gateway(kafka, section, tmp_path)
        assert status == 78
        assert "allkeys-lru" in log
    finally:
        embedded.stop(redis)
