"""Deaths of workers and brokers in the midst of their work change nothing that anybody can see; `make crash`, small."""

import asyncio
from pathlib import Path

import pytest

from tests.crash import scenarios
from tests.crash.scenarios import Scenario
from tests.crash.stores import ApacheBroker, EmbeddedBroker

ENVELOPES = 2_500


def play(scenario: Scenario, broker: EmbeddedBroker | ApacheBroker, directory: Path) -> scenarios.Result:
    try:
        found = asyncio.run(scenarios.play(scenario, broker, directory, ENVELOPES))
        assert not found.fault, found.line()
        return found
    finally:
        broker.close()


def test_killed_workers_leave_the_states_counts_and_facts_of_a_straight_replay(tmp_path: Path) -> None:
    faults = (scenarios.kill_a_worker, scenarios.kill_a_worker, scenarios.kill_within_a_rebalance)
    found = play(Scenario("kills", 2, faults), EmbeddedBroker(tmp_path), tmp_path)
    assert found.exits[-9] == 3


@pytest.mark.needs_apache_kafka
def test_killed_workers_and_a_killed_broker_leave_the_same_on_apache_kafka(tmp_path: Path) -> None:
    faults = (scenarios.kill_a_worker, scenarios.kill_within_a_rebalance, scenarios.kill_the_broker)
    found = play(Scenario("kills", 3, faults), ApacheBroker(tmp_path), tmp_path)
    assert found.exits[-9] == 2


def test_k08_a_broker_whose_offsets_start_again_is_noticed_and_users_keep_their_states(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    try:
        found = asyncio.run(scenarios.play_a_new_broker(broker, tmp_path, 1_500))
    finally:
        broker.close()
    assert found.exits[70] >= 2, "both workers ended and were started again"
