"""Does a figure drift while something is repeated many times? A fitted line with its interval, and a verdict.

Neighbouring runs resemble each other (a busy moment slows several), so a line through single runs would look far too
sure. The runs are cut into ten blocks and the line goes through the blocks' medians: eight degrees of freedom.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

BLOCKS = 10
MIN_RUNS = 2 * BLOCKS
T95 = 2.306004135204166  # Student's t, two-sided 95 %, 8 degrees of freedom

Verdict = Literal["steady", "drifts", "unclear", "too few runs"]


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Change from the first block to the last, in the figure's unit, with its 95 % interval; `start` on the line."""

    start: float
    change: float
    low: float
    high: float
    runs: int


def trend(values: Sequence[float]) -> Trend | None:
    """Which line lies through the blocks' medians? None for fewer than `MIN_RUNS` values."""
    if len(values) < MIN_RUNS:
        return None
    medians = np.array([np.median(block) for block in np.array_split(np.asarray(values, dtype=np.float64), BLOCKS)])
    place = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float((place * medians).sum() / (place**2).sum())
    rest = medians - medians.mean() - slope * place
    error = float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / (place**2).sum()))
    change, half = slope * (BLOCKS - 1), T95 * error * (BLOCKS - 1)
    start = float(medians.mean()) - change / 2
    return Trend(start=start, change=change, low=change - half, high=change + half, runs=len(values))


def verdict(low: float, high: float, limit: float) -> Verdict:
    """Is an unwanted growth in [low, high] surely over the limit (`drifts`), surely below, or can nobody tell?"""
    if low > limit:
        return "drifts"
    return "steady" if high < limit else "unclear"
