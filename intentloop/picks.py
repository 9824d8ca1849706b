"""Which inferences are worth a label? Reasons with weights under a budget, plus a uniform random share.

The hard samples teach the model; the random share keeps every estimate unbiased, so it is drawn first, from the id
alone, and outside the budget. The same sample is always judged the same way: no dice, no clock. Not here: asking
teachers (`workers/`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from intentloop.ids import bucket

Reason = Literal[
    "drifted",
    "flip_flop",
    "rule_disagrees",
    "ungrounded",
    "format_fault",
    "low_confidence",
    "rare_class",
    "novel_category",
]

WEIGHTS: Mapping[Reason, float] = {
    "rule_disagrees": 1.0,
    "ungrounded": 1.0,
    "format_fault": 1.0,
    "low_confidence": 0.8,
    "flip_flop": 0.7,
    "drifted": 0.5,
    "novel_category": 0.4,
    "rare_class": 0.3,
}

HOUR_MS = 3_600_000
HOURS_KEPT = 48  # hours of receipt whose spending a partition remembers; what comes from before them is not picked

FORGOTTEN = 1 << 62  # more than any budget


class PickRule(msgspec.Struct, frozen=True, kw_only=True):
    """`budget_per_hour` counts hard picks of one source partition in one hour of the gateway's clock.

    One class (an intent that the phone named, or none for faults) takes `class_ratio` of it at most: a model that errs
    on browsing all day leaves room for what it says of the rare intents.
    """

    weights: Mapping[Reason, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))
    min_priority: float = 0.8
    budget_per_hour: int = 500
    class_ratio: float = 0.7
    random_ratio: float = 0.02
    salt: str = "pick"


class Pick(msgspec.Struct, frozen=True):
    """A sample to label: the sum of its reasons' weights, and whether it belongs to the uniform share."""

    priority: float
    random: bool


class Spending(msgspec.Struct, frozen=True, array_like=True):
    """How many hard samples a partition has picked: (hour of receipt, count), oldest hour first; by class, too."""

    hours: tuple[tuple[int, int], ...] = ()
    classes: tuple[tuple[int, str, int], ...] = ()


def choose(sample_id: str, reasons: Sequence[Reason], spent: int, rule: PickRule, class_spent: int = 0) -> Pick | None:
    """Is this sample labelled?

    Args:
        sample_id: Decides the random share, for ever.
        reasons: Why the model may be wrong here; may be empty.
        spent: Hard picks of the same partition and hour so far.
        class_spent: Those of the same class among them.
    """
    priority = sum(rule.weights.get(reason, 0.0) for reason in reasons)
    if bucket(sample_id, rule.salt) < rule.random_ratio:
        return Pick(priority, random=True)
    if priority < rule.min_priority or spent >= rule.budget_per_hour:
        return None
    if class_spent >= math.ceil(rule.class_ratio * rule.budget_per_hour):
        return None
    return Pick(priority, random=False)


def spent_in(spending: Spending, ts_ms: int) -> int:
    """How much of this hour's budget is gone? All of it where the hour is too old to be remembered."""
    hour = ts_ms // HOUR_MS
    for at, count in spending.hours:
        if at == hour:
            return count
    return FORGOTTEN if len(spending.hours) == HOURS_KEPT and hour < spending.hours[0][0] else 0


def class_spent_in(spending: Spending, ts_ms: int, name: str) -> int:
    """How much of this hour's budget has this class taken?"""
    hour = ts_ms // HOUR_MS
    for at, kind, count in spending.classes:
        if at == hour and kind == name:
            return count
    return 0


def spend(spending: Spending, ts_ms: int, name: str = "") -> Spending:
    """What is remembered after one more hard pick of class `name`? The newest hours only."""
    hour = ts_ms // HOUR_MS
    hours = dict(spending.hours)
    hours[hour] = hours.get(hour, 0) + 1
    kept = dict(sorted(hours.items())[-HOURS_KEPT:])
    classes = {(at, kind): count for at, kind, count in spending.classes if at in kept}
    if hour in kept:
        classes[hour, name] = classes.get((hour, name), 0) + 1
    return Spending(tuple(kept.items()), tuple((at, kind, count) for (at, kind), count in sorted(classes.items())))
