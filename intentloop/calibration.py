"""Which threshold makes drift fire as often as it should, on behaviour that really happened?

Two ways to count, since nobody has published theirs. `last_inference` is what the streams do: the window is compared
with the one that the last inference saw, and a drift brings the next inference. `previous_window` compares each full
window with the full one before it; it needs no feedback, so its rates are higher, and it is how published rates are
best compared. Not here: reading files (`readers.py`), the command (`commands/calibrate.py`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from intentloop import compress, drift, window
from intentloop.drift import DriftRule, Tracker
from intentloop.events import Behaviour
from intentloop.readers import Row

Against = Literal["last_inference", "previous_window"]
Labels = Sequence[Sequence[int]]  # of each user, oldest first

NO_SWITCH = -1.0  # no overlap is that small, so the switch rule never fires
GRID = 0.005  # between thresholds that are tried
HIGHEST = 3.2  # 0.4 * log2(64) + 0.6 is the largest score of a window of 64


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """What one base and window give: rates are fired positions per label, in [0, 1].

    `published` is at τ = 0.8 without the switch rule, against the previous window. `before` is at the rule's own
    threshold, `rate` at `threshold`, which comes closest to the target.
    """

    rule: DriftRule
    against: Against
    published: float
    before: float
    threshold: float
    rate: float


def user_labels(rows: Iterable[Row], debounce_ms: int) -> list[list[int]]:
    """Which labels would the streams' windows see of each user? Noise and repeats leave none."""
    by_user: dict[str, list[Row]] = {}
    for row in rows:
        by_user.setdefault(row.user_id, []).append(row)
    found: list[list[int]] = []
    for own in by_user.values():
        recent: dict[int, int] = {}
        ordered = sorted(own, key=lambda row: (row.ts_ms, row.line, row.position))
        labels = [_label(row, recent, debounce_ms) for row in ordered]
        found.append([label for label in labels if label is not None])
    return found


def _label(row: Row, recent: dict[int, int], debounce_ms: int) -> int | None:
    event = Behaviour(
        event_id="", action=row.action, ts_ms=row.ts_ms, item_id=row.item_id, title=row.title, category=row.category
    )
    if compress.PRIORITY[event.action] >= compress.NOISE or window.is_repeat(recent, event, row.ts_ms, debounce_ms):
        return None
    return window.label(event)


def calibrate(users: Labels, rule: DriftRule, target: float, against: Against) -> Calibrated:
    """Which threshold fires for `target` of all labels?

    Args:
        rule: Base, window, weights and switch rule; its threshold is what `before` is measured at.
        target: In (0, 1). A switch fires at any threshold, so the rate cannot fall below theirs; nor rise above that of
            the lowest threshold, `GRID`.
    """
    plain = msgspec.structs.replace(rule, threshold=0.8, switch_jaccard=NO_SWITCH)
    threshold = _quantile(users, rule, target) if against == "previous_window" else _search(users, rule, target)
    return Calibrated(
        rule=rule,
        against=against,
        published=previous_window_rate(users, plain),
        before=rate(users, rule, against),
        threshold=threshold,
        rate=rate(users, msgspec.structs.replace(rule, threshold=threshold), against),
    )


def rate(users: Labels, rule: DriftRule, against: Against) -> float:
    """Which share of all labels fires?"""
    return previous_window_rate(users, rule) if against == "previous_window" else last_inference_rate(users, rule)


def last_inference_rate(users: Labels, rule: DriftRule) -> float:
    """Which share of labels fires when each drift brings an inference, and the first comes with a first window?"""
    fired = 0
    for labels in users:
        seen = labels[: rule.min_window]
        track = Tracker(seen, seen, rule)
        for label in labels[rule.min_window :]:
            if track.push(label).fired:
                fired += 1
                track = Tracker(track.labels, track.labels, rule)
    return fired / max(1, sum(map(len, users)))


def previous_window_rate(users: Labels, rule: DriftRule) -> float:
    """Which share of full windows fires against the full window before it?"""
    scores = _scores(users, rule)
    return sum(score.fired for score in scores) / max(1, len(scores))


def _scores(users: Labels, rule: DriftRule) -> list[drift.Drift]:
    size = rule.window
    return [
        drift.score(labels[end - 2 * size : end - size], labels[end - size : end], rule)
        for labels in users
        for end in range(2 * size, len(labels) + 1)
    ]


def _quantile(users: Labels, rule: DriftRule, target: float) -> float:
    """The score below which all but `target` lie, once switches are taken off."""
    scores = _scores(users, rule)
    switches = sum(score.switched for score in scores)
    totals = sorted((score.total for score in scores if not score.switched), reverse=True)
    wanted = max(0, round(target * len(scores)) - switches)
    return max(GRID, totals[min(wanted, len(totals) - 1)]) if totals else rule.threshold


def _search(users: Labels, rule: DriftRule, target: float) -> float:
    """Bisect, then look around: each threshold leads to other inferences, so the rate falls only on the whole."""
    low, high = 1, round(HIGHEST / GRID)
    measured: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in measured:
            measured[step] = last_inference_rate(users, msgspec.structs.replace(rule, threshold=step * GRID))
        return measured[step]

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) > target else (low, middle)
    for step in range(max(1, low - 3), high + 4):
        at(step)
    best = min(measured, key=lambda step: (abs(measured[step] - target), step))
    return round(best * GRID, 6)
