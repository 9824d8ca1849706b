"""A real gateway process on the test's own prefix, and what came out of it on Kafka."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition

from intentloop.adapters import embedded
from intentloop.adapters.codec import DECODERS
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.topics import Topic
from tests.conftest import Services

TOKEN = "device-token"
USER_KEY = "user-key"


class RunningGateway(msgspec.Struct):
    """One gateway process and a client that talks to it as an app of ours would."""

    process: subprocess.Popen[bytes]
    url: str
    client: httpx.Client
    log: Path
    blobs: Path


def start_gateway(
    kafka: KafkaSection, redis: RedisSection, directory: Path, port: int, **settings: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a gateway on `port`, wait for nothing, and name the file that takes its log."""
    environment = {
        **os.environ,
        "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
        "INTENTLOOP_REDIS__URL": redis.url,
        "INTENTLOOP_REDIS__PREFIX": redis.prefix,
        "INTENTLOOP_HTTP__PORT": str(port),
        "INTENTLOOP_PRIVACY__USER_KEY": USER_KEY,
        "INTENTLOOP_AUTH__DEVICE_TOKEN": TOKEN,
        "INTENTLOOP_BLOBS__ROOT": str(directory / "blobs"),
        **settings,
    }
    log = directory / "gateway.log"
    with log.open("ab") as sink:
        return subprocess.Popen([sys.executable, "-m", "gateway"], env=environment, stderr=sink), log


def end_of_gateway(kafka: KafkaSection, redis: RedisSection, directory: Path) -> tuple[int, str]:
    """Exit status and log of a gateway that must end by itself, whether or not it ever answered."""
    process, log = start_gateway(kafka, redis, directory, embedded.free_port())
    try:
        status = process.wait(120)
    finally:
        embedded.stop(process)
    return status, log.read_text()


@contextmanager
def running_gateway(
    kafka: KafkaSection, redis: RedisSection, directory: Path, **settings: str
) -> Iterator[RunningGateway]:
    """Start a gateway and wait until it answers at all."""
    port = embedded.free_port()
    process, log = start_gateway(kafka, redis, directory, port, **settings)
    url = f"http://127.0.0.1:{port}"
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, timeout=20, trust_env=False) as client:
        try:
            wait_for(lambda: answers(client) or process.poll() is not None, f"no answer from the gateway; see {log}")
            assert process.poll() is None, f"the gateway ended with {process.returncode}: {log.read_text()[-2000:]}"
            yield RunningGateway(process, url, client, log, directory / "blobs")
        finally:
            embedded.stop(process)


@pytest.fixture
def gateway(kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path) -> Iterator[RunningGateway]:
    """A gateway that is healthy: its topics exist and Redis answers."""
    with running_gateway(kafka, redis_section, tmp_path) as running:
        wait_for(lambda: running.client.get("/health").status_code == 200, "the gateway did not become healthy")
        yield running


@pytest.fixture(scope="module")
def shared_redis(services: Services) -> RedisSection:
    """The Redis section of a module's shared gateway."""
    return RedisSection(url=services.redis_url, prefix=f"t{secrets.token_hex(4)}")


@pytest.fixture(scope="module")
def shared(
    services: Services, shared_redis: RedisSection, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """One healthy gateway for the tests of a module that do not look at all of Kafka: starting one takes time."""
    kafka = KafkaSection(bootstrap=services.bootstrap, prefix=f"t{secrets.token_hex(4)}.")
    with running_gateway(kafka, shared_redis, tmp_path_factory.mktemp("shared")) as running:
        wait_for(lambda: running.client.get("/health").status_code == 200, "the gateway did not become healthy")
        yield running


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/metrics").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], bool], reason: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, reason
        time.sleep(0.1)


def stored(kafka: KafkaSection, topic: Topic, expected: int, timeout_s: float = 120.0) -> list[tuple[str, Any]]:
    """Everything on the topic: key and decoded value. Waits for `expected` messages, then for half a second more."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": f"{kafka.prefix}look", "enable.auto.commit": False}
    )
    name = f"{kafka.prefix}{topic.name}"
    consumer.assign([TopicPartition(name, partition, 0) for partition in range(topic.partitions)])
    found: list[tuple[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            if len(found) >= expected:
                break
            continue
        assert message.error() is None, message.error()
        found.append((message.key().decode(), DECODERS[topic.name].decode(message.value())))
    consumer.close()
    return found
