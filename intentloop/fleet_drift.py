"""Does a model version meet another world than the one it learnt from? Mixes against its snapshot, rates by blocks.

A mix has drifted when three things hold: a G-test says that it is no chance, its distance passes a floor, and both do
so in `confirm` windows in a row. The test alone would call every large fleet drifted, since two samples of 100,000
differ for certain; the distance alone every small one. Windows are judged again and again, so the k-th look may spend
only α / k(k+1): over a version's whole life chance says drift with a probability of at most α.

Not here: detectors of rates (`adapters/fleet_detectors.py`), where counts come from (`workers/watch_fleet.py`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from intentloop.events import SequenceItem
from intentloop.facts import FleetSignal, SampleLabelled
from intentloop.ids import label_code

MIXES: tuple[FleetSignal, FleetSignal] = ("intent_mix", "category_mix")
RATES: tuple[FleetSignal, ...] = ("format_faults", "teacher_disagreement", "device_disagreement")

CATEGORY_BUCKETS = 32  # phones name categories freely; counters must stay bounded
HISTORY_BLOCKS = 512  # of a rate: what detectors look back on


class FleetRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a fleet has drifted. Distances are total variation, in [0, 1]; rates and their floor, too.

    `intent_floor` lies above the share of answers that a good model gets wrong (8 %), since what it says is compared
    with labels. A window is judged when it holds `window` inferences and is `window_ms` old: hours of a day differ.
    `clear` quiet windows in a row end a drift of a mix; one of a rate ends when, over `clear_values` values, it is no
    more than half the floor above where it was. `min_baseline`: a smaller snapshot is no reference.
    """

    alpha: float = 0.01
    intent_floor: float = 0.10
    category_floor: float = 0.15
    rate_floor: float = 0.05
    window: int = 500
    window_ms: int = 6 * 3_600_000
    confirm: int = 2
    clear: int = 3
    clear_values: int = 500
    min_baseline: int = 100
    block: int = 50
    label_block: int = 20


class MixTest(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of two mixes: G statistic, degrees of freedom, p, total variation, and the two sample sizes."""

    statistic: float
    freedom: int
    p_value: float
    distance: float
    before: int
    after: int


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a version is compared with: counts of intents and of category buckets, and where they come from."""

    intents: Mapping[str, int]
    categories: Mapping[str, int]
    source: Literal["snapshot", "first_window"]


class RateBlocks(msgspec.Struct, frozen=True):
    """A rate as means of blocks of equal size, newest last; what is too little for a block waits."""

    means: tuple[float, ...] = ()
    waiting: int = 0
    waiting_bad: int = 0
    total: int = 0  # blocks ever


def chi_square_tail(statistic: float, freedom: int) -> float:
    """How probable is a chi-square value of at least this by chance? The recurrence for whole degrees of freedom."""
    if statistic <= 0:
        return 1.0
    half, odd = statistic / 2, freedom % 2
    tail = math.erfc(math.sqrt(half)) if odd else math.exp(-half)
    shape = 0.5 if odd else 1.0
    while shape < freedom / 2:
        tail += math.exp(shape * math.log(half) - half - math.lgamma(shape + 1))
        shape += 1
    return min(1.0, tail)


def mix_test(before: Mapping[str, int], after: Mapping[str, int], min_expected: float = 5.0) -> MixTest:
    """How unlike are two samples of a mix, and is it more than chance?

    A G-test of homogeneity: both are samples, the snapshot as well. Cells that expect fewer than `min_expected` in
    either sample are taken together.
    """
    names = sorted({*before, *after})
    table = np.array([[side.get(name, 0) for name in names] for side in (before, after)], dtype=float)
    sizes = table.sum(axis=1)
    if not len(names) or sizes.min() <= 0:
        return MixTest(statistic=0.0, freedom=0, p_value=1.0, distance=0.0, before=int(sizes[0]), after=int(sizes[1]))
    rare = table.sum(axis=0) * sizes.min() / sizes.sum() < min_expected
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)]) if rare.any() else table
    expected = np.outer(sizes, table.sum(axis=0)) / sizes.sum()
    seen = table > 0
    statistic = 2 * float((table[seen] * np.log(table[seen] / expected[seen])).sum())
    freedom = int((table.sum(axis=0) > 0).sum()) - 1
    return MixTest(
        statistic=statistic,
        freedom=freedom,
        p_value=chi_square_tail(statistic, freedom) if freedom else 1.0,
        distance=float(np.abs(table[0] / sizes[0] - table[1] / sizes[1]).sum()) / 2,
        before=int(sizes[0]),
        after=int(sizes[1]),
    )


