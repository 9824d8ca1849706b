"""How is a batch laid out for compiled code, and what did that find? Columns in, heads of states and findings out.

Only ordinary batches go this way: where a number or a text cannot be laid out, or a state cannot be read, `walk` gives
nothing and the caller folds by the definition (`intentloop/fold.py`), which gives the same where both can.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import lt

import numpy as np

from intentloop import compress, drift, timeline, window
from intentloop.drift import Drift
from intentloop.events import Behaviour, Envelope, Event, Inference, InferenceSkipped
from intentloop.findings import Findings
from intentloop.fold import FoldRule, rejected_id
from intentloop.timeline import Timed
from streams import columns
from streams.columns import Columns, Rule, Work, room
from streams.fold_kernel import fold_windows
from streams.fold_partition import Owned
from streams.pack_states import MAX_HEAD_BYTES, MAX_WINDOW, Integers, empty_states, pack, unpack

_SEPARATOR = chr(columns.SEPARATOR)
_USEFUL = [action for action, priority in compress.PRIORITY.items() if priority < compress.NOISE]
_KINDS = {action: columns.NOISE for action in compress.PRIORITY} | {action: kind for kind, action in enumerate(_USEFUL)}
_ACTIONS = np.array([window.thing_code(action, "") for action in _USEFUL], np.int64)
_OTHERS: dict[type, int] = {Inference: columns.INFERENCE, InferenceSkipped: columns.SKIPPED}
_FAR_MS = 1 << 60  # beyond it corrected times might not fit into 64 bits
_COUNTED = {
    "duplicates": (columns.DUPLICATE,),
    "late": (columns.LATE,),
    "rejected": (columns.REFUSED,),
    "noise": (columns.NOISY,),
    "repeats": (columns.REPEAT,),
    "applied": (columns.NOISY, columns.REPEAT, columns.APPLIED, columns.DRIFTED, columns.SWITCHED),
}


class Walked:
    """What a batch did to the windows of its users; what else it gave rise to is still to be told.

    `heads` and `tails` hold the two halves of each user's packed state: as it is now, and as it was. `renewed` numbers
    the envelopes before which a user's state had expired.
    """

    def __init__(self, heads: dict[str, bytes], tails: dict[str, bytes], lines: "Lines", work: Work) -> None:
        self.heads, self.tails, self._lines, self._work = heads, tails, lines, work
        self._outcomes = work.outcomes.tolist()
        self._drifts = 0
        notable = np.flatnonzero(work.outcomes >= columns.QUARANTINED)
        stops = np.searchsorted(notable, lines.stops)
        self.renewed = frozenset(work.renewed[: work.at[columns.RENEWED]].tolist())
        self._notable: list[int] = notable.tolist()
        self._stops: list[int] = [0, *stops.tolist()]

    def counts(self) -> Counter[str]:
        """How often did what happen, of what findings do not count?"""
        found = np.bincount(self._work.outcomes, minlength=columns.NOT_RUN + 1).tolist()
        counts = {name: sum(found[outcome] for outcome in outcomes) for name, outcomes in _COUNTED.items()}
        counts |= {"envelopes": len(self._lines.stops), "events_in": len(self._outcomes)}
        return Counter({name: count for name, count in counts.items() if count})

    def is_notable(self, number: int) -> bool:
        """Did anything in this envelope do more than move the window?"""
        return self._stops[number] < self._stops[number + 1]

    def tell(self, number: int, findings: Findings) -> None:
        """Tell findings all that happened in this envelope; envelopes are told in their order."""
        for place in self._notable[self._stops[number] : self._stops[number + 1]]:
            timed = self._lines.timed(number, place)
            match self._outcomes[place], timed.event:
                case columns.QUARANTINED, _:
                    findings.quarantine(timed)
                case _, Inference() as inference:
                    findings.infer(inference, timed)
                case _, InferenceSkipped() as skipped:
                    findings.skip(skipped)
                case outcome, event:
                    findings.drift(event.event_id, timed.ts_ms, self._score(outcome), self._windows())
                    self._drifts += 1

    def _score(self, outcome: int) -> Drift:
        total, entropy_change, jaccard_distance, divergence = self._work.scores[self._drifts].tolist()
        return Drift(total, entropy_change, jaccard_distance, divergence, outcome == columns.SWITCHED, fired=True)

    def _windows(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, after = self._work.windows[self._drifts].tolist()
        sizes = self._work.window_sizes[self._drifts].tolist()
        return tuple(before[: sizes[0]]), tuple(after[: sizes[1]])


class Lines:
    """The events of a batch in the order in which they count, and the columns of what compiled code needs of them."""

    def __init__(self) -> None:
        self.events: list[Event | None] = []  # None: set aside by the gateway
        self.stops: list[int] = []
        self.ids: list[str] = []
        self.times: list[int] = []
        self.kinds: list[int] = []
        self.things: list[str] = []
        self.labels: list[int] = []
        self._shifts: list[int] = []
        self._firsts: list[int] = []
        self._orders: dict[int, list[int]] = {}

    def add(self, envelope: Envelope) -> None:
        """Append one envelope."""
        for rejection in envelope.rejected:
            self.events.append(None)
            self.ids.append(rejected_id(envelope, rejection.index))
            self.times.append(0)
            self.kinds.append(columns.REJECTED)
        self._shifts.append(timeline.correction_ms(envelope))
        self._firsts.append(len(self.events))
        events: Sequence[Event] = envelope.events
        times = [event.ts_ms for event in events]
        if not all(map(lt, times, times[1:])):
            order = timeline.in_order(envelope)
            events, times = [one.event for one in order], [one.event.ts_ms for one in order]
            self._orders[len(self.stops)] = [one.index for one in order]
        self.times += times
        self.ids += [event.event_id for event in events]
        self.events += events
        self.stops.append(len(self.events))
        self._describe(events)

    def _describe(self, events: Sequence[Event]) -> None:
        """Which kind is each event, and of useful behaviours: which thing, and which label?"""
        kinds, things, labels = self.kinds, self.things, self.labels
        for event in events:
            if type(event) is not Behaviour:
                kinds.append(_OTHERS[type(event)])
                continue
            kind = _KINDS[event.action]
            kinds.append(kind)
            if kind < columns.NOISE:
                things.append(event.item_id or event.title)  # as `compress.thing`
                label = window.label(event)
                labels.append(-1 if label is None else label)

    def timed(self, number: int, place: int) -> Timed:
        """Which event of envelope `number` lies here, at which corrected time?"""
        event, index = self.events[place], place - self._firsts[number]
        assert event is not None  # what the gateway set aside is never notable
        order = self._orders.get(number)
        return Timed(event.ts_ms + self._shifts[number], order[index] if order else index, event)

    def columns(self, owned: Sequence[Owned], rows: Mapping[str, int], rule: FoldRule) -> Columns | None:
        """Lay the columns out; nothing where a text or a number does not go into one."""
        ids, things, times = _joined(self.ids), _joined(self.things), _integers(self.times)
        if ids is None or things is None or max(times.max(initial=0), -1 - times.min(initial=0)) > _FAR_MS:
            return None
        envelopes = [
            (
                rows[one.key],
                stop,
                one.envelope.received_at_ms,
                shift_ms,
                *timeline.believable(one.envelope.received_at_ms, rule.time),
                int.from_bytes(window.id_code(window.batch_id(one.envelope)), "little"),
            )
            for one, stop, shift_ms in zip(owned, self.stops, self._shifts, strict=True)
        ]
        return Columns(
            np.array(envelopes, np.int64),
            np.frombuffer(bytes(self.kinds), np.int8),
            times,
            np.frombuffer(ids, np.uint8),
            np.frombuffer(things, np.uint8),
            _integers(self.labels),
            _ACTIONS,
        )


def _integers(numbers: Sequence[int]) -> Integers:
    return np.fromiter(numbers, np.int64, len(numbers))


def _joined(texts: Sequence[str]) -> bytes | None:
    """How do these texts lie in a column? Nothing where one of them holds what separates them."""
    joined = _SEPARATOR.join(texts)
    return joined.encode() if joined.count(_SEPARATOR) < max(1, len(texts)) else None


class ColumnFold:
    """Folds the envelopes of one partition, in their order, over packed states.

    Args:
        rule: Constant for the life of a worker.
    """

    def __init__(self, rule: FoldRule) -> None:
        self._rule, self._numbers = rule, numbers(rule)

    def walk(self, owned: Sequence[Owned], found: Mapping[str, bytes | None]) -> Walked | None:
        """What do these envelopes do to the states that were `found`? Nothing where they must go the plain way."""
        if self._numbers is None or not owned:
            return None
        lines = Lines()
        for one in owned:
            lines.add(one.envelope)
        keys = list(dict.fromkeys(one.key for one in owned))
        try:
            laid = lines.columns(owned, {key: row for row, key in enumerate(keys)}, self._rule)
        except (OverflowError, UnicodeEncodeError):
            return None
        if laid is None:
            return None
        values = [found[key] or b"" for key in keys]
        starts = np.array([0, *accumulate(map(len, values))], np.int64)
        tails, states = starts.copy(), empty_states(len(keys))
        if not unpack(np.frombuffer(b"".join(values), np.uint8), tails, states):
            return None
        work = room(len(lines.stops), len(lines.events), len(lines.labels))
        fold_windows(laid, states, self._numbers, work)
        packed = np.empty(len(keys) * MAX_HEAD_BYTES, np.uint8)
        heads = np.zeros(len(keys) + 1, np.int64)
        pack(states, packed, heads)
        return Walked(
            _cut(keys, packed[: heads[-1]].tobytes(), heads.tolist()),
            {key: value[at:] for key, value, at in zip(keys, values, (tails - starts)[:-1].tolist(), strict=True)},
            lines,
            work,
        )


def _cut(keys: Sequence[str], packed: bytes, starts: Sequence[int]) -> dict[str, bytes]:
    return {key: packed[start:stop] for key, start, stop in zip(keys, starts, starts[1:], strict=False)}


def numbers(rule: FoldRule) -> Rule | None:
    """Which numbers does compiled code need of this rule? None where a window is too wide for it."""
    wide = rule.drift
    if max(wide.window, wide.min_window) > MAX_WINDOW:
        return None
    sizes = range(2 * MAX_WINDOW * MAX_WINDOW + 1)
    weights = wide.entropy_weight, wide.jaccard_weight, wide.jensen_shannon_weight
    return Rule(
        rule.compress.debounce_ms,
        rule.time.late_grace_ms,
        rule.state_ttl_ms,
        wide.window,
        wide.min_window,
        (float(weights[0]), float(weights[1]), float(weights[2])),
        float(wide.threshold),
        float(rule.rearm_below),
        float(wide.switch_jaccard),
        np.array([drift.n_log_n(size) for size in sizes], np.int64),
        np.array([drift.log_and_scale(size)[0] if size else 0.0 for size in sizes]),
        np.array([drift.unit(wide.log_base, labels) for labels in range(2 * MAX_WINDOW + 2)]),
    )
