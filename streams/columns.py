"""What do compiled code and Python hand each other? A batch as columns, the rule as numbers, and what was found.

Not here: who fills them (`fold_columns.py`), and what is done with them (`fold_kernel.py`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intentloop.window import MAX_IDS, MAX_RECENT
from streams.pack_states import MAX_WINDOW, Bytes, Integers

SEPARATOR = 0x1E  # between the texts of a column

# kinds of event; below NOISE: a behaviour, and the place of its action in `Columns.actions`
NOISE, INFERENCE, SKIPPED, REJECTED = 32, 33, 34, 35
# what became of an event; from QUARANTINED on it gives rise to something
DUPLICATE, LATE, REFUSED, NOISY, REPEAT, APPLIED, QUARANTINED, DRIFTED, SWITCHED, INFERRED, NOT_RUN = range(11)
# places of `Work.at`
ENVELOPE, ID_AT, ID_END, THING_AT, THING_END, LABEL_AT, IDS, RECENT, NAMED, DRIFTS, RENEWED = range(11)
STILL, MOVED, LEFT = range(3)  # what a score says: equal or short windows, others, nothing shared

Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """A batch. A row of `envelopes`: user's row, first event after it, received, correction, earliest and latest time,
    code of all that was sent at once.

    `things` and `labels` (-1: none) are of behaviours that are no noise; `actions` is the remainder of a thing's text
    up to the action, by action.
    """

    envelopes: Integers
    kinds: NDArray[np.int8]
    times: Integers
    ids: Bytes
    things: Bytes
    labels: Integers
    actions: Integers


class Rule(NamedTuple):
    """Numbers of `intentloop.fold.FoldRule`, and tables of `intentloop.drift`."""

    debounce_ms: int
    late_grace_ms: int
    state_ttl_ms: int
    window: int
    min_window: int
    weights: tuple[float, float, float]
    threshold: float
    rearm_below: float
    switch_jaccard: float
    n_log_n: Integers
    log2: Floats
    unit: Floats


class Work(NamedTuple):
    """What the envelope at hand needs room for (`at`, `ids`, `recent`, `counts`), and what is found.

    `renewed`: envelopes whose user's state had expired. `counts`: label, times in the reference and in the window. Of
    each drift: its score (total and parts), reference and window, and how long these two are.
    """

    at: Integers
    ids: Integers
    recent: Integers
    counts: Integers
    outcomes: NDArray[np.int8]
    scores: Floats
    windows: Integers
    window_sizes: Integers
    renewed: Integers


def room(envelopes: int, events: int, behaviours: int) -> Work:
    """Which room does a batch need?"""
    return Work(
        at=np.array([0, 0, -1, 0, -1, -1, 0, 0, 0, 0, 0], np.int64),
        ids=np.empty(MAX_IDS + events, np.int64),
        recent=np.empty((MAX_RECENT + events, 2), np.int64),
        counts=np.empty((2 * MAX_WINDOW + 1, 3), np.int64),
        outcomes=np.empty(events, np.int8),
        scores=np.empty((behaviours + 1, 4), np.float64),
        windows=np.empty((behaviours + 1, 2, MAX_WINDOW), np.int64),
        window_sizes=np.empty((behaviours + 1, 2), np.int64),
        renewed=np.empty(envelopes, np.int64),
    )
