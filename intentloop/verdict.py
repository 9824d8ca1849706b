"""What do the votes of two teachers and the phone's own answer mean for one sample?

device = A = B → unanimous; A = B ≠ device → hard; A ≠ B → people. A teacher that failed is not a vote, so its sample
goes to people as well. Keywords of an agreed label are then judged (`grade`). Pure: who asks whom is in `workers/`.
"""

from collections.abc import Sequence

import msgspec

from intentloop.facts import VerdictKind, Vote
from intentloop.ids import bucket

MAX_KEYWORDS = 6  # what the prompt allows


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a sample, and why; `intent` is empty where nobody can say yet."""

    kind: VerdictKind
    reason: str
    intent: str = ""
    keywords: tuple[str, ...] = ()


def weigh(device_intent: str, votes: Sequence[Vote]) -> Verdict:
    """What do these votes say about the phone's answer?

    Args:
        device_intent: What the phone understood; empty when its model's answer was a fault.
        votes: One of each teacher, those that failed included.
    """
    failed = [vote for vote in votes if vote.failure]
    if failed or len(votes) < 2:
        reasons = "; ".join(f"{vote.teacher}: {vote.failure}" for vote in failed) or f"{len(votes)} of 2 teachers voted"
        return Verdict(kind="people", reason=reasons)
    first, second = votes[0], votes[1]
    if first.intent != second.intent:
        told = f"{first.teacher} says {first.intent}, {second.teacher} says {second.intent}"
        return Verdict(kind="people", reason=f"the teachers differ: {told}")
    keywords = agreed_keywords(first.keywords, second.keywords)
    if first.intent == device_intent:
        return Verdict(kind="unanimous", reason="teachers and phone agree", intent=first.intent, keywords=keywords)
    phone = device_intent or "nothing that could be read"
    reason = f"both teachers say {first.intent}, the phone said {phone}"
    return Verdict(kind="hard", reason=reason, intent=first.intent, keywords=keywords)


def agreed_keywords(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Which keywords does an agreed label carry? What both named first, then the rest of the first teacher."""
    both = [keyword for keyword in first if keyword in second]
    return tuple(dict.fromkeys([*both, *first]))[:MAX_KEYWORDS]


def needs_judge(verdict: Verdict) -> bool:
    """Must someone judge this verdict's keywords before it may train a model?"""
    return verdict.kind in ("unanimous", "hard") and verdict.intent != "闲逛"


def is_audited(sample_id: str, audit_ratio: float) -> bool:
    """Does this sample go to a person although the teachers agree? A fixed random share, to measure the teachers."""
    return bucket(sample_id, "audit") < audit_ratio
