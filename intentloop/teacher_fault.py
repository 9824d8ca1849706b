"""What does a teacher's error mean: is it the sample, the moment, the allowance, or our settings?

Providers put one status on things that need different answers, so the text decides where the status does not. Pure; the
sentences come from public issue threads and the providers' manuals (Qwen on DashScope, Kimi).
"""

from typing import Literal

FaultCause = Literal["configuration", "filtered", "too_long", "exhausted", "throttled", "transient"]

_FILTERED = ("data_inspection_failed", "datainspectionfailed", "inappropriate content", "content_filter", "high risk")
_EXHAUSTED = (
    "usage limit",
    "insufficient_quota",
    "exceeded_current_quota",
    "exceeded your current quota",
    "allocationquota",
    "arrearage",
    "insufficient balance",
    "suspended",
)
_TOO_LONG = ("context_length_exceeded", "maximum context length", "range of input length", "exceeded model token limit")


def cause_of(status: int | None, text: str) -> FaultCause:
    """What kind of error is this?

    Args:
        status: HTTP status; None when there was no answer at all.
        text: Body or message, any case.
    """
    lowered = text.lower()
    if status is None or status in (408, 409, 425) or status >= 500:
        return "transient"
    if any(mark in lowered for mark in _FILTERED):
        return "filtered"
    if any(mark in lowered for mark in _EXHAUSTED):
        return "exhausted"
    if status == 429:
        return "throttled"
    if any(mark in lowered for mark in _TOO_LONG):
        return "too_long"
    return "configuration"


def is_quota_rate(text: str) -> bool:
    """Does only a full pause cure this throttling, because each try within it keeps it going?"""
    return "ratequota" in text.lower()


def estimate_tokens(text: str) -> int:
    """About how many tokens is this, where the provider does not say? Never too few: a character at most is a token."""
    return max(1, len(text))