def alpha_at(look: int, alpha: float) -> float:
    """How much chance may the `look`-th test (from 1) take, so that all of them together take at most `alpha`?"""
    return alpha / (look * (look + 1))


def is_unlike(test: MixTest, look: int, alpha: float, floor: float) -> bool:
    """Is the mix another one: no chance, and by so much that it matters?"""
    return test.p_value < alpha_at(look, alpha) and test.distance >= floor


def category_bucket(read: Sequence[SequenceItem]) -> str:
    """Under which bounded name is this sequence's top category counted? Its newest item's; empty where none has one.

    One category an inference, since the items of one sequence are no independent draws.
    """
    category = next((item.category for item in reversed(read) if item.category), "")
    return _bucket(category.partition(".")[0]) if category else ""


@lru_cache(maxsize=4_096)
def _bucket(top: str) -> str:
    return f"c{label_code(top) % CATEGORY_BUCKETS}"


def snapshot_baseline(labels: Iterable[SampleLabelled], rule: FleetRule) -> Baseline | None:
    """Which mixes did a version learn from, as the world showed them? None where too few tell.

    Only the uniform random share counts: the rest of a training set was picked because it is hard, so its mix is not
    the world's.
    """
    intents: dict[str, int] = {}
    categories: dict[str, int] = {}
    for label in labels:
        if label.sample.random and label.intent:
            intents[label.intent] = intents.get(label.intent, 0) + 1
            bucket = category_bucket(label.sample.read)
            if bucket:
                categories[bucket] = categories.get(bucket, 0) + 1
    if sum(intents.values()) < rule.min_baseline:
        return None
    return Baseline(intents=intents, categories=categories, source="snapshot")


def add_to_rate(blocks: RateBlocks, count: int, bad: int, size: int) -> RateBlocks:
    """Which blocks does a rate have after `count` more, `bad` of them bad? Their order is unknown, so spread evenly."""
    count, bad = blocks.waiting + count, blocks.waiting_bad + bad
    means: list[float] = []
    while count >= size:
        share = round(bad * size / count)
        means.append(share / size)
        count, bad = count - size, bad - share
    return RateBlocks((*blocks.means, *means)[-HISTORY_BLOCKS:], count, bad, blocks.total + len(means))


def values(blocks: RateBlocks, size: int) -> list[int]:
    """Which zeros and ones are these blocks? The bad ones of a block stand evenly in it: their order is unknown."""
    found: list[int] = []
    for mean in blocks.means:
        bad = round(mean * size)
        found.extend((place + 1) * bad // size - place * bad // size for place in range(size))
    return found


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Which share has each of these?"""
    total = sum(counts.values())
    return {name: count / total for name, count in sorted(counts.items())} if total else {}


def largest_moves(before: Mapping[str, float], after: Mapping[str, float], count: int = 3) -> str:
    """Which shares moved most? `场景购物 7.0% → 21.0%, …` for the person who reads the evidence."""
    moves = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {*before, *after}}
    largest = sorted(moves.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))[:count]
    return ", ".join(f"{name} {old:.1%} → {new:.1%}" for name, (old, new) in largest)
