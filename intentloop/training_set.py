"""What does a model learn from, and what is it judged on?

Samples are deduplicated by the digest of what the model reads; golden users never train a model. Not here: where the
set is stored (`adapters/training_store.py`), or how labels are made.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from intentloop.errors import ContractError
from intentloop.events import SequenceItem
from intentloop.facts import IntentName, SampleLabelled
from intentloop.ids import bucket

GOLDEN_RATIO = 0.05  # share of users whose labels only judge; changing it later mixes the two sets, so do not

Place = Literal["train", "golden", "nowhere"]


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled sequence. `slice` names the kind of behaviour in reports; `hard`: the phone's model had it wrong."""

    id: str
    user_id: str
    ts_ms: int
    read: tuple[SequenceItem, ...]
    digest: str
    intent: IntentName
    keywords: tuple[str, ...] = ()
    hard: bool = False
    source: Literal["teachers", "person", "generator"] = "teachers"
    slice: str = ""


class TrainingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the training set holds and how its labels came about.

    `hard_new` are hard samples that no release has learnt from. `agreement_ratio` is the share of samples on which both
    teachers voted and agreed, None before the first. `failed` went to people because a teacher could not vote.
    `keyword_scores` counts the judge's scores 0 to 3. `revision` grows with every change.
    """

    samples: int = 0
    hard: int = 0
    hard_new: int = 0
    per_class: Mapping[str, int] = msgspec.field(default_factory=dict)
    golden: int = 0
    labelled: int = 0
    outcomes: Mapping[str, int] = msgspec.field(default_factory=dict)
    failed: int = 0
    duplicates: int = 0
    both_voted: int = 0
    agreed: int = 0
    agreement_ratio: float | None = None
    keyword_scores: Mapping[str, int] = msgspec.field(default_factory=dict)
    cost_yuan: float = 0.0
    revision: int = 0


def is_golden_user(user_id: str, golden_ratio: float) -> bool:
    """Does this user belong to those whose labels judge models and never train them? Fixed for ever by the id."""
    return bucket(user_id, "golden") < golden_ratio


def place(labelled: SampleLabelled, golden_ratio: float) -> Place:
    """Where does this label belong? A golden user's sample judges when a person labelled it, else it is not used."""
    if is_golden_user(labelled.sample.user_id, golden_ratio):
        return "golden" if labelled.source == "person" and labelled.intent else "nowhere"
    if labelled.source == "person":
        return "train" if labelled.intent else "nowhere"
    return "train" if labelled.verdict in ("unanimous", "hard") else "nowhere"


def sample_of(labelled: SampleLabelled) -> TrainingSample:
    """Which training sample does this label make?

    Raises:
        ContractError: the label names no intent.
    """
    if labelled.intent not in get_args(IntentName):
        raise ContractError(
            f"label {labelled.id} has intent {labelled.intent!r}, one of {get_args(IntentName)} is needed"
        )
    picked = labelled.sample
    return TrainingSample(
        id=picked.id,
        user_id=picked.user_id,
        ts_ms=picked.ts_ms,
        read=picked.read,
        digest=picked.digest,
        intent=labelled.intent,  # type: ignore[arg-type]  # compared with the three names above
        keywords=labelled.keywords,
        hard=is_hard(labelled),
        source=labelled.source,
    )


def is_hard(labelled: SampleLabelled) -> bool:
    """Did the phone's model have it wrong, as far as this label tells?"""
    return bool(labelled.intent) and labelled.intent != labelled.sample.device_intent


def teachers_agreement(labelled: SampleLabelled) -> bool | None:
    """Did both teachers vote for the same intent? None when fewer than two voted."""
    intents = [vote.intent for vote in labelled.votes if not vote.failure]
    return intents[0] == intents[1] if len(intents) == 2 else None


def has_failed_vote(labelled: SampleLabelled) -> bool:
    """Could one of the teachers not vote at all?"""
    return any(vote.failure for vote in labelled.votes)
