"""What a phone tells us: one envelope is one phone's batch of events, in their order.

These frozen types are the only definition of the wire format. The gateway decodes phones' requests into them, Kafka
carries them as JSON, streams decode them again, and OpenAPI is generated from them. This module does not validate
times or text (`gateway/` does) and does not decide anything.
"""

from typing import Literal

import msgspec

Action = Literal[
    "search",
    "purchase",
    "cart",
    "favourite",
    "item_view",
    "content_view",
    "video",
    "external_open",
    "exposure",
    "page_view",
    "ui",
    "other",
]

AdmissionCheck = Literal["switched_off", "device_not_allowed", "fatigued", "model_not_ready", "runtime_busy"]


class Behaviour(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="kind", tag="behaviour"
):
    """One thing the shopper did.

    `title` is the item's title, or the query of a search. `category` is a dotted path, broadest level first.
    `seq` counts up on one phone and orders events of one millisecond. Times are Unix milliseconds of the phone's clock.
    """

    event_id: str
    action: Action
    ts_ms: int
    seq: int = 0
    item_id: str = ""
    title: str = ""
    category: str = ""
    price_yuan: float | None = None
    dwell_ms: int | None = None


class SequenceItem(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One behaviour as the model reads it: already filtered, debounced and enriched, without ids or times."""

    action: Action
    title: str = ""
    category: str = ""
    price_yuan: float | None = None
    dwell_s: int = 0


class Inference(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="kind", tag="inference"
):
    """One run of the model on the phone: what it read, what it said and what it took.

    `read` is what the prompt was rendered from; `sequence_digest` is `prompt.digest` of the bytes that the phone
    really fed, so that a phone with another template is noticed. `answer` is the raw text, thinking included.
    """

    event_id: str
    ts_ms: int
    seq: int = 0
    model_version: str
    prompt_version: str
    read: tuple[SequenceItem, ...]
    sequence_digest: str
    answer: str
    confidence: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class InferenceSkipped(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="kind", tag="inference_skipped"
):
    """The phone wanted to run its model but one of the five admission checks said no."""

    event_id: str
    ts_ms: int
    seq: int = 0
    check: AdmissionCheck
    model_version: str = ""


Event = Behaviour | Inference | InferenceSkipped


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """One event of a batch that was set aside: its index in the phone's batch and why."""

    index: int
    reason: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One phone's batch as Kafka carries it (topic `phone.telemetry-reported.v1`, key: user).

    `user_id` is the gateway's keyed hash, never the phone's own id. `sent_at_ms` is the phone's clock when it sent the
    batch, `received_at_ms` ours; without the first no clock correction is made. `rejected` lists the events that the
    gateway set aside, so that every event a phone sent can be accounted for downstream, exactly once.
    """

    batch_id: str
    user_id: str
    device_id: str
    device_model: str = ""
    app_version: str = ""
    schema_version: int = 1
    sent_at_ms: int | None = None
    received_at_ms: int = 0
    events: tuple[Event, ...] = ()
    rejected: tuple[Rejection, ...] = ()


MAX_EVENTS = 200  # events in one envelope; more is refused whole, since no well-behaved phone sends it
