"""What is wrong with a whole request, and how is a phone told? One place, whoever answers.

An answer's `retry` tells a phone whether the same bytes may work later.
"""

import msgspec

from intentloop.errors import UnavailableError


class BodyFault(Exception):
    """The request cannot be taken as a whole; sending the same bytes again will not help, except after a 408.

    Args:
        status: HTTP status, 4xx.
        reason: The value, the limit and what to do, for who reads the phone's log.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class FaultAnswer(msgspec.Struct, frozen=True):
    """What a phone gets instead of what it asked for."""

    status: int
    body: dict[str, str | bool]
    headers: dict[str, str]


def refused(fault: BodyFault) -> FaultAnswer:
    """4xx: the value, the limit and what to do."""
    headers = {"www-authenticate": "Bearer"} if fault.status == 401 else {}
    return FaultAnswer(fault.status, {"error": fault.reason, "retry": fault.status == 408}, headers)


def not_now(error: UnavailableError, retry_after_s: int) -> FaultAnswer:
    """503: what is away, and when to ask again."""
    return FaultAnswer(503, {"error": f"not now: {error}", "retry": True}, {"retry-after": str(retry_after_s)})
