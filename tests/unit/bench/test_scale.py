"""The table of `docs/scaling.md`, against arithmetic by hand."""

from bench.scale import Habit, cores_and_bytes

FIGURES = {
    "streams": {
        "cpu_us_event": 6.0,
        "redis_cpu_us_event": 0.3,
        "broker_cpu_us_event": 1.0,
        "envelope_bytes": 5_000,
    },
    "gateway": {"cpu_us_request": 200.0},
    "state": {"bytes_user_busiest": 1_500.0},
}
HABIT = Habit(events_day=288, events_envelope=24, peak_ratio=3.0, busy_ratio=0.5, retention_days=3, replicas=3)


def test_a_hundred_million_users_take_what_arithmetic_says() -> None:
    found = cores_and_bytes(100_000_000, FIGURES, HABIT)
    assert found["peak_events_s"] == 1_000_000  # 1e8 users x 288 / 86,400 s = 333,333 a second, three times that
    assert found["streams_cores"] == 12  # 1e6 x 6 us = 6 cores, half busy
    assert found["gateway_cores"] == 17  # 1e6 / 24 x 200 us = 8.33 cores, half busy
    assert found["redis_cores"] == 1  # 0.3 cores, half busy
    assert found["broker_cores"] == 6  # 1 core on each of three replicas, half busy
    assert found["partitions"] == 32  # two for each worker, rounded up to a power of two
    assert found["redis_gb"] == 150.0
    assert found["kafka_gb"] == 54_000.0  # 1e8 x 12 envelopes x 5 kB = 6 TB a day, 3 days, 3 replicas


def test_few_users_still_have_the_topic_table_s_partitions() -> None:
    assert cores_and_bytes(1_000, FIGURES, HABIT)["partitions"] == 8
