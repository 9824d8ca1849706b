"""What do we remember of one user? Recent labels, what the last inference saw, and which events were counted already.

One frozen value per user, packed as a MessagePack array: Redis holds millions of them, so ids and labels are kept as
short hashes. Not here: what an envelope does to it (`fold.py`), or where it is stored (`adapters/state_store.py`).
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct

import msgspec

from intentloop import compress
from intentloop.events import Behaviour
from intentloop.ids import label_code
from intentloop.timeline import Clock

ID_BYTES = 5  # 40 bits: two of 208 remembered ids of a user meet by chance once in 2e10 events
MAX_IDS = 208  # more than `events.MAX_EVENTS`, so that a whole batch sent again is recognised
MAX_RECENT = 12  # things seen within the debounce window
MAX_TOPS = 16  # top categories that this user's inferences have read


class LiveIntent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the phone last said of this user; `stale` once behaviour has drifted away from it.

    `category` is the full path that the inference read last: what a feed may lean towards.
    """

    name: str = ""
    ts_ms: int = 0
    stale: bool = False
    keywords: tuple[str, ...] = ()
    category: str = ""


class UserState(msgspec.Struct, frozen=True, array_like=True):
    """All that survives between two envelopes of one user.

    `seen` holds `ID_BYTES` per event id, oldest first. `recent` holds (thing, time) pairs for the debounce. `labels` is
    the current window and `reference` that of the last inference, newest last. `armed`: the next drift may fire.
    """

    clock: Clock = Clock()
    seen: bytes = b""
    recent: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] = ()
    reference: tuple[int, ...] = ()
    armed: bool = True
    live: LiveIntent = LiveIntent()
    tops: tuple[int, ...] = ()


pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(UserState).decode

_NO_ID = blake2b(digest_size=ID_BYTES)


def id_code(event_id: str) -> bytes:
    """Which few bytes stand for this id in `UserState.seen`?"""
    code = _NO_ID.copy()  # a third cheaper than a new one
    code.update(event_id.encode())
    return code.digest()


def split_ids(seen: bytes) -> list[bytes]:
    """Which id codes are packed here, oldest first?"""
    return list(_codes(len(seen) // ID_BYTES).unpack(seen))


@lru_cache(maxsize=MAX_IDS + 1)
def _codes(count: int) -> Struct:
    return Struct(f"{ID_BYTES}s" * count)


def join_ids(codes: Sequence[bytes]) -> bytes:
    """How are the newest codes packed?"""
    return b"".join(codes[-MAX_IDS:])


@lru_cache(maxsize=65_536)
def code_of(text: str) -> int:
    """Which number stands for this text in a state? Remembered, since shoppers share categories."""
    return label_code(text)


def label(event: Behaviour) -> int | None:
    """Which semantic label does this behaviour add to the window? None where it names neither query nor category."""
    if event.action == "search":
        return code_of(f"search:{event.title}") if event.title else None
    return code_of(event.category) if event.category else None


def is_repeat(recent: dict[int, int], event: Behaviour, ts_ms: int, window_ms: int) -> bool:
    """Is this the same action on the same thing within the debounce window? Notes it in `recent` either way.

    One step of `compress.debounce`, for events that come one by one.
    """
    thing = code_of("\x00".join(compress.thing(event)))
    before = recent.pop(thing, None)
    recent[thing] = ts_ms
    return before is not None and 0 <= ts_ms - before <= window_ms


def newest_recent(recent: dict[int, int], window_ms: int) -> tuple[tuple[int, int], ...]:
    """Which things can still be repeated? Those within the window of the newest, bounded."""
    if not recent:
        return ()
    since = max(recent.values()) - window_ms
    return tuple((thing, ts_ms) for thing, ts_ms in recent.items() if ts_ms >= since)[-MAX_RECENT:]
