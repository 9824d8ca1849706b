"""Is every event accounted for, and what are the final numbers? Waits until nothing moves any more, then counts."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from demo.report import DemoReport, release_report
from demo.watch import Look, Watch
from intentloop.errors import UnavailableError

SETTLE_TIMEOUT_S = 60.0
QUIET_S = 1.5  # nothing has moved for so long
PAUSE_S = 0.3


async def settle(watch: Watch, show: Callable[[Look], None], is_done: Callable[[Look], bool], quiet_s: float) -> Look:
    """Wait until it is done and nothing has moved for `quiet_s`, or until waiting is no use."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    quiet_since, last = time.monotonic(), (-1, -1)
    look: Look | None = None
    while look is None or time.monotonic() < deadline:
        with suppress(UnavailableError):
            look = await watch.look()
            show(look)
            moving = (look.accounted, look.training.labelled)
            if moving != last:
                quiet_since, last = time.monotonic(), moving
            if is_done(look) and time.monotonic() - quiet_since >= quiet_s:
                return look
        await asyncio.sleep(PAUSE_S)
    return look


def has_counted(look: Look) -> bool:
    """Has every sent event come to an end?"""
    return look.accounted >= look.sent.events


def has_labelled(look: Look) -> bool:
    """Has every sent event come to an end, and every picked sample its label?"""
    queued = look.labelling.waiting + look.labelling.running
    labelled = look.labelling.done + look.labelling.buried
    return has_counted(look) and not queued and labelled >= look.counts.get("picked", 0)


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the director knows of a run besides what can be looked at."""

    reason: str
    restarts: dict[str, int]
    broker: str
    phones: int
    seconds: float


def demo_report(look: Look, run: RunFacts) -> DemoReport:
    """Which numbers does the last look give?"""
    training = look.training
    return DemoReport(
        events_sent=look.sent.events,
        events_accounted=look.accounted,
        events_lost=look.sent.events - look.accounted,
        samples_picked=look.counts.get("picked", 0),
        samples_labelled=training.labelled,
        samples_hard=training.outcomes.get("hard", 0),
        samples_to_people=training.outcomes.get("people", 0),
        triggers_emitted=look.counts.get("triggers", 0),
        teacher_agreement_ratio=round(training.agreement_ratio or 0.0, 4),
        label_cost=round(training.cost_yuan, 6),
        releases=tuple(report for manifest in look.releases if (report := release_report(manifest)) is not None),
        seconds_total=round(run.seconds, 1),
        phones=run.phones,
        phones_by_version=look.phones.phones_by_version,
        inferences=look.phones.inferences,
        retrain_reason=run.reason,
        restarts=run.restarts,
        broker=run.broker,
    )
