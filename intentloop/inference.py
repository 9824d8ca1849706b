"""What do we make of one run of the model on a phone? Was it our prompt, what did it say, and may it be wrong?

Builds the two facts that follow: a trigger for those who act on intent, a sample for those who label. Not here: which
samples are picked (`picks.py`), or the user's window (`fold.py`).
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from intentloop import answer, fleet_drift, fleet_state, prompt, rules
from intentloop.answer import Answer, AnswerFault
from intentloop.events import Envelope, Inference, SequenceItem
from intentloop.facts import IntentName, IntentTriggered, SamplePicked, TriggerData, TriggerType
from intentloop.picks import Pick, Reason
from intentloop.rules import IntentRule
from intentloop.window import MAX_TOPS, LiveIntent, code_of

TRIGGERS: dict[IntentName, TriggerType] = {
    "比价犹豫": "shopping_hesitate_trigger",
    "场景购物": "shopping_scene_trigger",
}
SOURCE_URI = "/intentloop/streams"
MAX_VERSION_CHARS = 64  # of a phone's model version in a counter's name
_WIDE = re.compile(r"[\u3000\uff01-\uff5e]")  # full-width forms of ASCII


class InferenceRule(msgspec.Struct, frozen=True, kw_only=True):
    """`trigger_ttl_ms`: how long a trigger may be acted on. `flip_flop_ms`: two intents within it contradict.

    `rare_intents` are those whose share is so small that each example is worth looking at. `simplify` maps traditional
    characters to simplified ones; identity where there is no table.
    """

    trigger_ttl_ms: int = 30 * 60_000
    flip_flop_ms: int = 5 * 60_000
    low_confidence: float = 0.5
    rare_intents: tuple[IntentName, ...] = ("场景购物",)
    intent: IntentRule = IntentRule()
    simplify: Callable[[str], str] = str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one inference means. `said` is None when the phone fed other bytes than our template renders.

    `outdated`: a newer inference of this user came before, so nobody should act on this one.
    `live` and `tops` are the user's next live intent and known top categories; `counts` names what to count.
    """

    said: Answer | AnswerFault | None
    reasons: tuple[Reason, ...]
    counts: tuple[str, ...]
    live: LiveIntent
    tops: tuple[int, ...]
    outdated: bool = False

    @property
    def is_trigger(self) -> bool:
        """Did the model name an intent that others act on, and nothing newer?"""
        return isinstance(self.said, Answer) and self.said.intent in TRIGGERS and not self.outdated

    @property
    def is_sample(self) -> bool:
        """Could a label teach anything? Not of a broken model's output, nor of a prompt that we do not know."""
        return isinstance(self.said, Answer) or (self.said is not None and self.said.kind != "degenerate")


def judge(event: Inference, ts_ms: int, live: LiveIntent, tops: tuple[int, ...], rule: InferenceRule) -> Verdict:
    """What does this inference mean?

    Args:
        ts_ms: Corrected time of the inference.
        live: What the phone said before.
        tops: Codes of the top categories that this user's inferences have read before.
    """
    sequence = prompt.sequence_text(event.read)
    if prompt.digest(sequence) != event.sequence_digest:
        return Verdict(said=None, reasons=(), counts=("digest_mismatches",), live=live, tops=tops)
    said = _read(event, rule.simplify)
    categories = dict.fromkeys([item.category for item in event.read if item.category])
    read_tops = dict.fromkeys([code_of(category.partition(".")[0]) for category in categories])
    novel = bool(tops) and not read_tops.keys() <= set(tops)
    known = (*[code for code in tops if code not in read_tops], *read_tops)[-MAX_TOPS:]
    if isinstance(said, AnswerFault):
        reasons = _fault_reasons(said) + _context_reasons(event, live, novel, rule)
        return Verdict(said=said, reasons=reasons, counts=_fault_counts(said, event), live=live, tops=known)
    reasons = _answer_reasons(said, event, ts_ms, live, rule) + _context_reasons(event, live, novel, rule)
    counts = (f"intent_{said.intent}",)
    if ts_ms < live.ts_ms:
        return Verdict(said=said, reasons=reasons, counts=(*counts, "outdated"), live=live, tops=known, outdated=True)
    now = LiveIntent(said.intent, ts_ms, False, said.keywords, _newest_category(event.read))
    return Verdict(said=said, reasons=reasons, counts=counts, live=now, tops=known)


def _read(event: Inference, simplify: Callable[[str], str]) -> Answer | AnswerFault:
    """Which intent and keywords did the phone name? What cannot be read as written may be so in another script."""
    said, evidence = answer.parse(event.answer), ""
    if isinstance(said, Answer) and said.keywords:
        evidence = prompt.evidence(event.read)
        said = answer.ground(said, evidence)
    if not isinstance(said, AnswerFault) or said.kind not in ("unknown", "ungrounded"):
        return said
    evidence = evidence or prompt.evidence(event.read)
    said = answer.parse(_narrow(event.answer), simplify)
    return answer.ground(said, f"{evidence}\n{simplify(_narrow(evidence))}") if isinstance(said, Answer) else said


