"""What does one envelope give rise to besides the user's next window? Drifts, triggers, samples, dead letters, counts.

Told event by event what became of an envelope, in order, by the fold or by its compiled twin; so both state the same
facts. Not here: whether an event counts, and how the window moves (`fold.py`).
"""

from collections import Counter
from typing import NamedTuple, Protocol

import msgspec

from intentloop import timeline
from intentloop.answer import Answer
from intentloop.drift import Drift, DriftRule
from intentloop.events import Envelope, Inference, InferenceSkipped
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
from intentloop.window import LiveIntent


class Memory(NamedTuple):
    """What is known before the envelope: the user's live intent and top categories, the partition's pick budget."""

    live: LiveIntent
    tops: tuple[int, ...]
    spending: Spending


class Facts(NamedTuple):
    """What one envelope gives rise to, to be sent."""

    drifted: IntentDrifted | None
    triggered: tuple[IntentTriggered, ...]
    picked: tuple[SamplePicked, ...]
    dead: tuple[DeadLetter, ...]


class FindingRule(Protocol):
    """Those parts of the fold's rule (`fold.FoldRule`) that matter here."""

    @property
    def time(self) -> TimeRule: ...  # noqa: D102
    @property
    def drift(self) -> DriftRule: ...  # noqa: D102
    @property
    def inference(self) -> InferenceRule: ...  # noqa: D102
    @property
    def pick(self) -> PickRule: ...  # noqa: D102


class Findings:
    """Gathers what one envelope gives rise to; `live`, `tops` and `spending` go on from `memory`.

    Args:
        envelope: Whose events are told, in their order.
        source: Where the envelope lies; ids are derived from it.
        counts: Where everything is counted.
    """

    def __init__(
        self, envelope: Envelope, source: Source, memory: Memory, rule: FindingRule, counts: Counter[str]
    ) -> None:
        self.envelope, self.source, self.rule, self.counts = envelope, source, rule, counts
        self.live, self.tops, self.spending = memory
        self.scores: list[DriftScored] = []
        self.windows: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
        self.stale_from_ms = 0
        self.triggered: list[IntentTriggered] = []
        self.picked: list[SamplePicked] = []
        self.dead: list[DeadLetter] = []

    def quarantine(self, timed: Timed) -> None:
        """Set an event at an impossible time aside, with the reason."""
        reason = timeline.fault(timed.ts_ms, self.envelope.received_at_ms, self.rule.time)
        self.counts["quarantined"] += 1
        self.dead.append(dead_letter(self.source, timed.index, reason, msgspec.json.encode(timed.event)))

    def skip(self, event: InferenceSkipped) -> None:
        """Count a run of the model that did not happen."""
        self.counts["skipped"] += 1
        self.counts[f"skipped_{event.check}"] += 1

    def drift(self, event_id: str, ts_ms: int, scored: Drift, windows: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        """Note a drift that fired, with the windows before and after; nobody should act on the live intent any more."""
        self.counts["drifts"] += 1
        self.windows, self.stale_from_ms = windows, self.after_live(ts_ms)
        self.live = msgspec.structs.replace(self.live, stale=True)
        self.scores.append(
            DriftScored(
                event_id=event_id,
                ts_ms=ts_ms,
                total=scored.total,
                entropy_change=scored.entropy_change,
                jaccard_distance=scored.jaccard_distance,
                jensen_shannon=scored.jensen_shannon,
                switched=scored.switched,
                log_base=self.rule.drift.log_base,
                window=self.rule.drift.window,
                min_window=self.rule.drift.min_window,
                threshold=self.rule.drift.threshold,
            )
        )

    def infer(self, event: Inference, timed: Timed) -> None:
        """Judge what the model said; state a trigger for those who act, and a sample for those who label."""
        self.counts["inferences"] += 1
        verdict = judge(event, timed.ts_ms, self.live, self.tops, self.rule.inference)
        for name in (*verdict.counts, *fleet_counts(event, verdict)):
            self.counts[name] += 1
        if ends_trigger(verdict, timed.ts_ms, self.live, self.rule.inference):
            self.stale_from_ms = self.after_live(timed.ts_ms)
        occasion = Occasion(event, timed.ts_ms, self.envelope)
        self.trigger(occasion, timed.index, verdict)
        self.pick(occasion, timed.index, verdict)
        self.live, self.tops = verdict.live, verdict.tops

    def after_live(self, ts_ms: int) -> int:
        """From when on is the live intent stale? After it was stated, also where clocks of one moment disagree."""
        return max(ts_ms, self.live.ts_ms + 1)

    def trigger(self, occasion: Occasion, index: int, verdict: Verdict) -> None:
        """State a trigger when the model named an intent to act on."""
        if verdict.is_trigger and isinstance(verdict.said, Answer):
            self.triggered.append(
                trigger_fact(self.new_id("trigger", index), occasion, verdict.said, self.rule.inference)
            )
            self.counts["triggers"] += 1

    def pick(self, occasion: Occasion, index: int, verdict: Verdict) -> None:
        """State a sample when a label is worth its price."""
        if not verdict.is_sample:
            return
        at_ms = self.envelope.received_at_ms or occasion.ts_ms  # a phone's clock must not open hours of its own
        sample_id, spent = self.new_id("sample", index), spent_in(self.spending, at_ms)
        name = verdict.said.intent if isinstance(verdict.said, Answer) else ""
        class_spent = class_spent_in(self.spending, at_ms, name)
        chosen = choose(sample_id, verdict.reasons, spent, self.rule.pick, class_spent)
        if chosen is None:
            return
        self.picked.append(sample_fact(sample_id, occasion, verdict, chosen))
        self.counts["picked"] += 1
        if chosen.random:
            self.counts["picked_random"] += 1
        else:
            self.spending = spend(self.spending, at_ms, name)

    def new_id(self, kind: str, index: int) -> str:
        """Which id has the thing of this kind that the event at `index` gave rise to?"""
        return derived(f"{kind}{self.source.kind_suffix}", self.source.partition, self.source.offset, index)

    def facts(self) -> Facts:
        """Which facts are to be sent?"""
        return Facts(self.drifted(), tuple(self.triggered), tuple(self.picked), tuple(self.dead))

    def drifted(self) -> IntentDrifted | None:
        """Which one fact states that the user left the intent stated last? None where the user did not."""
        if not self.stale_from_ms:
            return None
        return IntentDrifted(
            id=self.new_id("drift", 0),
            user_id=self.envelope.user_id,
            scores=tuple(self.scores),
            before=self.windows[0],
            after=self.windows[1],
            stale_until_ms=self.stale_from_ms + self.rule.inference.trigger_ttl_ms,
        )
