"""What does one envelope do? The pure heart of the streams: `(state, envelope) -> (state, outputs, counts)`.

Every distinct event ends in exactly one count: applied, inferences, skipped, late, quarantined or rejected; an event
that was seen before is a duplicate and changes nothing. This is the definition; `streams/fold_kernel.py` follows a
user's window in the same way in compiled code. Not here: what an inference or a drift gives rise to (`findings.py`),
and where states and outputs go (`streams/`).
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from intentloop import compress, timeline, window
from intentloop.compress import CompressRule
from intentloop.drift import Drift, DriftRule, Tracker
from intentloop.events import Behaviour, Envelope, Inference, InferenceSkipped
from intentloop.facts import DeadLetter, IntentDrifted, IntentTriggered, SamplePicked
from intentloop.findings import Facts, Findings, Memory
from intentloop.inference import InferenceRule
from intentloop.picks import PickRule, Spending
from intentloop.refusal import Source
from intentloop.timeline import Timed, TimeRule
from intentloop.window import UserState


class FoldRule(msgspec.Struct, frozen=True, kw_only=True):
    """All rules of the streams. `rearm_margin`: a drift fires again only after its score fell this far below τ.

    `state_ttl_ms`: a user of whom nothing new was received for so long is a new one, live as in a replay.
    """

    time: TimeRule = TimeRule()
    compress: CompressRule = CompressRule()
    drift: DriftRule = DriftRule()
    inference: InferenceRule = InferenceRule()
    pick: PickRule = PickRule()
    rearm_margin: float = 0.15
    state_ttl_ms: int = 86_400_000

    @property
    def rearm_below(self) -> float:
        """Below which score may a drift fire again?"""
        return self.drift.threshold - self.rearm_margin


class Folded(NamedTuple):
    """What one envelope did: next state, facts to send, what was counted, and the partition's pick budget after it."""

    state: UserState
    drifted: IntentDrifted | None
    triggered: tuple[IntentTriggered, ...]
    picked: tuple[SamplePicked, ...]
    dead: tuple[DeadLetter, ...]
    counts: Counter[str]
    spending: Spending

    @property
    def facts(self) -> Facts:
        """Which facts are to be sent?"""
        return Facts(self.drifted, self.triggered, self.picked, self.dead)


def fold(state: UserState, envelope: Envelope, source: Source, spending: Spending, rule: FoldRule) -> Folded:
    """Fold one envelope into its user's state; the same arguments always give the same result."""
    if is_expired(state, envelope, rule):
        state = UserState()
    work = _Work(state, envelope, source, spending, rule)
    if work.is_resent():
        return work.result()
    work.take_rejected()
    for timed in timeline.in_order(envelope):
        if work.is_admitted(timed):
            match timed.event:
                case Behaviour():
                    work.take_behaviour(timed.event, timed.ts_ms)
                case Inference():
                    work.take_inference(timed.event, timed)
                case InferenceSkipped():
                    work.findings.skip(timed.event)
    return work.result()


def is_expired(state: UserState, envelope: Envelope, rule: FoldRule) -> bool:
    """Is this user's state too old to go on from? Told by receipts, so a replay and a live run agree."""
    received_ms = state.clock.received_ms
    return received_ms > 0 and envelope.received_at_ms - received_ms >= rule.state_ttl_ms


