"""How are the envelopes of one partition folded? By the definition, or by compiled code; both give the same bytes.

Either way is asked for one envelope after the other, in order, and at the end for what to store. Not here: records,
dead letters of what is no envelope, and how facts become messages (`fold_records.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from intentloop import window
from intentloop.events import Envelope
from intentloop.findings import Facts, Findings, Memory
from intentloop.fold import FoldRule, fold
from intentloop.picks import Spending
from intentloop.refusal import Source
from intentloop.window import LiveIntent, UserState

NOTHING = Facts(None, (), (), ())


class Owned(NamedTuple):
    """An envelope, and the key of the state of its user."""

    key: str
    envelope: Envelope


class Way(Protocol):
    """Folds envelopes. `counts` and `spending`: what was counted, and the partition's pick budget, so far."""

    counts: Counter[str]
    spending: Spending

    def fold(self, owned: Owned, source: Source) -> Facts:
        """What does the next envelope give rise to?"""
        ...

    def packed(self) -> dict[str, bytes]:
        """Which states are to be stored?"""
        ...


class Walked(Protocol):
    """What compiled code made of a batch (`fold_columns.Walked`); `heads` and `tails` are halves of packed states.

    `renewed`: numbers of envelopes whose users began anew with them.
    """

    heads: dict[str, bytes]
    tails: dict[str, bytes]
    renewed: frozenset[int]

    def counts(self) -> Counter[str]:
        """How often did what happen, of what findings do not count?"""
        ...

    def is_notable(self, number: int) -> bool:
        """Did anything in this envelope do more than move the window?"""
        ...

    def tell(self, number: int, findings: Findings) -> None:
        """Tell findings all that happened in this envelope."""
        ...


class Walk(Protocol):
    """Compiled code (`fold_columns.ColumnFold`); None where a batch must go the plain way."""

    def walk(self, owned: Sequence[Owned], found: Mapping[str, bytes | None]) -> Walked | None:
        """What do these envelopes do to the windows of the states that were found?"""
        ...


class PlainWay:
    """The definition, envelope by envelope.

    Args:
        found: Packed states by key, None for a new user.
    """

    def __init__(self, found: Mapping[str, bytes | None], spending: Spending, rule: FoldRule) -> None:
        self._found, self._rule, self.spending = found, rule, spending
        self._states: dict[str, UserState] = {}
        self.counts: Counter[str] = Counter()

    def fold(self, owned: Owned, source: Source) -> Facts:
        """What does the next envelope give rise to?"""
        state = self._states.get(owned.key) or self._read(self._found[owned.key])
        folded = fold(state, owned.envelope, source, self.spending, self._rule)
        self._states[owned.key], self.spending = folded.state, folded.spending
        self.counts.update(folded.counts)
        return folded.facts

    def _read(self, packed: bytes | None) -> UserState:
        return UserState() if packed is None else window.unpack(packed)

    def packed(self) -> dict[str, bytes]:
        """Which states are to be stored?"""
        return {key: window.pack(state) for key, state in self._states.items()}


class CompiledWay:
    """What compiled code found in the whole batch, told envelope by envelope."""

    def __init__(self, walked: Walked, spending: Spending, rule: FoldRule) -> None:
        self._walked, self._rule, self.spending = walked, rule, spending
        self._tails: dict[str, tuple[LiveIntent, tuple[int, ...]]] = {}
        self._number = -1
        self.counts = walked.counts()

    def fold(self, owned: Owned, source: Source) -> Facts:
        """What does the next envelope give rise to?"""
        self._number += 1
        if self._number in self._walked.renewed:
            self._tails[owned.key] = LiveIntent(), ()
        if not self._walked.is_notable(self._number):
            return NOTHING
        live, tops = self._tails.get(owned.key) or self._read(self._walked.tails[owned.key])
        findings = Findings(owned.envelope, source, Memory(live, tops, self.spending), self._rule, self.counts)
        self._walked.tell(self._number, findings)
        self._tails[owned.key], self.spending = (findings.live, findings.tops), findings.spending
        return findings.facts()

    def _read(self, tail: bytes) -> tuple[LiveIntent, tuple[int, ...]]:
        return window.unpack_tail(tail) if tail else (LiveIntent(), ())

    def packed(self) -> dict[str, bytes]:
        """Which states are to be stored?"""
        tails = self._walked.tails | {key: window.pack_tail(*tail) for key, tail in self._tails.items()}
        return {key: head + (tails[key] or _NEW_TAIL) for key, head in self._walked.heads.items()}


_NEW_TAIL = window.pack_tail(LiveIntent(), ())
