"""May phones keep the system prompt between answers? Asked of each artefact: the same answers, and how much sooner.

The first token then waits for the behaviour alone. Two engines of the same artefact take turns on the same prompts, so
that both meet the same moments of a busy machine. Phones reuse only when not one answer differed (`is_safe`).
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from intentloop import prompt
from trainer.engine import Engine
from trainer.rule import MeasureRule


class PrefixReuse(msgspec.Struct, frozen=True, kw_only=True):
    """What came of `asked` prompts with and without reuse. Times are medians in ms, 0 where nothing was asked."""

    kept_tokens: int
    asked: int
    same: int
    ttft_ms: float
    ttft_reused_ms: float
    total_ms: float
    total_reused_ms: float

    @property
    def is_safe(self) -> bool:
        """Were all answers the same? Not asked is not safe. Times do not decide, so a run's release is reproducible."""
        return 0 < self.asked == self.same

    @property
    def ttft_ratio(self) -> float:
        """Which share of the wait for the first token is left? 1 where nothing was asked."""
        return self.ttft_reused_ms / self.ttft_ms if self.ttft_ms else 1.0


def compare(artefact: Path, prompts: Sequence[str], rule: MeasureRule) -> PrefixReuse:
    """Ask each prompt with and without reuse, the first ones once before to pay for buffers."""
    plain, reusing = Engine(artefact, rule.threads, reuse=False), Engine(artefact, rule.threads, reuse=True)
    for text in prompts[:2]:
        plain.answer(text, rule.max_tokens)
        reusing.answer(text, rule.max_tokens)
    pairs = [(plain.answer(text, rule.max_tokens), reusing.answer(text, rule.max_tokens)) for text in prompts]

    def median(times: Sequence[float]) -> float:
        return round(float(np.median(times)), 3) if times else 0.0

    return PrefixReuse(
        kept_tokens=len(plain.tokens(prompt.opening())),
        asked=len(pairs),
        same=sum(one.text == other.text for one, other in pairs),
        ttft_ms=median([one.ttft_ms for one, _ in pairs]),
        ttft_reused_ms=median([other.ttft_ms for _, other in pairs]),
        total_ms=median([one.total_ms for one, _ in pairs]),
        total_reused_ms=median([other.total_ms for _, other in pairs]),
    )
