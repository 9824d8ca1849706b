"""Topics are made from the table, whoever is first, and a topic that differs is refused with both numbers."""

import os
import subprocess
import sys
import threading
import time

import pytest
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic

from intentloop.adapters.embedded import free_port
from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import EXIT_BROKEN, ConfigurationError, IntentloopError
from intentloop.topics import ALL, TELEMETRY


def test_missing_topics_are_made_and_made_ones_are_accepted(kafka: KafkaSection) -> None:
    ensure_topics(kafka)
    ensure_topics(kafka)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        assert {kafka.prefix + topic.name for topic in ALL} <= set(admin.list_topics())
    finally:
        admin.close()


@pytest.mark.parametrize("partitions", [5, 9])
def test_k10_another_number_of_partitions_is_refused_with_both_numbers(kafka: KafkaSection, partitions: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics([NewTopic(kafka.prefix + TELEMETRY.name, partitions, 1)])
    admin.close()
    with pytest.raises(ConfigurationError, match=rf"has {partitions} partitions, the table says 8"):
        ensure_topics(kafka, (TELEMETRY,))


def test_processes_that_start_together_do_not_refuse_each_others_topics(kafka: KafkaSection) -> None:
    failed: list[IntentloopError] = []

    def start() -> None:
        try:
            ensure_topics(kafka)
        except IntentloopError as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []


@pytest.mark.needs_apache_kafka
def test_a_topic_that_is_still_growing_is_waited_for(apache_kafka: str, prefix: str) -> None:
    kafka = KafkaSection(bootstrap=apache_kafka, prefix=f"{prefix}.")
    admin = KafkaAdminClient(bootstrap_servers=apache_kafka)
    name = kafka.prefix + TELEMETRY.name
    admin.create_topics([NewTopic(name, 4, 1)])

    def grow() -> None:
        time.sleep(1.0)
        admin.create_partitions({name: NewPartitions(8)})

    growing = threading.Thread(target=grow)
    growing.start()
    ensure_topics(kafka, (TELEMETRY,))
    growing.join(10)
    try:
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == TELEMETRY.partitions
    finally:
        admin.close()


def test_a_worker_that_starts_before_its_broker_says_so_and_may_be_started_again() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "streams"],
        env={**os.environ, "INTENTLOOP_KAFKA__BOOTSTRAP": nowhere},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == EXIT_BROKEN, "the supervisor gives up at code 78 only"
    assert f"broker {nowhere} does not show or create topics" in done.stderr
    assert "Traceback" not in done.stderr
