"""What does a model learn from, and what is it judged on?

Samples are deduplicated by the digest of what the model reads; golden users never train a model. Not here: where the
set is stored (`adapters/`), or how labels are made.
"""

from typing import Literal

import msgspec

from intentloop.events import SequenceItem
from intentloop.facts import IntentName
from intentloop.ids import bucket


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


def is_golden_user(user_id: str, golden_ratio: float) -> bool:
    """Does this user belong to those whose labels judge models and never train them? Fixed for ever by the id."""
    return bucket(user_id, "golden") < golden_ratio
