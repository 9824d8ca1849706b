"""How do packed states become rows of numbers and back? `intentloop.window.pack_head` for a whole batch, compiled.

Not here: what moves the rows (`fold_kernel.py`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intentloop.window import CODE_BYTES, HEAD, MAX_BATCHES, MAX_IDS, MAX_RECENT, VERSION
from streams.keep_compiled import compiled

MAX_WINDOW = 64  # labels; wider windows are left to the definition
HEAD_BYTES, RECENT_BYTES, LABEL_BYTES = HEAD.size, 12, 4
MAX_HEAD_BYTES = (
    HEAD_BYTES + (MAX_IDS + MAX_BATCHES) * CODE_BYTES + MAX_RECENT * RECENT_BYTES + 2 * MAX_WINDOW * LABEL_BYTES
)

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class States(NamedTuple):
    """One row a user: `intentloop.window.UserState` without its tail.

    `clock`: newest, received, inferred. `sizes`: of ids, recent, labels, reference, batches.
    """

    clock: Integers
    armed: Integers
    sizes: Integers
    ids: Integers
    batches: Integers
    recent: Integers
    labels: Integers
    reference: Integers


def empty_states(users: int) -> States:
    """Where do the states of so many users go?"""
    return States(
        clock=np.zeros((users, 3), np.int64),
        armed=np.ones(users, np.int64),
        sizes=np.zeros((users, 5), np.int64),
        ids=np.empty((users, MAX_IDS), np.int64),
        batches=np.empty((users, MAX_BATCHES), np.int64),
        recent=np.empty((users, MAX_RECENT, 2), np.int64),
        labels=np.empty((users, MAX_WINDOW), np.int64),
        reference=np.empty((users, MAX_WINDOW), np.int64),
    )


@compiled
def read_number(packed: Bytes, at: int, width: int) -> int:
    """Which little-endian number lies here?"""
    value = 0
    for place in range(width):
        value |= int(packed[at + place]) << (8 * place)
    return value


@compiled
def write_number(packed: Bytes, at: int, width: int, value: int) -> int:
    """Lay a number down; tells where the next one goes."""
    for place in range(width):
        packed[at + place] = (value >> (8 * place)) & 255
    return at + width


@compiled
def tail_of(packed: Bytes, at: int, end: int) -> int:
    """Where does the tail of the state that lies here begin? -1 where the state is none that can be read here."""
    if end - at < HEAD_BYTES or packed[at] != VERSION:
        return -1
    ids, batches, recent = int(packed[at + 2]), int(packed[at + 3]), int(packed[at + 4])
    labels, reference = read_number(packed, at + 5, 2), read_number(packed, at + 7, 2)
    if ids > MAX_IDS or batches > MAX_BATCHES or recent > MAX_RECENT or max(labels, reference) > MAX_WINDOW:
        return -1
    tail = at + HEAD_BYTES + (ids + batches) * CODE_BYTES + recent * RECENT_BYTES + (labels + reference) * LABEL_BYTES
    return tail if tail < end else -1


@compiled
def unpack(packed: Bytes, starts: Integers, states: States) -> bool:
    """Fill a row from each packed state, none for a new user; leaves in `starts` where each tail begins.

    Tells whether all could be read.
    """
    for row in range(len(starts) - 1):
        at, end = starts[row], starts[row + 1]
        if at == end:
            continue
        starts[row] = tail_of(packed, at, end)
        if starts[row] < 0:
            return False
        unpack_row(packed, at, states, row)
    return True


@compiled
def unpack_row(packed: Bytes, at: int, states: States, row: int) -> None:
    """Read one head, in the order of `window.HEAD` and what follows it."""
    sizes = states.sizes[row]
    states.armed[row], sizes[0], sizes[4], sizes[1] = packed[at + 1], packed[at + 2], packed[at + 3], packed[at + 4]
    sizes[2], sizes[3] = read_number(packed, at + 5, 2), read_number(packed, at + 7, 2)
    for place in range(3):
        states.clock[row, place] = read_number(packed, at + 9 + 8 * place, 8)
    at += HEAD_BYTES
    for place in range(sizes[0]):
        states.ids[row, place] = read_number(packed, at, CODE_BYTES)
        at += CODE_BYTES
    for place in range(sizes[4]):
        states.batches[row, place] = read_number(packed, at, CODE_BYTES)
        at += CODE_BYTES
    for place in range(sizes[1]):
        states.recent[row, place, 0] = read_number(packed, at, 4)
        states.recent[row, place, 1] = read_number(packed, at + 4, 8)
        at += RECENT_BYTES
    for place in range(sizes[2]):
        states.labels[row, place] = read_number(packed, at, LABEL_BYTES)
        at += LABEL_BYTES
    for place in range(sizes[3]):
        states.reference[row, place] = read_number(packed, at, LABEL_BYTES)
        at += LABEL_BYTES


@compiled
def pack(states: States, packed: Bytes, starts: Integers) -> None:
    """Lay the heads of all states down, one after the other; leaves in `starts` where each begins."""
    at = 0
    for row in range(len(starts) - 1):
        starts[row] = at
        sizes = states.sizes[row]
        packed[at], packed[at + 1], packed[at + 2] = VERSION, states.armed[row], sizes[0]
        packed[at + 3], packed[at + 4] = sizes[4], sizes[1]
        at = write_number(packed, at + 5, 2, sizes[2])
        at = write_number(packed, at, 2, sizes[3])
        for place in range(3):
            at = write_number(packed, at, 8, states.clock[row, place])
        for place in range(sizes[0]):
            at = write_number(packed, at, CODE_BYTES, states.ids[row, place])
        for place in range(sizes[4]):
            at = write_number(packed, at, CODE_BYTES, states.batches[row, place])
        for place in range(sizes[1]):
            at = write_number(packed, at, 4, states.recent[row, place, 0])
            at = write_number(packed, at, 8, states.recent[row, place, 1])
        for place in range(sizes[2]):
            at = write_number(packed, at, LABEL_BYTES, states.labels[row, place])
        for place in range(sizes[3]):
            at = write_number(packed, at, LABEL_BYTES, states.reference[row, place])
    starts[-1] = at
