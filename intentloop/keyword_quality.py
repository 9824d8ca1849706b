"""Are an agreed label's keywords good enough to learn from? A judge gives 0 to 3; at or below the limit it is dropped.

Without a score nothing is assumed: such a label goes to people.
"""

import msgspec

from intentloop.verdict import Verdict


class KeywordRule(msgspec.Struct, frozen=True, kw_only=True):
    """Labels with a score of `drop_at_most` or less do not train a model."""

    drop_at_most: int = 1


def grade(verdict: Verdict, score: int | None, rule: KeywordRule) -> Verdict:
    """What becomes of a judged verdict?"""
    if score is None:
        return Verdict(kind="people", reason="the judge of keywords gave no score", intent="", keywords=())
    if score <= rule.drop_at_most:
        reason = f"keywords scored {score}, the limit is above {rule.drop_at_most}"
        return msgspec.structs.replace(verdict, kind="dropped", reason=reason)
    return verdict
