"""What does one phone know, and when does it run its model? Values and folds only: no clock, network or engine.

A phone keeps the behaviours of the visit, wants to infer when the shopper leaves after enough item views, asks the five
admission checks, and then reports either what the model read and said, or which check said no.
"""

from collections.abc import Sequence

import msgspec

from intentloop import prompt
from intentloop.compress import CompressRule, compress
from intentloop.events import AdmissionCheck, Behaviour, Inference, InferenceSkipped, SequenceItem
from intentloop.shoppers import Step


class PhoneRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a phone infers. Source: three item views (FACTS.md, device); the other numbers are ours.

    `fatigue_inferences` within `fatigue_ms` are as many as a phone allows; `window_events` is what it remembers.
    """

    min_views: int = 3
    window_events: int = 300
    fatigue_inferences: int = 60
    fatigue_ms: int = 600_000
    compress: CompressRule = msgspec.field(default_factory=CompressRule)


class PhoneState(msgspec.Struct, frozen=True, kw_only=True):
    """What one phone remembers. `inferred_ms` are the times of recent inferences, newest last."""

    window: tuple[Behaviour, ...] = ()
    views: int = 0
    inferred_ms: tuple[int, ...] = ()


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the five admission checks look at, apart from fatigue, which the state knows."""

    switched_on: bool = True
    device_allowed: bool = True
    model_ready: bool = True
    runtime_free: bool = True


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is asked: the items it reads, the rendered prompt and the digest of its bytes."""

    read: tuple[SequenceItem, ...]
    prompt: str
    digest: str


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the model answered and what that took."""

    version: str
    answer: str
    ttft_ms: float
    total_ms: float
    prompt_tokens: int
    output_tokens: int


class Stamp(msgspec.Struct, frozen=True):
    """Identity and place of one event of a phone: id, time of the phone's own clock, running number."""

    event_id: str
    ts_ms: int
    seq: int


def behave(step: Step, stamp: Stamp) -> Behaviour:
    """Which behaviour does the phone record for this step of the shopper?"""
    return Behaviour(
        event_id=stamp.event_id,
        ts_ms=stamp.ts_ms,
        seq=stamp.seq,
        action=step.action,
        item_id=step.item_id,
        title=step.title,
        category=step.category,
        price_yuan=step.price_yuan,
        dwell_ms=step.dwell_ms or None,
    )


def notice(state: PhoneState, behaviour: Behaviour, rule: PhoneRule) -> PhoneState:
    """What does the phone know after this behaviour?"""
    return msgspec.structs.replace(
        state,
        window=(*state.window, behaviour)[-rule.window_events :],
        views=state.views + (behaviour.action == "item_view"),
    )


def wants_inference(state: PhoneState, rule: PhoneRule) -> bool:
    """Has the shopper, who pauses now, looked at enough items since the last inference?"""
    return state.views >= rule.min_views


def failed_check(state: PhoneState, conditions: Conditions, now_ms: int, rule: PhoneRule) -> AdmissionCheck | None:
    """Which of the five admission checks forbids an inference now, if any? In the order in which a phone asks them."""
    recent = sum(1 for at_ms in state.inferred_ms if now_ms - at_ms < rule.fatigue_ms)
    checks: tuple[tuple[AdmissionCheck, bool], ...] = (
        ("switched_off", not conditions.switched_on),
        ("device_not_allowed", not conditions.device_allowed),
        ("fatigued", recent >= rule.fatigue_inferences),
        ("model_not_ready", not conditions.model_ready),
        ("runtime_busy", not conditions.runtime_free),
    )
    return next((name for name, failed in checks if failed), None)


def ask(window: Sequence[Behaviour], rule: PhoneRule) -> Question:
    """What does the model read of this visit?"""
    read = compress(window, rule.compress)
    sequence = prompt.sequence_text(read)
    return Question(read=read, prompt=prompt.render(sequence), digest=prompt.digest(sequence))


def report(question: Question, said: Said, stamp: Stamp) -> Inference:
    """Which event tells of this inference?"""
    return Inference(
        event_id=stamp.event_id,
        ts_ms=stamp.ts_ms,
        seq=stamp.seq,
        model_version=said.version,
        prompt_version=prompt.VERSION,
        read=question.read,
        sequence_digest=question.digest,
        answer=said.answer,
        ttft_ms=said.ttft_ms,
        total_ms=said.total_ms,
        prompt_tokens=said.prompt_tokens,
        output_tokens=said.output_tokens,
    )


def skip(check: AdmissionCheck, version: str, stamp: Stamp) -> InferenceSkipped:
    """Which event tells that the phone did not infer?"""
    return InferenceSkipped(
        event_id=stamp.event_id, ts_ms=stamp.ts_ms, seq=stamp.seq, check=check, model_version=version
    )


def after_inference(state: PhoneState, at_ms: int, rule: PhoneRule) -> PhoneState:
    """What does the phone know once it has inferred? Views count anew; the visit stays in its window."""
    recent = tuple(ms for ms in state.inferred_ms if at_ms - ms < rule.fatigue_ms)
    return msgspec.structs.replace(state, views=0, inferred_ms=(*recent, at_ms)[-rule.fatigue_inferences :])


def leave(state: PhoneState) -> PhoneState:
    """What does the phone know when the visit is over? Only how often it inferred lately."""
    return PhoneState(inferred_ms=state.inferred_ms)
