"""How is one field of a phone's event read, whatever an app version called it and however it wrote it?

Every reader returns the canonical value or raises ContractError with the value, the limit and what to send instead.
Not here: which fields an event has (`intake.py`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from intentloop.errors import ContractError
from intentloop.lenient_json import Numeral, clean

EARLIEST_MS = 1_262_304_000_000  # 2010-01-01: no phone that runs this app had a working clock before
MAX_SEQ = 2**53  # beyond it other languages round
MAX_DWELL_MS = 86_400_000  # nobody looks at one thing for more than a day
MAX_PRICE_YUAN = 1e9
MAX_ID = 128  # characters

_UNITS_PER_S = (1, 1_000, 1_000_000, 1_000_000_000)  # s, ms, µs, ns
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,9})?")
_PRICE = re.compile(r"\s*(?:[¥￥]|RMB|CNY)?\s*(\d{1,9}(?:\.\d{1,4})?)\s*(?:元|起|[-~].{0,20})?\s*", re.IGNORECASE)
_PATH = re.compile(r"\s*[>›/]\s*")


def first(tree: Mapping[str, object], names: Sequence[str]) -> tuple[str, object]:
    """Which of these names does the event use, and for what? The first that has a value; ("", None) if none has."""
    for name in names:
        value = tree.get(name)
        if value is not None and value != "":
            return name, value
    return "", None


def identifier(tree: Mapping[str, object], names: Sequence[str], notes: set[str]) -> str:
    """Which id is this? Numbers digit for digit as text."""
    name, value = first(tree, names)
    text = _as_text(name, value, notes)
    if len(text) > MAX_ID:
        raise ContractError(f"{name} has {len(text)} characters, the limit is {MAX_ID}")
    return text


def text(tree: Mapping[str, object], names: Sequence[str], limit: int, notes: set[str]) -> str:
    """Which text is this? Cut at `limit` characters, with a note."""
    result = _as_text(*first(tree, names), notes)
    if len(result) > limit:
        notes.add("text_cut")
        result = result[:limit]
    return result


def instant_ms(tree: Mapping[str, object], names: Sequence[str], latest_ms: int, notes: set[str]) -> int:
    """Which Unix millisecond is this? Seconds, ms, µs, ns or ISO 8601 with a zone; the unit is told by the size.

    The units cannot be confused: only one of them puts a number between 2010 and `latest_ms`.
    """
    name, value = first(tree, names)
    written = value.text if isinstance(value, Numeral) else value
    if not isinstance(written, str):
        raise ContractError(f"{names[0]} is {_shown(value)}; send Unix milliseconds")
    if not _NUMBER.fullmatch(written):
        notes.add("time_from_text")
        return _within(name, _iso_ms(name, written), latest_ms)
    whole, _, fraction = written.partition(".")
    for units in _UNITS_PER_S:
        ms = int(whole) * 1000 // units + (round(float(f"0.{fraction}") * 1000) if fraction and units == 1 else 0)
        if EARLIEST_MS <= ms <= latest_ms:
            if not (name.endswith("_ms") and units == 1_000):
                notes.add("time_unit_guessed")
            return ms
    raise ContractError(
        f"{name} {written[:40]} is before 2010 or in the far future in every unit from s to ns; send Unix milliseconds"
    )


def counting(tree: Mapping[str, object], names: Sequence[str]) -> int:
    """Which place in the phone's order is this? 0 when it is not said."""
    name, value = first(tree, names)
    number = _finite(name, value)
    if number is None:
        return 0
    if not number.is_integer() or not 0 <= number < MAX_SEQ:
        raise ContractError(f"{name} {number:g} is not a whole number from 0 to 2^53")
    return int(number)


def dwell_ms(tree: Mapping[str, object]) -> int | None:
    """How long did the shopper stay?"""
    name, value = first(tree, ("dwell_ms", "dwell_s", "dwell", "duration_ms", "duration_s"))
    number = _finite(name, value)
    if number is None:
        return None
    ms = number if name.endswith("_ms") else number * 1000
    if not 0 <= ms <= MAX_DWELL_MS:
        raise ContractError(f"{name} {number:g} is not between 0 and one day")
    return round(ms)


def price_yuan(tree: Mapping[str, object], notes: set[str]) -> float | None:
    """What does it cost? "¥5.46", "1,299元" and "9.9-19.9" (the lower end) are read, too."""
    name, value = first(tree, ("price_yuan", "price"))
    if isinstance(value, str):
        found = _PRICE.fullmatch(value.replace(",", "").replace("，", ""))
        if found is None:
            raise ContractError(f"{name} {_shown(value)} is not a price; send yuan as a number")
        notes.add("price_from_text")
        return float(found[1])
    number = _finite(name, value)
    if number is not None and not 0 <= number <= MAX_PRICE_YUAN:
        raise ContractError(f"{name} {number:g} is not between 0 and {MAX_PRICE_YUAN:g}")
    return number


def category(tree: Mapping[str, object], limit: int, notes: set[str]) -> str:
    """Which dotted path is this? Lists and paths with > or / become dots, broadest level first."""
    name, value = first(tree, ("category", "category_path", "categories", "cat", "category_id"))
    if isinstance(value, list):
        levels = [_as_text(name, level, notes).replace(".", "·") for level in value[:10]]
        notes.add("category_from_list")
        value = ".".join(level.strip() for level in levels if level.strip())
    path = _as_text(name, value, notes)
    if "." not in path:
        path = ".".join(level for level in _PATH.split(path) if level)
    if len(path) > limit:
        notes.add("text_cut")
        path = path[:limit]
    return path


def _as_text(name: str, value: object, notes: set[str]) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value, notes)
    if isinstance(value, Numeral) and value.text.lstrip("-")[:1].isdigit():
        notes.add("text_from_number")
        return value.text
    raise ContractError(f"{name} is {_shown(value)}; send text")


def _finite(name: str, value: object) -> float | None:
    if value is None:
        return None
    written = value.text if isinstance(value, Numeral) else value
    try:
        number = float(written) if isinstance(written, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ContractError(f"{name} {_shown(value)} is not a finite number")
    return number


def _iso_ms(name: str, written: str) -> int:
    try:
        moment = datetime.fromisoformat(written.strip())
    except ValueError:
        raise ContractError(f"{name} {_shown(written)} is no time; send Unix milliseconds") from None
    if moment.tzinfo is None:
        raise ContractError(f"{name} {_shown(written)} has no time zone; send Unix milliseconds")
    return round(moment.timestamp() * 1000)


def _within(name: str, ms: int, latest_ms: int) -> int:
    if not EARLIEST_MS <= ms <= latest_ms:
        raise ContractError(f"{name} is before 2010 or in the far future; send Unix milliseconds")
    return ms


def _shown(value: object) -> str:
    """Short and without what a log must not hold: control characters."""
    if isinstance(value, Numeral):
        return value.text[:40]
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    return ascii(value)[:40] if isinstance(value, str) else f"a {type(value).__name__}"
