"""Which quantiles do millions of values have, in bounded memory and mergeable? Counts in logarithmic bins.

A bin is 2 % wide and answers with its middle, so every quantile is within 1 % of a value that was really there
(`MAX_ERROR`), whatever was merged in which order. Values outside [0.01, 10,000,000] count in the outermost bins; at
most 1,050 bins. Not for zero or negative values.
"""

import math
from collections.abc import Mapping

GROWTH = 1.02
MAX_ERROR = (GROWTH - 1) / (GROWTH + 1)
LOWEST, HIGHEST = 0.01, 1e7

_LOG = math.log(GROWTH)
_FIRST, _LAST = math.ceil(math.log(LOWEST) / _LOG), math.ceil(math.log(HIGHEST) / _LOG)

Sketch = dict[int, int]  # bin → count; bin i holds values in (GROWTH**(i - 1), GROWTH**i]


def add(sketch: Sketch, value: float) -> None:
    """Count one value, which must be above zero."""
    place = min(_LAST, max(_FIRST, math.ceil(math.log(value) / _LOG)))
    sketch[place] = sketch.get(place, 0) + 1


def merged(one: Mapping[int, int], other: Mapping[int, int]) -> Sketch:
    """Which sketch would all values of both have made?"""
    return {place: one.get(place, 0) + other.get(place, 0) for place in {*one, *other}}


def count(sketch: Mapping[int, int]) -> int:
    """How many values are in it?"""
    return sum(sketch.values())


def quantile(sketch: Mapping[int, int], share: float) -> float | None:
    """Which value has this share of the others at or below it? None if there is none; `share` in [0, 1]."""
    rank = share * (count(sketch) - 1)
    seen = 0
    for place in sorted(sketch):
        seen += sketch[place]
        if seen > rank:
            return 2 * GROWTH**place / (GROWTH + 1)
    return None
