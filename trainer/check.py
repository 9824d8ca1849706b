"""What must hold of a step's result, and does it? Promises with value and limit, kept in the step's manifest.

A step states them, `step.perform` enforces them: where one is broken no manifest is written and the line stops. They
run on every model, not only in tests.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from intentloop.errors import ContractError


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise: `value` lies on the right `side` of `limit`."""

    name: str
    value: float
    limit: float
    side: Literal["at most", "at least"]

    @property
    def holds(self) -> bool:
        """Is it kept? A value that is not a number keeps nothing."""
        return self.value <= self.limit if self.side == "at most" else self.value >= self.limit


def at_most(name: str, value: float, limit: float) -> Check:
    """State that a value does not exceed a limit; counts of what must not happen have the limit 0."""
    return Check(name=name, value=value, limit=limit, side="at most")


def at_least(name: str, value: float, limit: float) -> Check:
    """State that a value reaches a limit."""
    return Check(name=name, value=value, limit=limit, side="at least")


def require(checks: Sequence[Check], where: str) -> None:
    """Do all promises hold?

    Raises:
        ContractError: the first that does not, with its value and limit.
    """
    for check in checks:
        if not check.holds:
            raise ContractError(f"{where}: {check.name} is {check.value:g}, must be {check.side} {check.limit:g}")
