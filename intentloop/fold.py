"""What does one envelope do? The pure heart of the streams: `(state, envelope) -> (state, outputs, counts)`.

Every distinct event ends in exactly one count: applied, inferences, skipped, late, quarantined or rejected; an event
that was seen before is a duplicate and changes nothing. Not here: where states and outputs go (`streams/`).
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from intentloop import compress, timeline, window
from intentloop.answer import Answer
from intentloop.compress import CompressRule
from intentloop.drift import Drift, DriftRule, Tracker
from intentloop.events import Behaviour, Envelope, Inference, InferenceSkipped
from intentloop.facts import DeadLetter, DriftScored, IntentDrifted, IntentTriggered, SamplePicked
from intentloop.ids import derived
from intentloop.inference import (
    InferenceRule,
    Occasion,
    Verdict,
    ends_trigger,
    fleet_counts,
    judge,
    sample_fact,
    trigger_fact,
)
from intentloop.picks import PickRule, Spending, choose, class_spent_in, spend, spent_in
from intentloop.refusal import Source, dead_letter
from intentloop.timeline import Timed, TimeRule
from intentloop.window import UserState


class FoldRule(msgspec.Struct, frozen=True, kw_only=True):
    """All rules of the streams. `rearm_margin`: a drift fires again only after its score fell this far below τ."""

    time: TimeRule = TimeRule()
    compress: CompressRule = CompressRule()
    drift: DriftRule = DriftRule()
    inference: InferenceRule = InferenceRule()
    pick: PickRule = PickRule()
    rearm_margin: float = 0.15


class Folded(NamedTuple):
    """What one envelope did: next state, facts to send, what was counted, and the partition's pick budget after it."""

    state: UserState
    drifted: IntentDrifted | None
    triggered: tuple[IntentTriggered, ...]
    picked: tuple[SamplePicked, ...]
    dead: tuple[DeadLetter, ...]
    counts: Counter[str]
    spending: Spending


def fold(state: UserState, envelope: Envelope, source: Source, spending: Spending, rule: FoldRule) -> Folded:
    """Fold one envelope into its user's state; the same arguments always give the same result."""
    work = _Work(state, envelope, source, spending, rule)
    work.take_rejected()
    for timed in timeline.in_order(envelope):
        if work.is_admitted(timed):
            match timed.event:
                case Behaviour():
                    work.take_behaviour(timed.event, timed.ts_ms)
                case Inference():
                    work.take_inference(timed.event, timed)
                case InferenceSkipped():
                    work.counts["skipped"] += 1
                    work.counts[f"skipped_{timed.event.check}"] += 1
    return work.result()


