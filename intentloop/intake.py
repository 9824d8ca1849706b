"""What did the phone mean? One raw event becomes a canonical event, or is refused with a reason.

Two ways in: `sound` judges what the strict decoder already accepted (almost everything, about a microsecond), `take`
reads what it refused: old names and types, numbers as text, unknown actions, broken characters. A refused event never
touches its neighbours. Not here: order, clock correction and double sends (`streams/`), or bytes of the body.
"""

from collections.abc import Mapping, Sequence

import msgspec

from intentloop import fields
from intentloop.errors import ContractError
from intentloop.events import Action, Behaviour, Event, Inference, InferenceSkipped
from intentloop.ids import content_digest
from intentloop.lenient_json import Numeral, plain

NOTES = (
    "nul_removed",
    "surrogate_replaced",
    "text_cut",
    "text_from_number",
    "time_from_text",
    "time_unit_guessed",
    "price_from_text",
    "category_from_list",
    "unknown_action",
    "id_derived",
)

ACTIONS: Mapping[str, Action] = {
    **{name: "search" for name in ("search", "query", "search_submit")},
    **{name: "purchase" for name in ("purchase", "buy", "order", "orders", "pay")},
    **{name: "cart" for name in ("cart", "carts", "add_cart", "add_to_cart")},
    **{name: "favourite" for name in ("favourite", "favorite", "fav", "collect")},
    **{name: "item_view" for name in ("item_view", "item_detail", "pv", "click", "clicks", "detail")},
    **{name: "content_view" for name in ("content_view", "content", "article")},
    **{name: "video" for name in ("video", "video_play")},
    **{name: "external_open" for name in ("external_open", "external")},
    **{name: "exposure" for name in ("exposure", "expose", "impression")},
    **{name: "page_view" for name in ("page_view", "page")},
    **{name: "ui" for name in ("ui", "tap", "scroll")},
    "other": "other",
}

_ID = ("event_id", "id", "uuid")
_TIME = ("ts_ms", "ts", "timestamp", "event_time", "time")
_SEQ = ("seq", "sequence")
_USER = ("user_id", "user", "uid")
_MAX_ID, _MAX_SEQ, _EARLIEST_MS = fields.MAX_ID, fields.MAX_SEQ, fields.EARLIEST_MS
_MAX_PRICE_YUAN, _MAX_DWELL_MS = fields.MAX_PRICE_YUAN, fields.MAX_DWELL_MS
_MODELS: Mapping[str, type[Inference] | type[InferenceSkipped]] = {
    "inference": Inference,
    "inference_skipped": InferenceSkipped,
}


class IntakeRule(msgspec.Struct, frozen=True, kw_only=True):
    """Longest texts that are kept, in characters. `max_ahead_ms`: how far ahead of its batch a time may be."""

    max_title: int = 500
    max_category: int = 200
    max_answer: int = 8_000
    max_read: int = 200
    max_ahead_ms: int = 366 * 86_400_000


class BatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all events of a batch: `latest_ms` is the last instant that its events can mean."""

    device_id: str
    latest_ms: int


class Taken(msgspec.Struct, frozen=True):
    """A canonical event, what had to be repaired (`NOTES`), and its own user when it names one (account switch)."""

    event: Event
    notes: tuple[str, ...] = ()
    user_id: str = ""


class Refused(msgspec.Struct, frozen=True):
    """Why this event cannot be used."""

    reason: str


def batch_facts(device_id: str, sent_at_ms: int | None, received_at_ms: int, rule: IntakeRule) -> BatchFacts:
    """Until when can events of this batch be? A phone's clock may run ahead, and then `sent_at_ms` does, too."""
    latest_ms = max(received_at_ms, sent_at_ms or 0) + rule.max_ahead_ms
    return BatchFacts(device_id=device_id, latest_ms=latest_ms)


def sound(events: Sequence[Event], facts: BatchFacts, rule: IntakeRule) -> bool:
    """May these strictly decoded events be stored as they are? If not, `take` says why, or repairs them.

    One pass over locals, since this is asked of every event that any phone sends.
    """
    latest_ms, max_title, max_category = facts.latest_ms, rule.max_title, rule.max_category
    for event in events:
        if not (0 < len(event.event_id) <= _MAX_ID and _EARLIEST_MS <= event.ts_ms <= latest_ms):
            return False
        if not 0 <= event.seq < _MAX_SEQ:
            return False
        if type(event) is Behaviour:
            if (
                len(event.title) > max_title
                or len(event.category) > max_category
                or len(event.item_id) > _MAX_ID
                or not ((price := event.price_yuan) is None or 0 <= price <= _MAX_PRICE_YUAN)
                or not ((dwell := event.dwell_ms) is None or 0 <= dwell <= _MAX_DWELL_MS)
            ):
                return False
        elif type(event) is Inference and (len(event.answer) > rule.max_answer or len(event.read) > rule.max_read):
            return False
    return True


