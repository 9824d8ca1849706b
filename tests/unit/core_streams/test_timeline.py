import pytest

from intentloop import timeline
from intentloop.timeline import Clock, TimeRule
from tests.unit.core_streams.make import NOW_MS, envelope, view

RULE = TimeRule()
DAY_MS = 86_400_000


def test_a_clock_three_days_ahead_is_shifted_for_the_whole_batch_and_the_original_kept() -> None:
    # case T04: received 10:00:00, sent 3 days and 5 s later by the phone's clock
    ahead = NOW_MS + 3 * DAY_MS
    batch = envelope(view("e1", ahead - 120_000), view("e2", ahead - 50_000), received_ms=NOW_MS, sent_ms=ahead + 5_000)
    first, second = timeline.in_order(batch)
    assert (first.ts_ms, second.ts_ms) == (NOW_MS - 125_000, NOW_MS - 55_000)
    assert first.event.ts_ms == ahead - 120_000


def test_without_sent_at_or_receipt_no_time_is_moved() -> None:
    assert timeline.correction_ms(envelope(received_ms=NOW_MS, sent_ms=None)) == 0  # case T05
    assert timeline.correction_ms(envelope(received_ms=0, sent_ms=NOW_MS)) == 0


def test_events_are_ordered_by_time_then_count_then_place() -> None:
    events = [view("c", 50), view("a", 30), view("b", 30)]
    assert [timed.event.event_id for timed in timeline.in_order(envelope(*events))] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("ts_ms", "words"),
    [
        (1_827, "before"),
        (1_420_070_399_999, "before"),
        (NOW_MS + 600_001, "after the batch was received"),
        (NOW_MS * 1_000, "Unix milliseconds"),
    ],
)
def test_an_impossible_time_is_refused_with_its_value(ts_ms: int, words: str) -> None:
    reason = timeline.fault(ts_ms, NOW_MS, RULE)
    assert words in reason
    assert str(ts_ms) in reason


@pytest.mark.parametrize("ts_ms", [1_420_070_400_000, NOW_MS, NOW_MS + 600_000])
def test_times_on_the_limits_are_believed(ts_ms: int) -> None:
    assert timeline.fault(ts_ms, NOW_MS, RULE) == ""


def test_out_of_order_within_the_grace_is_not_late_and_beyond_it_is() -> None:
    clock = Clock(NOW_MS, NOW_MS)
    grace = RULE.late_grace_ms
    assert not timeline.is_late(NOW_MS - grace, NOW_MS, clock, RULE)
    assert timeline.is_late(NOW_MS - grace - 1, NOW_MS, clock, RULE)
    assert timeline.is_late(NOW_MS - 40_000, NOW_MS + 2_400_000, clock, RULE)  # case T09: 40 minutes after newer ones
    assert not timeline.is_late(NOW_MS + 1, NOW_MS + 10 * grace, clock, RULE), "newest of all is never late"


def test_the_clock_never_goes_back() -> None:
    clock = Clock(NOW_MS, NOW_MS)
    assert timeline.advance(clock, NOW_MS - 1, NOW_MS + 9) == clock
    assert timeline.advance(clock, NOW_MS + 1, NOW_MS + 9) == Clock(NOW_MS + 1, NOW_MS + 9)


def test_an_envelope_that_cannot_be_placed_in_time_is_refused_whole() -> None:
    assert timeline.envelope_fault(envelope(received_ms=0), RULE) == ""
    assert "received_at_ms 5" in timeline.envelope_fault(envelope(received_ms=5), RULE)
    assert "sent_at_ms" in timeline.envelope_fault(envelope(sent_ms=-(1 << 70)), RULE)
