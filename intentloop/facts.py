"""What the system itself states as having happened: one type per derived topic, each defined once.

Every id here is derived from the source position (see `intentloop/ids.py`), so a replay states the same facts.
"""

from typing import Literal

import msgspec

from intentloop.events import SequenceItem

IntentName = Literal["闲逛", "比价犹豫", "场景购物"]
TriggerType = Literal["shopping_hesitate_trigger", "shopping_scene_trigger"]
VerdictKind = Literal["unanimous", "hard", "people", "dropped"]
FleetSignal = Literal["intent_mix", "category_mix", "format_faults", "teacher_disagreement", "device_disagreement"]


class DriftScored(msgspec.Struct, frozen=True, kw_only=True):
    """One drift score with its three components and the rule it was made with."""

    event_id: str
    ts_ms: int
    total: float
    entropy_change: float
    jaccard_distance: float
    jensen_shannon: float
    switched: bool
    log_base: str
    window: int
    min_window: int
    threshold: float


class IntentDrifted(msgspec.Struct, frozen=True, kw_only=True):
    """A user left the intent that was stated last (key: user; one message an envelope).

    Either semantic labels moved away from those of the last inference (`scores`), or the model itself said 闲逛 while
    others could still act on a trigger (no scores). Nobody should act on an intent that was stated before it; none of
    them lives longer than until `stale_until_ms`.
    """

    id: str
    user_id: str
    scores: tuple[DriftScored, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stale_until_ms: int = 0


class TriggerData(msgspec.Struct, frozen=True, kw_only=True):
    """What a coupon or feed service needs to act; it must not act after `expires_at_ms`."""

    user_id: str
    device_id: str
    intent: IntentName
    keywords: tuple[str, ...]
    model_version: str
    inference_id: str
    expires_at_ms: int


class IntentTriggered(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvents 1.0 JSON envelope; consumers deduplicate by `id`."""

    specversion: Literal["1.0"] = "1.0"
    id: str
    source: str
    type: TriggerType
    subject: str
    time: str
    datacontenttype: Literal["application/json"] = "application/json"
    data: TriggerData


class SamplePicked(msgspec.Struct, frozen=True, kw_only=True):
    """An inference worth labelling. `device_intent` and `device_keywords` are empty when the answer was a fault.

    `reasons` are the codes of `intentloop/picks.py`; `priority` is the sum of their weights; `random` marks the uniform
    share that keeps estimates unbiased.
    """

    id: str
    user_id: str
    ts_ms: int
    read: tuple[SequenceItem, ...]
    digest: str
    device_answer: str
    device_intent: str
    device_keywords: tuple[str, ...]
    device_fault: str
    device_model: str
    model_version: str
    prompt_version: str
    reasons: tuple[str, ...]
    priority: float
    random: bool


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One teacher's answer; `failure` is empty when it is a vote. A teacher that failed is not a vote.

    `parameters` tells how it was sampled, since not every teacher is deterministic; empty means the provider's own way.
    """

    teacher: str
    model: str
    parameters: str = ""
    intent: str = ""
    keywords: tuple[str, ...] = ()
    failure: str = ""
    raw: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    tokens_estimated: bool = False
    repaired: bool = False
    cost_yuan: float = 0.0
    seconds: float = 0.0


class SampleLabelled(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one sample, with all that is needed to rebuild the training set by replay."""

    id: str
    sample: SamplePicked
    verdict: VerdictKind
    reason: str
    intent: str
    keywords: tuple[str, ...]
    keyword_score: int | None
    votes: tuple[Vote, ...]
    audit: bool
    source: Literal["teachers", "person"]
    cost_yuan: float
    labelled_at_ms: int


class RetrainRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The policy asked for a new model; `reason` is what a person reads in the audit."""

    id: str
    base_version: str
    reason: str
    hard_new: int
    samples: int
    requested_at_ms: int


class ModelReleased(msgspec.Struct, frozen=True, kw_only=True):
    """A model passed the gate and phones may fetch it."""

    version: str
    previous: str
    reason: str
    manifest_sha256: str
    artefact_bytes: int
    released_at_ms: int


class ModelRolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """A release was withdrawn; phones go back to `to_version`."""

    version: str
    to_version: str
    reason: str
    rolled_back_at_ms: int


class FleetDrifted(msgspec.Struct, frozen=True, kw_only=True):
    """The phones of one model version meet another world than it learnt from (key: model; one a signal and look).

    `effect` passed `floor`: total variation of a mix, rise of a rate. `p_value` is None where the test has none.
    `before` and `after` are shares of what was compared, with the sample sizes; `reference` tells what `before` is.
    """

    id: str
    model_version: str
    signal: FleetSignal
    test: Literal["g_test", "adwin_and_page_hinkley"]
    statistic: float
    p_value: float | None
    effect: float
    floor: float
    reference: Literal["snapshot", "first_window", "own_past"]
    before: dict[str, float]
    after: dict[str, float]
    before_samples: int
    after_samples: int
    look: int
    reason: str
    detected_at_ms: int


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be processed: where it came from, why, and a bounded reference to it.

    `excerpt` is at most 512 characters of what was refused; `sha256` identifies the whole.
    """

    source_topic: str
    source_partition: int
    source_offset: int
    index: int
    reason: str
    sha256: str
    size_bytes: int
    excerpt: str
