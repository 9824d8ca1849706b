"""How do public data sets read as behaviours? Three formats, row by row; a row that cannot be read is set aside.

Numeric ids get titles from a made-up catalogue (`catalogue.dress_item`): the model reads titles, and these data have
none. Not here: cutting rows into visits, sending them (`demo/`).
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from intentloop import catalogue
from intentloop.events import Action

Format = Literal["taobao-userbehaviour", "otto", "events-jsonl"]

EARLIEST_MS = 946_684_800_000  # 2000-01-01: before that there was no such shop, so the clock was wrong


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One behaviour of one user as the data set has it; `line` counts from 1, `position` within a line from 0."""

    line: int
    position: int = 0
    user_id: str
    action: Action
    ts_ms: int
    item_id: str
    title: str
    category: str
    price_yuan: float | None = None
    dwell_ms: int | None = None
    made_up: bool = False  # the title was never on this item


class BadRow(msgspec.Struct, frozen=True):
    """A row that was set aside, and why."""

    line: int
    reason: str


class _RowError(ValueError):
    """This row means nothing; the text says why."""


def read(name: Format, lines: Iterable[str], latest_ms: int, dress: bool = True) -> Iterator[Row | BadRow]:
    """Which behaviours and which bad rows does this file hold, in its order?

    Args:
        latest_ms: A time after this is in the future, so it is wrong.
        dress: Give items without titles those of the catalogue; else category ids stay as the data has them.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found = _READERS[name](number, line.rstrip("\r\n"), latest_ms)
            yield from map(_dressed, found) if dress and name in _BARE else found


_TAOBAO: Mapping[str, Action] = {"pv": "item_view", "cart": "cart", "fav": "favourite", "buy": "purchase"}
_OTTO: Mapping[str, Action] = {"clicks": "item_view", "carts": "cart", "orders": "purchase"}
_JSONL: Mapping[str, Action] = {
    "item_detail": "item_view",
    "item_view": "item_view",
    "cart": "cart",
    "favorite": "favourite",
    "favourite": "favourite",
    "purchase": "purchase",
    "search": "search",
    "content_view": "content_view",
    "video": "video",
    "exposure": "exposure",
    "page_view": "page_view",
}


def _read_taobao(line: int, text: str, latest_ms: int) -> Iterator[Row | BadRow]:
    """Columns: user, item, category, behaviour, Unix seconds. No header."""
    fields = next(csv.reader([text]), [])
    if len(fields) != 5:
        yield BadRow(line, f"has {len(fields)} columns, expected 5: user, item, category, behaviour, seconds")
        return
    user, item, category, behaviour, seconds = (field.strip() for field in fields)
    yield _guarded(
        line,
        lambda: Row(
            line=line,
            user_id=_id(user, "user"),
            action=_action(behaviour, _TAOBAO),
            ts_ms=_time_ms(seconds, 1000, latest_ms),
            item_id=_id(item, "item"),
            title="",
            category=_id(category, "category"),
        ),
    )


def _read_otto(line: int, text: str, latest_ms: int) -> Iterator[Row | BadRow]:
    """One session a line: all events of one user. There are no categories, so each item is one of its own."""
    try:
        session = _object(text)
        user, events = _id(session.get("session"), "session"), session.get("events")
        if not isinstance(events, list):
            raise _RowError("'events' is not a list")
    except _RowError as error:
        yield BadRow(line, str(error))
        return
    for index, event in enumerate(events):
        found = _guarded(line, partial(_otto_event, line, user, event, latest_ms), f"event {index}: ")
        yield msgspec.structs.replace(found, position=index) if isinstance(found, Row) else found


def _otto_event(line: int, user: str, event: object, latest_ms: int) -> Row:
    if not isinstance(event, dict):
        raise _RowError("is not an object")
    item = _id(event.get("aid"), "aid")
    return Row(
        line=line,
        user_id=user,
        action=_action(event.get("type"), _OTTO),
        ts_ms=_time_ms(event.get("ts"), 1, latest_ms),
        item_id=item,
        title="",
        category=item,
    )


def _read_jsonl(line: int, text: str, latest_ms: int) -> Iterator[Row | BadRow]:
    """Events with their own titles and category lists."""
    yield _guarded(line, lambda: _jsonl_event(line, _object(text), latest_ms))


def _jsonl_event(line: int, event: Mapping[str, Any], latest_ms: int) -> Row:
    path = event.get("category_path") or []
    if not isinstance(path, list) or not all(isinstance(part, str) for part in path):
        raise _RowError("'category_path' is not a list of texts")
    title = event.get("title") or ""
    if not isinstance(title, str) or any("\ud800" <= character <= "\udfff" for character in title):
        raise _RowError(f"'title' is {title!r}, expected text without lone surrogates")
    dwell_s = _number(event.get("dwell_s"), "dwell_s")
    return Row(
        line=line,
        user_id=_id(event.get("user_id"), "user_id"),
        action=_action(event.get("type"), _JSONL),
        ts_ms=_time_ms(event.get("ts"), 1000, latest_ms),
        item_id="" if event.get("item_id") is None else _id(event["item_id"], "item_id"),
        title=title,
        category=".".join(part.replace(".", "·") for part in path),
        price_yuan=_number(event.get("price"), "price"),
        dwell_ms=None if dwell_s is None else int(dwell_s * 1000),
        made_up=event.get("title_is_made_up_for_this_item") is True,
    )


_READERS: Mapping[Format, Callable[[int, str, int], Iterator[Row | BadRow]]] = {
    "taobao-userbehaviour": _read_taobao,
    "otto": _read_otto,
    "events-jsonl": _read_jsonl,
}
_BARE: frozenset[Format] = frozenset({"taobao-userbehaviour", "otto"})  # ids only, no titles


def _guarded(line: int, make: Callable[[], Row], where: str = "") -> Row | BadRow:
    try:
        return make()
    except _RowError as error:
        return BadRow(line, f"{where}{error}")


def _dressed(row: Row | BadRow) -> Row | BadRow:
    if isinstance(row, BadRow):
        return row
    title, category, price_yuan = catalogue.dress_item(row.item_id, row.category)
    return msgspec.structs.replace(row, title=title, category=category, price_yuan=price_yuan, made_up=True)


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _RowError(f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _RowError("is not a JSON object")
    return value


def _id(value: object, name: str) -> str:
    """Ids are text; a number is only its digits."""
    if isinstance(value, bool) or not isinstance(value, int | str) or str(value).strip() == "":
        raise _RowError(f"{name} is {value!r}, expected an id")
    return str(value).strip()


def _action(value: object, known: Mapping[str, Action]) -> Action:
    if not isinstance(value, str) or value not in known:
        raise _RowError(f"behaviour {value!r} is none of {', '.join(known)}")
    return known[value]


def _time_ms(value: object, unit_ms: int, latest_ms: int) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        ts_ms = int(value) * unit_ms
    except ValueError:
        raise _RowError(f"time {value!r} is not a whole number") from None
    if not EARLIEST_MS <= ts_ms <= latest_ms:
        raise _RowError(f"time {ts_ms} ms is outside [{EARLIEST_MS}, {latest_ms}]: the clock was wrong")
    return ts_ms


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise _RowError(f"{name} is {value!r}, expected a number from 0 to 1e9")
    return float(value)