def _narrow(text: str) -> str:
    """How does a text read without full-width forms? Not by `str.translate`, which looks up every character."""
    return _WIDE.sub(lambda wide: " " if wide[0] == "\u3000" else chr(ord(wide[0]) - 0xFEE0), text)


def ends_trigger(verdict: Verdict, ts_ms: int, live: LiveIntent, rule: InferenceRule) -> bool:
    """Does this inference take back a trigger that others may still act on? 闲逛 is none, but the newest intent."""
    return (
        isinstance(verdict.said, Answer)
        and not verdict.outdated
        and verdict.said.intent not in TRIGGERS
        and live.name in TRIGGERS
        and not live.stale  # a drift took it back before
        and ts_ms < live.ts_ms + rule.trigger_ttl_ms
    )


def _fault_reasons(fault: AnswerFault) -> tuple[Reason, ...]:
    return ("ungrounded",) if fault.kind == "ungrounded" else ("format_fault",)


def _fault_counts(fault: AnswerFault, event: Inference) -> tuple[str, ...]:
    """A broken model is counted by its version, so that an alarm can name it."""
    if fault.kind == "degenerate":
        return "faults_degenerate", f"faults_degenerate:{event.model_version[:MAX_VERSION_CHARS]}"
    return (f"faults_{fault.kind}",)


def _answer_reasons(
    said: Answer, event: Inference, ts_ms: int, live: LiveIntent, rule: InferenceRule
) -> tuple[Reason, ...]:
    """Why might a well-formed answer be wrong?"""
    reasons: list[Reason] = []
    if rules.classify(event.read, rule.intent).intent != said.intent:
        reasons.append("rule_disagrees")
    if live.name and live.name != said.intent and abs(ts_ms - live.ts_ms) <= rule.flip_flop_ms:
        reasons.append("flip_flop")
    if said.intent in rule.rare_intents:
        reasons.append("rare_class")
    return tuple(reasons)


def _context_reasons(event: Inference, live: LiveIntent, novel: bool, rule: InferenceRule) -> tuple[Reason, ...]:
    """Why might any answer be wrong here?"""
    reasons: list[Reason] = []
    if live.stale:
        reasons.append("drifted")
    if event.confidence is not None and event.confidence < rule.low_confidence:
        reasons.append("low_confidence")
    if novel:
        reasons.append("novel_category")
    return tuple(reasons)


def fleet_counts(event: Inference, verdict: Verdict) -> tuple[str, ...]:
    """What is counted of this version's fleet (`fleet_state.version_totals`)? Nothing where the prompt is not ours."""
    if verdict.said is None:
        return ()
    prefix = f"{fleet_state.PREFIX}:{event.model_version[:MAX_VERSION_CHARS]}:"
    said = verdict.said
    counts = [f"{prefix}said:{said.intent}" if isinstance(said, Answer) else f"{prefix}fault:{said.kind}"]
    bucket = fleet_drift.category_bucket(event.read)
    return (*counts, f"{prefix}top:{bucket}") if bucket else tuple(counts)


def _newest_category(read: tuple[SequenceItem, ...]) -> str:
    return next((item.category for item in reversed(read) if item.category), "")


class Occasion(NamedTuple):
    """One inference in its envelope, at its corrected time."""

    event: Inference
    ts_ms: int
    envelope: Envelope


def trigger_fact(trigger_id: str, occasion: Occasion, said: Answer, rule: InferenceRule) -> IntentTriggered:
    """State that a shopper hesitates or shops for a scene, as a CloudEvent at the time of the inference."""
    event, ts_ms, envelope = occasion
    return IntentTriggered(
        id=trigger_id,
        source=SOURCE_URI,
        type=TRIGGERS[said.intent],
        subject=envelope.user_id,
        time=datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        data=TriggerData(
            user_id=envelope.user_id,
            device_id=envelope.device_id,
            intent=said.intent,
            keywords=said.keywords,
            model_version=event.model_version,
            inference_id=event.event_id,
            expires_at_ms=ts_ms + rule.trigger_ttl_ms,
        ),
    )


def sample_fact(sample_id: str, occasion: Occasion, verdict: Verdict, pick: Pick) -> SamplePicked:
    """State that this inference is worth a label."""
    event, ts_ms, envelope = occasion
    said = verdict.said
    return SamplePicked(
        id=sample_id,
        user_id=envelope.user_id,
        ts_ms=ts_ms,
        read=event.read,
        digest=event.sequence_digest,
        device_answer=event.answer,
        device_intent=said.intent if isinstance(said, Answer) else "",
        device_keywords=said.keywords if isinstance(said, Answer) else (),
        device_fault=said.kind if isinstance(said, AnswerFault) else "",
        device_model=envelope.device_model,
        model_version=event.model_version,
        prompt_version=event.prompt_version,
        reasons=verdict.reasons,
        priority=pick.priority,
        random=pick.random,
    )
