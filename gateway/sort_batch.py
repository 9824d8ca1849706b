"""Which envelopes does a phone's body become? Sound events pass, others are repaired or set aside one by one.

Pure: bytes in, envelopes and dead letters out. Three ways, tried in this order, with equal outcomes: the whole body in
one strict pass when nothing in it needs a second look (nearly always); event by event, each through the strict decoder;
and what that refuses through `intentloop.intake`. Not here: reading bytes, hashing keys, sending.
"""

import hashlib
import re
from collections.abc import Callable

import msgspec

from gateway.faults import BodyFault
from intentloop import fields, intake
from intentloop.errors import ContractError
from intentloop.events import MAX_EVENTS, Behaviour, Envelope, Event, Inference, Rejection
from intentloop.intake import BatchFacts, IntakeRule, Refused, Taken
from intentloop.lenient_json import clean, parse, rendered
from intentloop.privacy import redact

MAX_EVENT_BYTES = 65_536
BORROWED = "the inference reads behaviour of another account on this phone; cut the window where the account changes"
EXCERPT = 512  # characters of a refused event that are kept

_TEXTS = ("batch_id", "user_id", "device_id", "device_model", "app_version")
_TEN_YEARS_MS = 3_660 * 86_400_000
_FAR_MS = 4_102_444_800_000  # 2100-01-01
_ESCAPE, _ASCII_ESCAPE = b"\\", b"\\u00"  # of a NUL, or of a letter in the name of a field
_OWN_USER, _OWN_UID = b'"user', b'"uid'
_USER_FIELDS = re.compile(r'("(?:user_id|user|uid)"\s*:\s*)("(?:[^"\\]|\\.){0,400}"?|[^,}\]\s]{1,400})')


class PhoneBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a phone posts. Events are looked at one by one, so that a bad one never hides its neighbours."""

    batch_id: str
    user_id: str
    device_id: str
    device_model: str = ""
    app_version: str = ""
    schema_version: int = 1
    sent_at_ms: int | None = None
    events: list[msgspec.Raw]


class Repaired(msgspec.Struct, frozen=True):
    """One event that was kept after a repair, and which ones (`intake.NOTES`)."""

    index: int
    notes: tuple[str, ...]


class SetAside(msgspec.Struct, frozen=True):
    """One event that was not kept: why, and a reference to it without the user's id."""

    index: int
    reason: str
    sha256: str
    size_bytes: int
    excerpt: str


class Sorted(msgspec.Struct, frozen=True):
    """The outcome: the batch's own envelope first, then one for each other user whose events were in it."""

    envelopes: tuple[Envelope, ...]
    set_aside: tuple[SetAside, ...]
    repaired: tuple[Repaired, ...]
    accepted: int


class _Posted(msgspec.Struct, frozen=True):
    """The batch's own fields, and its events as bytes (fast way) or as trees of `lenient_json` (slow way)."""

    head: PhoneBatch
    items: list[object]


_decode_whole = msgspec.json.Decoder(Envelope).decode
_decode_batch = msgspec.json.Decoder(PhoneBatch).decode
_decode_event: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode


def sort_batch(body: bytes, received_at_ms: int, hash_user: Callable[[str], str], rule: IntakeRule) -> Sorted:
    """Which envelopes does this body become?

    Raises:
        BodyFault: the body as a whole is no batch; sending it again will not help.
    """
    envelope = _sound_whole(body, received_at_ms, hash_user, rule)
    if envelope is not None:
        return Sorted((envelope,), (), (), len(envelope.events))
    return sort_each(body, received_at_ms, hash_user, rule)


