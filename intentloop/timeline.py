"""When did it happen, and does it still count?

A phone's clock is corrected per batch, impossible times are set aside with a reason, and late is told from out of
order by one written rule. Time comes from the event; nothing here asks a clock. Not here: what an event means.
"""

from operator import lt

import msgspec

from intentloop.events import Envelope, Event


class TimeRule(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of believable event times, in milliseconds.

    `earliest_ms` is 2015-01-01 UTC: a clock before that was reset, not slow. `latest_ms` is 2100-01-01 UTC.
    """

    earliest_ms: int = 1_420_070_400_000
    latest_ms: int = 4_102_444_800_000
    future_grace_ms: int = 10 * 60_000
    late_grace_ms: int = 30 * 60_000


class Timed(msgspec.Struct, frozen=True, gc=False):
    """An event at its corrected time; `event` keeps the phone's own, `index` is its place in the envelope."""

    ts_ms: int
    index: int
    event: Event


class Clock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one user has come: newest event time, and when the envelope that brought it was received."""

    newest_ms: int = 0
    received_ms: int = 0


def correction_ms(envelope: Envelope) -> int:
    """By how much was the phone's clock wrong (to add)? 0 where the phone did not say when it sent the batch."""
    if envelope.sent_at_ms is None or envelope.received_at_ms <= 0:
        return 0
    return envelope.received_at_ms - envelope.sent_at_ms


def envelope_fault(envelope: Envelope, rule: TimeRule) -> str:
    """Why can the whole envelope not be placed in time? Empty when it can; an unknown receipt (0) is allowed."""
    received_ms, sent_ms = envelope.received_at_ms, envelope.sent_at_ms
    if received_ms and not rule.earliest_ms <= received_ms <= rule.latest_ms:
        limits = f"{rule.earliest_ms} and {rule.latest_ms}"
        return f"received_at_ms {received_ms} is not between {limits}; check the gateway's clock"
    if sent_ms is not None and abs(sent_ms) > rule.latest_ms:
        return f"sent_at_ms {sent_ms} is beyond {rule.latest_ms}; send Unix milliseconds"
    return ""


def believable(received_ms: int, rule: TimeRule) -> tuple[int, int]:
    """Between which two instants are the corrected times of an envelope believed? `fault` tells why not outside."""
    if received_ms <= 0:
        return rule.earliest_ms, rule.latest_ms
    return rule.earliest_ms, min(rule.latest_ms, received_ms + rule.future_grace_ms)


def fault(ts_ms: int, received_ms: int, rule: TimeRule) -> str:
    """Why can a corrected time not be believed? Empty when it can."""
    if ts_ms < rule.earliest_ms:
        return (
            f"ts_ms {ts_ms} is before {rule.earliest_ms} (2015): the phone's clock was reset; send the batch's sent_at"
        )
    if ts_ms > rule.latest_ms:
        return f"ts_ms {ts_ms} is after {rule.latest_ms} (2100); send Unix milliseconds"
    if received_ms > 0 and ts_ms > received_ms + rule.future_grace_ms:
        return f"ts_ms {ts_ms} is more than {rule.future_grace_ms} ms after the batch was received at {received_ms}"
    return ""


def is_late(ts_ms: int, received_ms: int, clock: Clock, rule: TimeRule) -> bool:
    """Has the window that this event belongs to been closed?

    It has when newer events of the user were applied and the event comes more than the grace after them: either its
    own time is that much older, or it was received that much later. Anything else is merely out of order.
    """
    if ts_ms >= clock.newest_ms:
        return False
    return clock.newest_ms - ts_ms > rule.late_grace_ms or received_ms - clock.received_ms > rule.late_grace_ms


def advance(clock: Clock, ts_ms: int, received_ms: int) -> Clock:
    """How far has the user come after this event? Never back."""
    return Clock(ts_ms, received_ms) if ts_ms > clock.newest_ms else clock


def in_order(envelope: Envelope) -> list[Timed]:
    """In which order did the events of one envelope happen? By corrected time, then the phone's own count."""
    shift = correction_ms(envelope)
    timed = [Timed(event.ts_ms + shift, index, event) for index, event in enumerate(envelope.events)]
    times = [one.ts_ms for one in timed]
    if all(map(lt, times, times[1:])):  # as nearly all phones send them
        return timed
    timed.sort(key=lambda one: (one.ts_ms, one.event.seq, one.index))
    return timed
