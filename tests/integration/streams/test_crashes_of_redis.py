"""A Redis that restarts, forgets, stalls, refuses or fails over: the workers end, or wait, and are right again."""

import asyncio
from pathlib import Path

import pytest

from tests.crash import scenarios
from tests.crash.scenarios import Scenario
from tests.crash.stores import EmbeddedBroker

FORGETTING = Scenario("redis-forgets", 1, (scenarios.kill_redis, scenarios.cut_redis, scenarios.wipe_redis))
REFUSING = Scenario("redis-refuses", 1, (scenarios.fill_redis, scenarios.fail_snapshots, scenarios.stall_redis))
FAILING_OVER = Scenario("redis-fails-over", 1, (scenarios.fail_redis_over, scenarios.pause_redis))


@pytest.mark.parametrize("scenario", [FORGETTING, REFUSING, FAILING_OVER], ids=lambda scenario: str(scenario.name))
def test_whatever_redis_does_the_states_counts_and_facts_are_those_of_a_straight_replay(
    scenario: Scenario, tmp_path: Path
) -> None:
    broker = EmbeddedBroker(tmp_path)
    try:
        found = asyncio.run(scenarios.play(scenario, broker, tmp_path, 1_500))
    finally:
        broker.close()
    assert not found.fault, found.line()