def _sound_whole(
    body: bytes, received_at_ms: int, hash_user: Callable[[str], str], rule: IntakeRule
) -> Envelope | None:
    """The envelope of a body of one user's sound events; None when anything at all must be looked at more closely."""
    if not _is_plain(body):
        return None
    try:
        posted = _decode_whole(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if not (0 < len(posted.events) <= MAX_EVENTS and _is_sound_head(posted, received_at_ms)):
        return None
    facts = intake.batch_facts(posted.device_id, posted.sent_at_ms, received_at_ms, rule)
    if not intake.sound(posted.events, facts, rule):
        return None
    return _envelope(posted, hash_user(posted.user_id), received_at_ms, posted.events, ())


def _is_plain(body: bytes) -> bool:
    """Is no event too long, nothing escaped that matters, and the batch's own the only user that is named?"""
    return (
        len(body) <= MAX_EVENT_BYTES
        and (_ESCAPE not in body or _ASCII_ESCAPE not in body)  # the first is one memchr, and nearly always true
        and body.count(b'"user_id"') == 1
        and b'"user"' not in body
        and b'"uid"' not in body
    )


def _is_sound_head(head: Envelope, received_at_ms: int) -> bool:
    """Would `_checked` keep the batch's own fields as they are?"""
    return (
        0 < len(head.batch_id) <= fields.MAX_ID
        and 0 < len(head.user_id) <= fields.MAX_ID
        and 0 < len(head.device_id) <= fields.MAX_ID
        and len(head.device_model) <= fields.MAX_ID
        and len(head.app_version) <= fields.MAX_ID
        and 0 <= head.schema_version < fields.MAX_SEQ
        and (head.sent_at_ms is None or fields.EARLIEST_MS <= head.sent_at_ms <= received_at_ms + _TEN_YEARS_MS)
    )


def sort_each(body: bytes, received_at_ms: int, hash_user: Callable[[str], str], rule: IntakeRule) -> Sorted:
    """Look at events one by one: what is refused or repaired there never touches its neighbours."""
    posted = _read(body)
    head = _checked(posted.head, len(posted.items), received_at_ms)
    facts = intake.batch_facts(head.device_id, head.sent_at_ms, received_at_ms, rule)
    kept: list[tuple[int, str, Event]] = []
    set_aside: list[SetAside] = []
    repaired: list[Repaired] = []
    for index, item in enumerate(posted.items):
        taken = _take(item, facts, rule)
        if isinstance(taken, Refused):
            set_aside.append(_aside(index, item, taken.reason, head.user_id))
            continue
        if taken.notes:
            repaired.append(Repaired(index, taken.notes))
        kept.append((index, taken.user_id or head.user_id, taken.event))
    borrowed = _borrowed(kept)
    set_aside.extend(_aside(index, posted.items[index], BORROWED, head.user_id) for index in borrowed)
    rejected = tuple(Rejection(each.index, each.reason) for each in set_aside)
    events: dict[str, list[Event]] = {head.user_id: []}
    for index, user, event in kept:
        if index not in borrowed:
            events.setdefault(user, []).append(event)
    envelopes = tuple(
        _envelope(head, hash_user(user), received_at_ms, tuple(mine), rejected if user == head.user_id else ())
        for user, mine in events.items()
        if mine or (rejected and user == head.user_id)
    )
    return Sorted(envelopes, tuple(set_aside), tuple(repaired), len(posted.items) - len(set_aside))


def _read(body: bytes) -> _Posted:
    try:
        head = _decode_batch(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _read_slowly(body)
    return _Posted(head, [bytes(raw) for raw in head.events])


def _read_slowly(body: bytes) -> _Posted:
    """NaN, odd characters, or ids as numbers somewhere in the body: find the events, judge them one by one."""
    notes: set[str] = set()
    try:
        tree = parse(body)
        if not isinstance(tree, dict) or not isinstance(tree.get("events"), list):
            raise ContractError("the body must be an object with batch_id, user_id, device_id and a list of events")
        head = PhoneBatch(
            batch_id=fields.identifier(tree, ("batch_id",), notes),
            user_id=fields.identifier(tree, ("user_id", "user"), notes),
            device_id=fields.identifier(tree, ("device_id", "device"), notes),
            device_model=fields.text(tree, ("device_model",), fields.MAX_ID, notes),
            app_version=fields.text(tree, ("app_version",), fields.MAX_ID, notes),
            schema_version=fields.counting(tree, ("schema_version",)) or 1,
            sent_at_ms=_sent_at_ms(tree),
            events=[],
        )
    except ContractError as error:
        raise BodyFault(400, str(error)) from None
    return _Posted(head, list(tree["events"]))


def _sent_at_ms(tree: dict[str, object]) -> int | None:
    """A time that cannot be read means that no clock is corrected; it is no reason to lose the events."""
    try:
        return fields.instant_ms(tree, ("sent_at_ms", "sent_at"), _FAR_MS, set())
    except ContractError:
        return None


def _checked(head: PhoneBatch, count: int, received_at_ms: int) -> PhoneBatch:
    if count > MAX_EVENTS:
        raise BodyFault(413, f"the batch has {count} events, the limit is {MAX_EVENTS}; send it in parts")
    texts = {name: clean(getattr(head, name), set()) for name in _TEXTS}
    for name in ("batch_id", "user_id", "device_id"):
        if not 0 < len(texts[name]) <= fields.MAX_ID:
            raise BodyFault(400, f"{name} has {len(texts[name])} characters; send 1 to {fields.MAX_ID}")
    sent_at_ms = head.sent_at_ms
    if sent_at_ms is not None and not fields.EARLIEST_MS <= sent_at_ms <= received_at_ms + _TEN_YEARS_MS:
        sent_at_ms = None
    return PhoneBatch(
        **{name: value[: fields.MAX_ID] for name, value in texts.items()},
        schema_version=head.schema_version if 0 <= head.schema_version < fields.MAX_SEQ else 1,
        sent_at_ms=sent_at_ms,
        events=[],
    )


def _take(item: object, facts: BatchFacts, rule: IntakeRule) -> Taken | Refused:
    if not isinstance(item, bytes):
        return intake.take(item, facts, rule)
    if len(item) > MAX_EVENT_BYTES:
        return Refused(f"the event has {len(item)} bytes, the limit is {MAX_EVENT_BYTES}")
    if _ASCII_ESCAPE not in item and _OWN_USER not in item and _OWN_UID not in item:
        try:
            event = _decode_event(item)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass
        else:
            if intake.sound((event,), facts, rule):
                return Taken(event)
    try:
        return intake.take(parse(item), facts, rule)
    except ContractError as error:
        return Refused(str(error))


def _borrowed(kept: list[tuple[int, str, Event]]) -> set[int]:
    """Which inferences read what another account of this phone did, and not their own? Their prompts are mixed up."""
    if len({user for _, user, _ in kept}) < 2:
        return set()
    titles: dict[str, set[str]] = {}
    for _, user, event in kept:
        if isinstance(event, Behaviour) and event.title:
            titles.setdefault(user, set()).add(event.title)
    found: set[int] = set()
    for index, user, event in kept:
        others = set().union(*titles.values()) - titles.get(user, set())
        if isinstance(event, Inference) and any(item.title in others for item in event.read):
            found.add(index)
    return found


def _aside(index: int, item: object, reason: str, user_id: str) -> SetAside:
    raw = item if isinstance(item, bytes) else rendered(item).encode()
    text = clean(raw[: 8 * EXCERPT].decode("utf-8", "replace"), set())
    text = _USER_FIELDS.sub(r'\1"<user>"', text).replace(user_id, "<user>")
    return SetAside(index, reason, hashlib.sha256(raw).hexdigest(), len(raw), redact(text)[:EXCERPT])


def _envelope(
    head: PhoneBatch | Envelope,
    user_hash: str,
    received_at_ms: int,
    events: tuple[Event, ...],
    rejected: tuple[Rejection, ...],
) -> Envelope:
    return Envelope(
        batch_id=head.batch_id,
        user_id=user_hash,
        device_id=head.device_id,
        device_model=head.device_model,
        app_version=head.app_version,
        schema_version=head.schema_version,
        sent_at_ms=head.sent_at_ms,
        received_at_ms=received_at_ms,
        events=events,
        rejected=rejected,
    )
