"""What do we remember of one user? Recent labels, what the last inference saw, and which events were counted already.

One frozen value per user, packed tightly: Redis holds millions of them, so ids and labels are kept as short codes.
Not here: what an envelope does to it (`fold.py`), or where it is stored (`adapters/state_store.py`).
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from struct import error as StructError

import msgspec

from intentloop import compress
from intentloop.errors import ContractError
from intentloop.events import Behaviour, Envelope
from intentloop.ids import label_code
from intentloop.timeline import Clock

CODE_BYTES = 5  # 39 bits: a new id meets one of a user's 208 by chance once in 3e9 events
CODE_PRIME = 0x9E3779B99D  # below 256 ** CODE_BYTES, and near no power of 256, which would fold texts onto themselves
THING_PRIME = 0x9E3779B1  # the same for 32 bits
MAX_IDS = 208  # more than `events.MAX_EVENTS`, so that a whole batch sent again is recognised
MAX_BATCHES = 32  # by which a batch that is sent again is known when its events' ids have been forgotten
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


class UserState(msgspec.Struct, frozen=True):
    """All that survives between two envelopes of one user.

    `seen` holds `CODE_BYTES` per event id, oldest first, `batches` the same of whole envelopes. `recent` holds (thing,
    time) pairs for the debounce. `labels` is the current window and `reference` that of the newest inference, which was
    at `inferred_ms`; newest last. `armed`: the next drift may fire.
    """

    clock: Clock = Clock()
    inferred_ms: int = 0
    seen: bytes = b""
    batches: bytes = b""
    recent: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] = ()
    reference: tuple[int, ...] = ()
    armed: bool = True
    live: LiveIntent = LiveIntent()
    tops: tuple[int, ...] = ()


VERSION = 3  # first byte of a packed state; a change of the layout below is a new version
HEAD = Struct("<BBBBBHHqqq")  # version, armed, numbers of ids, batches, recent, labels, reference; clock; inferred

_encode_tail = msgspec.msgpack.Encoder().encode
_decode_tail = msgspec.msgpack.Decoder(tuple[LiveIntent, tuple[int, ...]]).decode


def pack(state: UserState) -> bytes:
    """Which bytes stand for this state in Redis?

    A head of numbers, so that compiled code can read and write it in place (`streams/fold_kernel.py`): `HEAD`, the ids
    of events and of batches, the recent things, both windows. Then the tail, which an inference or a drift changes.
    """
    return pack_head(state) + pack_tail(state.live, state.tops)


def pack_head(state: UserState) -> bytes:
    """Which bytes stand for what every envelope may change?"""
    seen, recent, labels, reference = state.seen, state.recent, state.labels, state.reference
    counts = len(recent), len(labels), len(reference)
    codes = len(seen) // CODE_BYTES, len(state.batches) // CODE_BYTES
    times = state.clock.newest_ms, state.clock.received_ms, state.inferred_ms
    numbers = *chain.from_iterable(recent), *labels, *reference
    return (
        HEAD.pack(VERSION, state.armed, *codes, *counts, *times)
        + seen
        + state.batches
        + _numbers(*counts).pack(*numbers)
    )


def pack_tail(live: LiveIntent, tops: tuple[int, ...]) -> bytes:
    """Which bytes stand for what the phone's model said last?"""
    return _encode_tail((live, tops))


def unpack(packed: bytes) -> UserState:
    """Which state is this?

    Raises:
        ContractError: it was packed by another version of this software, or is cut.
    """
    try:
        return _unpack(packed)
    except (StructError, msgspec.DecodeError) as error:
        raise ContractError(f"a user's state of {len(packed)} bytes cannot be read: {error}; was it cut?") from error


def _unpack(packed: bytes) -> UserState:
    if not packed or packed[0] != VERSION:
        raise ContractError(
            f"a user's state of version {packed[:1].hex() or 'none'} was found, this software reads {VERSION:02x}: use "
            "a fresh Redis prefix and replay the telemetry, or run the version that wrote it"
        )
    _, armed, ids, batches, recent, labels, reference, newest_ms, received_ms, inferred_ms = HEAD.unpack_from(packed)
    batches_at = HEAD.size + ids * CODE_BYTES
    start = batches_at + batches * CODE_BYTES
    layout = _numbers(recent, labels, reference)
    numbers = layout.unpack_from(packed, start)
    things, both = numbers[: 2 * recent], numbers[2 * recent :]
    return UserState(
        Clock(newest_ms, received_ms),
        inferred_ms,
        packed[HEAD.size : batches_at],
        packed[batches_at:start],
        tuple(zip(things[::2], things[1::2], strict=True)),
        both[:labels],
        both[labels:],
        bool(armed),
        *unpack_tail(packed[start + layout.size :]),
    )


def unpack_tail(tail: bytes) -> tuple[LiveIntent, tuple[int, ...]]:
    """What did the phone's model say last, and which top categories has it read?"""
    return _decode_tail(tail)


@lru_cache(maxsize=4_096)
def _numbers(recent: int, labels: int, reference: int) -> Struct:
    return Struct(f"<{'Iq' * recent}{labels + reference}I")


def id_code(event_id: str) -> bytes:
    """Which few bytes stand for this id in `UserState.seen`?"""
    return _remainder(event_id.encode(), CODE_PRIME).to_bytes(CODE_BYTES, "little")


def batch_id(envelope: Envelope) -> str:
    """Which id has all that a phone sent at once? One that grew before it was sent again is another batch."""
    events = envelope.events
    ends = f"{events[0].event_id}\x00{events[-1].event_id}" if events else ""
    return f"{envelope.batch_id}\x00{len(events)}\x00{len(envelope.rejected)}\x00{ends}"


def thing_code(action: str, thing: str) -> int:
    """Which 32-bit number stands for this action on this thing in `UserState.recent`?"""
    return _remainder(f"{action}\x00{thing}".encode(), THING_PRIME)


def _remainder(text: bytes, prime: int) -> int:
    """Which remainder has a text, read as one number in base 256? A leading one keeps leading zeros apart.

    Compiled code computes the same digit by digit. Texts that differ in a few neighbouring bytes never share one, all
    others do by chance; nobody gains by forging it, since codes are compared within one user only.
    """
    return int.from_bytes(b"\x01" + text, "big") % prime


def split_ids(seen: bytes) -> list[bytes]:
    """Which id codes are packed here, oldest first?"""
    return list(_codes(len(seen) // CODE_BYTES).unpack(seen))


@lru_cache(maxsize=MAX_IDS + 1)
def _codes(count: int) -> Struct:
    return Struct(f"{CODE_BYTES}s" * count)


def join_ids(codes: Sequence[bytes], most: int = MAX_IDS) -> bytes:
    """How are the newest codes packed?"""
    return b"".join(codes[-most:])


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
    thing = thing_code(*compress.thing(event))
    before = recent.pop(thing, None)
    recent[thing] = ts_ms
    return before is not None and 0 <= ts_ms - before <= window_ms


def newest_recent(recent: dict[int, int], window_ms: int) -> tuple[tuple[int, int], ...]:
    """Which things can still be repeated? Those within the window of the newest, bounded."""
    if not recent:
        return ()
    since = max(recent.values()) - window_ms
    return tuple((thing, ts_ms) for thing, ts_ms in recent.items() if ts_ms >= since)[-MAX_RECENT:]
