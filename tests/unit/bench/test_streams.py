"""What does the streams bench make of its samples, however short the run?"""

import pytest

from bench.streams import Measured, between, figures
from bench.traffic import PER_ENVELOPE, Sent

PHASES = {"events": 2000, "phases_us": {"decode": 1.5}}
SENT = Sent(last={}, envelopes=80, events=2000, users=40)


def test_a_rate_is_taken_from_a_tenth_of_the_way_to_the_end() -> None:
    samples = [(0, 10.0, [1.0, 0.0, 0.0]), (10, 12.0, [3.0, 0.5, 0.1]), (100, 14.0, [3.9, 0.95, 0.19])]
    found = between(samples, 100)
    events = 90 * PER_ENVELOPE
    assert found.events_s == pytest.approx(events / 2)
    assert found.cpu_us == pytest.approx(0.9e6 / events)
    assert found.broker_us == pytest.approx(0.45e6 / events)
    assert found.redis_us == pytest.approx(0.09e6 / events)


def test_a_run_that_ends_between_two_looks_counts_from_its_start() -> None:
    found = between([(0, 10.0, [1.0, 0.0, 0.0]), (80, 11.0, [1.5, 0.0, 0.0])], 80)
    assert found.events_s == 2000
    assert found.cpu_us == pytest.approx(0.5e6 / 2000)


def test_a_run_shorter_than_a_tick_of_the_kernels_clock_has_no_ratio_of_cpu() -> None:
    samples = [(0, 9.0, [1.0, 0.0, 0.0]), (16, 10.0, [1.2, 0.0, 0.0]), (80, 10.02, [1.2, 0.0, 0.0])]
    worker = between(samples, 80)
    assert worker.cpu_us == 0
    found = figures({"worker": worker, "aiokafka": Measured(800.0, 970.0)}, PHASES, 0.0, SENT)
    assert found["cpu_ratio"] is None
    assert found["ratio"] == pytest.approx(worker.events_s / 800)
    assert found["decode_multiple"] == 0
