"""Small envelopes and events for tests of the fold."""

from collections import Counter
from collections.abc import Sequence

from intentloop import prompt
from intentloop.events import Action, Behaviour, Envelope, Event, Inference, InferenceSkipped, SequenceItem
from intentloop.fold import Folded, FoldRule, fold
from intentloop.picks import Spending
from intentloop.refusal import Source
from intentloop.window import UserState

NOW_MS = 1_796_032_800_000
SOURCE = Source("phone.telemetry-reported.v1", 3, 17)
TENT = "户外.露营.帐篷"
PHONE_CASE = "数码.手机.手机壳"


def view(event_id: str, ts_ms: int = NOW_MS, category: str = TENT, action: Action = "item_view") -> Behaviour:
    return Behaviour(
        event_id=event_id, action=action, ts_ms=ts_ms, item_id=event_id, title="便携帐篷", category=category
    )


def item(category: str = TENT, title: str = "便携帐篷") -> SequenceItem:
    return SequenceItem(action="item_view", title=title, category=category)


def inference(
    event_id: str,
    answer: str,
    read: Sequence[SequenceItem] = (item(), item(title="大帐篷"), item(title="小帐篷")),
    ts_ms: int = NOW_MS,
    confidence: float | None = None,
) -> Inference:
    return Inference(
        event_id=event_id,
        ts_ms=ts_ms,
        model_version="v7",
        prompt_version=prompt.VERSION,
        read=tuple(read),
        sequence_digest=prompt.digest(prompt.sequence_text(read)),
        answer=answer,
        confidence=confidence,
    )


def skipped(event_id: str, ts_ms: int = NOW_MS) -> InferenceSkipped:
    return InferenceSkipped(event_id=event_id, ts_ms=ts_ms, check="fatigued")


def envelope(
    *events: Event, received_ms: int = NOW_MS + 1_000, sent_ms: int | None = None, batch_id: str = "b"
) -> Envelope:
    return Envelope(
        batch_id=batch_id,
        user_id="u1",
        device_id="d1",
        device_model="Redmi K80",
        sent_at_ms=sent_ms,
        received_at_ms=received_ms,
        events=events,
    )


def run(*envelopes: Envelope, state: UserState | None = None, rule: FoldRule | None = None) -> Folded:
    """Fold envelopes one after the other; counts and outputs are those of all of them."""
    folded = Folded(state or UserState(), None, (), (), (), Counter(), Spending())
    for index, one in enumerate(envelopes):
        after = fold(folded.state, one, SOURCE._replace(offset=17 + index), folded.spending, rule or FoldRule())
        folded = after._replace(
            drifted=after.drifted or folded.drifted,
            triggered=folded.triggered + after.triggered,
            picked=folded.picked + after.picked,
            dead=folded.dead + after.dead,
            counts=folded.counts + after.counts,
        )
    return folded
