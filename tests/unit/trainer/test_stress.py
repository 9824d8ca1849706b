"""What many answers in a row mean: slower, larger, changed. By hand, without an engine."""

import msgspec
import pytest

from trainer.stress import MAX_GROWTH, Stress, growth_per_thousand, relative_speeds, summary

COUNTED = Stress(
    runs=100, seconds=1.0, cpu_ratio=1.0, changed_answers=0, slowdown=None, memory=None,
    speed_verdict="too few runs", memory_verdict="too few runs",
)  # fmt: skip
MB = 1_000_000


def test_speeds_are_relative_to_the_same_prompt() -> None:
    assert relative_speeds([10, 100, 10, 50, 20, 100], 2) == [1, 1, 1, 2, 0.5, 1]
    assert relative_speeds([], 3) == []


def test_an_engine_that_gets_slower_is_told() -> None:
    found = summary([1.1 - index * 0.002 for index in range(100)], [MB] * 100, COUNTED)
    assert found.speed_verdict == "drifts"
    assert found.slowdown is not None
    assert found.slowdown.change == pytest.approx(0.18)  # ten blocks' middles are 90 runs apart
    assert summary([1.0] * 100, [MB] * 100, COUNTED).speed_verdict == "steady"
    assert summary([0.5 + index * 0.01 for index in range(100)], [MB] * 100, COUNTED).speed_verdict == "steady"


def test_a_leak_is_told_by_its_growth_for_a_thousand_answers() -> None:
    leak = summary([1.0] * 100, [100 * MB + index * 3_000 for index in range(100)], COUNTED)
    assert leak.memory_verdict == "drifts"
    assert growth_per_thousand(leak) == pytest.approx(3_000_000)
    small = summary([1.0] * 100, [100 * MB + index * 1_000 for index in range(100)], COUNTED)
    assert small.memory_verdict == "steady"
    assert MAX_GROWTH == 0.02


def test_few_runs_say_nothing() -> None:
    assert summary([1.0] * 10, [MB] * 10, COUNTED) == COUNTED
    assert growth_per_thousand(COUNTED) is None


def test_a_long_series_is_thinned_for_the_report() -> None:
    found = summary([1.0] * 1001, [MB] * 1001, msgspec.structs.replace(COUNTED, runs=1001))
    assert len(found.speeds) == len(found.private_bytes) <= 200