def take(raw: object, facts: BatchFacts, rule: IntakeRule) -> Taken | Refused:
    """What did the phone mean by this event?

    Args:
        raw: A tree of `lenient_json.parse`.
    """
    if not isinstance(raw, dict):
        return Refused(f"an event is an object, this is a {_kind_of(raw)}")
    notes: set[str] = set()
    try:
        user_id = fields.identifier(raw, _USER, notes)
        model = _MODELS.get(str(raw.get("kind") or raw.get("type")))
        event = _behaviour(raw, facts, rule, notes) if model is None else _report(raw, model, facts, rule, notes)
    except ContractError as error:
        return Refused(str(error))
    except RecursionError:
        return Refused("the event is nested too deeply; the wire format has five levels")
    return Taken(event, tuple(sorted(notes)), user_id)


def _behaviour(raw: Mapping[str, object], facts: BatchFacts, rule: IntakeRule, notes: set[str]) -> Behaviour:
    ts_ms = fields.instant_ms(raw, _TIME, facts.latest_ms, notes)
    event = Behaviour(
        event_id=fields.identifier(raw, _ID, notes),
        action=_action(raw, notes),
        ts_ms=ts_ms,
        seq=fields.counting(raw, _SEQ),
        item_id=fields.identifier(raw, ("item_id", "itemId", "goods_id", "sku_id"), notes),
        title=fields.text(raw, ("title", "item_title", "query", "q", "keyword"), rule.max_title, notes),
        category=fields.category(raw, rule.max_category, notes),
        price_yuan=fields.price_yuan(raw, notes),
        dwell_ms=fields.dwell_ms(raw),
    )
    return event if event.event_id else msgspec.structs.replace(event, event_id=_derived_id(event, facts, notes))


def _action(raw: Mapping[str, object], notes: set[str]) -> Action:
    _, named = fields.first(raw, ("action", "type", "event_type", "event"))
    action = ACTIONS.get(named.lower()) if isinstance(named, str) else None
    if action is None:
        notes.add("unknown_action")
    return action or "other"


def _derived_id(event: Behaviour, facts: BatchFacts, notes: set[str]) -> str:
    """An old app without event ids: the same event gets the same id when it is sent again."""
    notes.add("id_derived")
    parts = (facts.device_id, event.ts_ms, event.seq, event.action, event.item_id, event.title, event.dwell_ms)
    return f"c-{content_digest(repr(parts))}"


def _report(
    raw: Mapping[str, object],
    model: type[Inference] | type[InferenceSkipped],
    facts: BatchFacts,
    rule: IntakeRule,
    notes: set[str],
) -> Inference | InferenceSkipped:
    """An inference or a skipped one: what the model read is never shortened, since its digest covers it."""
    tree = {name: value for name, value in raw.items() if value is not None}
    for name in ("model_version", "prompt_version", "sequence_digest"):
        if isinstance(tree.get(name), Numeral):
            tree[name] = fields.identifier(tree, (name,), notes)
    tree["event_id"] = fields.identifier(raw, _ID, notes)
    ts_ms, seq = fields.instant_ms(raw, _TIME, facts.latest_ms, notes), fields.counting(raw, _SEQ)
    if not tree["event_id"]:
        raise ContractError("event_id is missing; an inference without one cannot be told from a second one")
    answer = fields.text(raw, ("answer",), rule.max_answer, notes)
    read = tree.get("read")
    if isinstance(read, list):
        tree["read"] = [item | {"action": _action(item, notes)} if isinstance(item, dict) else item for item in read]
    values = plain(tree | {"answer": answer}, notes)
    try:
        event = msgspec.convert(
            {**values, "ts_ms": ts_ms, "seq": seq, "kind": model.__struct_config__.tag},  # type: ignore[dict-item]
            model,
            strict=False,
        )
    except msgspec.ValidationError as error:
        raise ContractError(f"{error}"[:200]) from None
    if isinstance(event, Inference) and len(event.read) > rule.max_read:
        raise ContractError(f"read has {len(event.read)} items, the limit is {rule.max_read}")
    return event


def _kind_of(raw: object) -> str:
    return "number" if isinstance(raw, Numeral) else type(raw).__name__