class _Work:
    """The mutable copy of one user's state while one envelope is folded."""

    def __init__(
        self, state: UserState, envelope: Envelope, source: Source, spending: Spending, rule: FoldRule
    ) -> None:
        self.envelope, self.rule = envelope, rule
        self.counts: Counter[str] = Counter(envelopes=1, events_in=len(envelope.events) + len(envelope.rejected))
        self.findings = Findings(envelope, source, Memory(state.live, state.tops, spending), rule, self.counts)
        self.ids = window.split_ids(state.seen)
        self.known = set(self.ids)
        self.batches = window.split_ids(state.batches)
        self.inferred_ms = state.inferred_ms
        self.clock = state.clock
        self.earliest_ms, self.latest_ms = timeline.believable(envelope.received_at_ms, rule.time)
        self.recent = dict(state.recent)
        self.track = Tracker(state.reference, state.labels[-rule.drift.window :], rule.drift)
        self.armed = state.armed

    def is_resent(self) -> bool:
        """Did this very batch come before? All of it are duplicates then, also events whose ids have been forgotten."""
        code = window.id_code(window.batch_id(self.envelope))
        if code not in self.batches:
            self.batches.append(code)
            return False
        if self.counts["events_in"]:  # a count of none is not noted
            self.counts["duplicates"] += self.counts["events_in"]
        return True

    def take_rejected(self) -> None:
        """Count what the gateway set aside, once although the batch may come again under the same id."""
        for rejection in self.envelope.rejected:
            if self.is_new(rejected_id(self.envelope, rejection.index)):
                self.counts["rejected"] += 1

    def is_new(self, event_id: str) -> bool:
        """Is this the first time that this event comes? Else it is counted as a duplicate."""
        code = window.id_code(event_id)
        if code in self.known:
            self.counts["duplicates"] += 1
            return False
        self.known.add(code)
        self.ids.append(code)
        return True

    def is_admitted(self, timed: Timed) -> bool:
        """Does this event count: new, at a believable time, and not after its window closed?"""
        if not self.is_new(timed.event.event_id):
            return False
        received_ms = self.envelope.received_at_ms
        if not self.earliest_ms <= timed.ts_ms <= self.latest_ms:
            self.findings.quarantine(timed)
            return False
        if timed.ts_ms >= self.clock.newest_ms:  # in order, as nearly all are
            self.clock = timeline.advance(self.clock, timed.ts_ms, received_ms)
        elif timeline.is_late(timed.ts_ms, received_ms, self.clock, self.rule.time):
            self.counts["late"] += 1
            return False
        return True

    def take_behaviour(self, event: Behaviour, ts_ms: int) -> None:
        """Compress, then label the window, then measure how far it is from what the last inference saw."""
        self.counts["applied"] += 1
        if compress.PRIORITY[event.action] >= compress.NOISE:
            self.counts["noise"] += 1
            return
        if window.is_repeat(self.recent, event, ts_ms, self.rule.compress.debounce_ms):
            self.counts["repeats"] += 1
            return
        label = window.label(event)
        if label is None:
            return
        self.watch_drift(self.track.push(label), event.event_id, ts_ms)

    def watch_drift(self, scored: Drift, event_id: str, ts_ms: int) -> None:
        """One drift fires once, until an inference or a clear return arms it again."""
        if not scored.fired:
            self.armed = self.armed or scored.total < self.rule.rearm_below
        elif self.armed:
            self.armed = False
            self.findings.drift(event_id, ts_ms, scored, (self.track.reference, tuple(self.track.labels)))

    def take_inference(self, event: Inference, timed: Timed) -> None:
        """Judge what the model said; the window that the newest one saw becomes the reference of drift."""
        self.findings.infer(event, timed)
        if timed.ts_ms < self.inferred_ms:
            return
        self.inferred_ms = timed.ts_ms
        self.track, self.armed = Tracker(self.track.labels, self.track.labels, self.rule.drift), True

    def result(self) -> Folded:
        """Freeze the copy."""
        found = self.findings
        state = UserState(
            self.clock,
            self.inferred_ms,
            window.join_ids(self.ids),
            window.join_ids(self.batches, window.MAX_BATCHES),
            window.newest_recent(self.recent, self.rule.compress.debounce_ms),
            tuple(self.track.labels),
            self.track.reference,
            self.armed,
            found.live,
            found.tops,
        )
        return Folded(state, *found.facts(), self.counts, found.spending)


def rejected_id(envelope: Envelope, index: int) -> str:
    """Which id has an event that the gateway set aside, whatever its own was?"""
    return f"rejected\x00{envelope.batch_id}\x00{index}"
