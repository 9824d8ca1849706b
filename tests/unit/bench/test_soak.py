"""What does the soak make of its samples, and does its traffic never see a shopper again?"""

from itertools import islice

from bench.soak import COHORT, VISITS, Sample, endless, figures


def samples(growth_mib_minute: float, burst_mib: float = 0.0) -> list[Sample]:
    """Half an hour: five minutes of start-up, then a line; every seventh sample may be a burst."""
    made = []
    for number in range(360):
        minute = number / 12
        worker_mib = 50 + 10 * minute if minute < 5 else 100 + growth_mib_minute * minute
        made.append(Sample(minute, worker_mib + burst_mib * (number % 7 == 0), 2.0, 500))
    return made


def test_growth_is_told_by_the_hour_and_start_up_does_not_count() -> None:
    found = figures(samples(0.1))
    assert abs(found["ours"] - 6.0) < 0.01  # 0.1 MiB a minute is 6 an hour
    assert abs(found["low"] - 6.0) < 0.01
    assert not found["flat"]


def test_bursts_are_no_growth() -> None:
    found = figures(samples(0.0, burst_mib=30.0))
    assert found["ours"] == 0.0
    assert found["flat"]
    assert found["worker_peak_mib"] == 130.0


def test_shoppers_come_and_never_return() -> None:
    keys = [key for key, _ in islice(endless(), 2 * COHORT * VISITS)]
    first, second = set(keys[: COHORT * VISITS]), set(keys[COHORT * VISITS :])
    assert len(first) == len(second) == COHORT
    assert not first & second


def test_a_shopper_s_envelope_is_under_the_shopper_s_key() -> None:
    for key, value in islice(endless(), COHORT * VISITS - 1, COHORT * VISITS + 1):
        assert b'"user_id":"' + key in value