class _Work:
    """The mutable copy of one user's state while one envelope is folded."""

    def __init__(
        self, state: UserState, envelope: Envelope, source: Source, spending: Spending, rule: FoldRule
    ) -> None:
        self.state, self.envelope, self.source, self.spending, self.rule = state, envelope, source, spending, rule
        self.counts: Counter[str] = Counter(envelopes=1, events_in=len(envelope.events) + len(envelope.rejected))
        self.ids = window.split_ids(state.seen)
        self.known = set(self.ids)
        self.clock = state.clock
        self.earliest_ms, self.latest_ms = timeline.believable(envelope.received_at_ms, rule.time)
        self.recent = dict(state.recent)
        self.track = Tracker(state.reference, state.labels[-rule.drift.window :], rule.drift)
        self.armed, self.live, self.tops = state.armed, state.live, state.tops
        self.scores: list[DriftScored] = []
        self.before: tuple[int, ...] = ()
        self.after: tuple[int, ...] = ()
        self.stale_from_ms = 0
        self.triggered: list[IntentTriggered] = []
        self.picked: list[SamplePicked] = []
        self.dead: list[DeadLetter] = []

    def take_rejected(self) -> None:
        """Count what the gateway set aside, once although the batch may come again under the same id."""
        for rejection in self.envelope.rejected:
            self.count_new(f"rejected\x00{self.envelope.batch_id}\x00{rejection.index}", "rejected")

    def count_new(self, event_id: str, outcome: str) -> bool:
        """Count an event under `outcome`, or as a duplicate when its id was seen; tells whether it is new."""
        code = window.id_code(event_id)
        if code in self.known:
            self.counts["duplicates"] += 1
            return False
        self.known.add(code)
        self.ids.append(code)
        if outcome:
            self.counts[outcome] += 1
        return True

    def is_admitted(self, timed: Timed) -> bool:
        """Does this event count: new, at a believable time, and not after its window closed?"""
        if not self.count_new(timed.event.event_id, ""):
            return False
        received_ms = self.envelope.received_at_ms
        if not self.earliest_ms <= timed.ts_ms <= self.latest_ms:
            reason = timeline.fault(timed.ts_ms, received_ms, self.rule.time)
            self.counts["quarantined"] += 1
            self.dead.append(dead_letter(self.source, timed.index, reason, msgspec.json.encode(timed.event)))
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
        rule = self.rule.drift
        if not scored.fired:
            self.armed = self.armed or scored.total < rule.threshold - self.rule.rearm_margin
            return
        if not self.armed:
            return
        self.armed, self.before, self.after = False, self.track.reference, tuple(self.track.labels)
        self.live, self.stale_from_ms = msgspec.structs.replace(self.live, stale=True), ts_ms
        self.counts["drifts"] += 1
        self.scores.append(
            DriftScored(
                event_id=event_id,
                ts_ms=ts_ms,
                total=scored.total,
                entropy_change=scored.entropy_change,
                jaccard_distance=scored.jaccard_distance,
                jensen_shannon=scored.jensen_shannon,
                switched=scored.switched,
                log_base=rule.log_base,
                window=rule.window,
            )
        )

    def take_inference(self, event: Inference, timed: Timed) -> None:
        """Judge what the model said; the window that it saw becomes the reference of drift."""
        self.counts["inferences"] += 1
        verdict = judge(event, timed.ts_ms, self.live, self.tops, self.rule.inference)
        self.counts.update(verdict.counts)
        self.counts.update(fleet_counts(event, verdict))
        if ends_trigger(verdict, timed.ts_ms, self.live, self.rule.inference):
            self.stale_from_ms = timed.ts_ms
        occasion = Occasion(event, timed.ts_ms, self.envelope)
        self.trigger(occasion, timed.index, verdict)
        self.pick(occasion, timed.index, verdict)
        self.track, self.armed = Tracker(self.track.labels, self.track.labels, self.rule.drift), True
        self.live, self.tops = verdict.live, verdict.tops

    def trigger(self, occasion: Occasion, index: int, verdict: Verdict) -> None:
        """State a trigger for those who act, when the model named an intent to act on."""
        if verdict.is_trigger and isinstance(verdict.said, Answer):
            self.triggered.append(
                trigger_fact(self.new_id("trigger", index), occasion, verdict.said, self.rule.inference)
            )
            self.counts["triggers"] += 1

    def pick(self, occasion: Occasion, index: int, verdict: Verdict) -> None:
        """State a sample for those who label, when a label is worth its price."""
        if not verdict.is_sample:
            return
        sample_id, spent = self.new_id("sample", index), spent_in(self.spending, occasion.ts_ms)
        name = verdict.said.intent if isinstance(verdict.said, Answer) else ""
        class_spent = class_spent_in(self.spending, occasion.ts_ms, name)
        chosen = choose(sample_id, verdict.reasons, spent, self.rule.pick, class_spent)
        if chosen is None:
            return
        self.picked.append(sample_fact(sample_id, occasion, verdict, chosen))
        self.counts["picked"] += 1
        if chosen.random:
            self.counts["picked_random"] += 1
        else:
            self.spending = spend(self.spending, occasion.ts_ms, name)

    def new_id(self, kind: str, index: int) -> str:
        """Which id has the thing of this kind that the event at `index` gave rise to?"""
        return derived(f"{kind}{self.source.kind_suffix}", self.source.partition, self.source.offset, index)

    def result(self) -> Folded:
        """Freeze the copy."""
        state = UserState(
            self.clock,
            window.join_ids(self.ids),
            window.newest_recent(self.recent, self.rule.compress.debounce_ms),
            tuple(self.track.labels),
            self.track.reference,
            self.armed,
            self.live,
            self.tops,
        )
        drifted = None
        if self.stale_from_ms:
            drifted = IntentDrifted(
                id=self.new_id("drift", 0),
                user_id=self.envelope.user_id,
                scores=tuple(self.scores),
                before=self.before,
                after=self.after,
                stale_until_ms=self.stale_from_ms + self.rule.inference.trigger_ttl_ms,
            )
        packed = tuple(self.triggered), tuple(self.picked), tuple(self.dead)
        return Folded(state, drifted, *packed, self.counts, self.spending)
