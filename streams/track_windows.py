"""How far have a user's two windows drifted apart? The twin of `intentloop.drift.Tracker`, compiled.

Labels are counted in both windows at once, and the score follows from the counts. Not here: what moves the windows, and
what a score gives rise to (`fold_kernel.py`).
"""

from intentloop.drift import FIXED_POINT
from streams.columns import LEFT, MOVED, NAMED, STILL, Floats, Rule, Work
from streams.keep_compiled import compiled
from streams.pack_states import Integers, States


@compiled
def count_label(counts: Integers, size: int, label: int, column: int, by: int) -> int:
    """Count a label in the reference (column 1) or the window (2); tells how many labels are named now."""
    at = 0
    while at < size and counts[at, 0] != label:
        at += 1
    if at == size:
        counts[at, 0], counts[at, 1], counts[at, 2] = label, 0, 0
        size += 1
    counts[at, column] += by
    if counts[at, 1] == 0 and counts[at, 2] == 0:
        size -= 1
        counts[at, 0], counts[at, 1], counts[at, 2] = counts[size, 0], counts[size, 1], counts[size, 2]
    return size


@compiled
def count_windows(states: States, row: int, work: Work) -> None:
    """`drift.Tracker` anew: count both windows of a user."""
    named = 0
    for place in range(states.sizes[row, 3]):
        named = count_label(work.counts, named, states.reference[row, place], 1, 1)
    for place in range(states.sizes[row, 2]):
        named = count_label(work.counts, named, states.labels[row, place], 2, 1)
    work.at[NAMED] = named


@compiled
def push(states: States, row: int, label: int, window: int, work: Work) -> None:
    """`drift.Tracker.push` without the score: append a label, and let the oldest go where the window is full."""
    labels, size = states.labels[row], states.sizes[row, 2]
    work.at[NAMED] = count_label(work.counts, work.at[NAMED], label, 2, 1)
    if size < window:
        states.sizes[row, 2] = size + 1
    else:
        work.at[NAMED] = count_label(work.counts, work.at[NAMED], labels[0], 2, -1)
        for place in range(size - 1):
            labels[place] = labels[place + 1]
    labels[states.sizes[row, 2] - 1] = label


@compiled
def score(counts: Integers, named: int, sizes: Integers, rule: Rule, found: Floats) -> int:
    """`drift.Tracker.score` into `found`: total, and the three parts."""
    found[0] = 0.0
    before, after = sizes[3], sizes[2]
    if min(before, after) < rule.min_window:
        return STILL
    old_weight, new_weight = (1, 1) if before == after else (after, before)
    old_sum, new_sum, mixed_sum, shared, is_equal = 0, 0, 0, 0, True
    for place in range(named):
        old, new = counts[place, 1], counts[place, 2]
        shared += old > 0 and new > 0
        is_equal = is_equal and old == new
        old_sum += rule.n_log_n[old]
        new_sum += rule.n_log_n[new]
        mixed_sum += rule.n_log_n[old * old_weight + new * new_weight]
    if is_equal:
        return STILL
    mixed_size = before * old_weight + after * new_weight
    old_entropy = rule.log2[before] - old_sum / (before * FIXED_POINT)
    new_entropy = rule.log2[after] - new_sum / (after * FIXED_POINT)
    divergence = rule.log2[mixed_size] - mixed_sum / (mixed_size * FIXED_POINT) - (old_entropy + new_entropy) / 2
    unit = rule.unit[named]
    found[1] = abs(new_entropy - old_entropy) / unit
    found[2] = 1.0 - shared / named
    found[3] = divergence / unit if divergence > 0.0 else 0.0
    found[0] = rule.weights[0] * found[1] + rule.weights[1] * found[2] + rule.weights[2] * found[3]
    return LEFT if 1.0 - found[2] <= rule.switch_jaccard else MOVED
