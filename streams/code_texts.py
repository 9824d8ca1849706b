"""Which numbers stand for the texts of a column? `intentloop.window.id_code` and `thing_code`, compiled."""

from streams.columns import SEPARATOR
from streams.keep_compiled import compiled
from streams.pack_states import Bytes, Integers


@compiled
def end_of(text: Bytes, start: int) -> int:
    """Where does the text of a column end that begins here?"""
    stop = start
    while stop < len(text) and text[stop] != SEPARATOR:
        stop += 1
    return stop


@compiled
def remainder(text: Bytes, start: int, stop: int, value: int, prime: int) -> int:
    """`window._remainder`: go on from `value` over a text, two bytes at a time."""
    at = start
    while at + 1 < stop:
        value = (value * 65_536 + text[at] * 256 + text[at + 1]) % prime
        at += 2
    return (value * 256 + text[at]) % prime if at < stop else value


@compiled
def is_known(codes: Integers, size: int, code: int) -> bool:
    """Was this id seen before? Looks at all of them: without a way out it is vectorised."""
    found = 0
    for place in range(size):
        found |= codes[place] == code
    return found != 0
