"""How is JSON read that a strict parser refuses? Numbers digit for digit, lone surrogates, NaN: seen, then judged.

The slow way in, for the few bodies and events that the strict decoders refuse. It only reads; `intake.py` decides what
may stay. Nothing here rounds a number or invents a character other than U+FFFD.
"""

import json
import math
import re

import msgspec

from intentloop.errors import ContractError

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER = re.compile(r"-?\d{1,18}")


class Numeral(msgspec.Struct, frozen=True):
    """A JSON number, or NaN and Infinity, as the characters that were sent: a 64-bit id must not become a float."""

    text: str


def parse(raw: bytes) -> object:
    """Which tree do these bytes hold? Numbers are `Numeral`; bytes that are not UTF-8 become U+FFFD.

    Raises:
        ContractError: not JSON, or nested deeper than the interpreter allows.
    """
    text = raw.decode("utf-8-sig", "replace")
    try:
        return json.loads(text, parse_int=Numeral, parse_float=Numeral, parse_constant=Numeral)
    except RecursionError:
        raise ContractError("the JSON is nested too deeply; the wire format has five levels") from None
    except ValueError as error:
        raise ContractError(f"not JSON: {error}") from None


def clean(text: str, notes: set[str]) -> str:
    """Which text may be stored? Without NUL, and with U+FFFD for halves of surrogate pairs; `notes` learns of both."""
    if "\x00" in text:
        notes.add("nul_removed")
        text = text.replace("\x00", "")
    if _SURROGATE.search(text):
        notes.add("surrogate_replaced")
        text = _SURROGATE.sub(REPLACEMENT, text)
    return text


def number(numeral: Numeral) -> int | float:
    """Which number is this?

    Raises:
        ContractError: NaN, an infinity, or beyond what a double holds.
    """
    if _INTEGER.fullmatch(numeral.text):
        return int(numeral.text)
    value = float(numeral.text)
    if not math.isfinite(value):
        raise ContractError(f"{numeral.text[:40]} is not a finite number; leave the field out instead")
    return value


def plain(tree: object, notes: set[str]) -> object:
    """Which plain values does this tree hold? Texts cleaned, numerals as numbers.

    Raises:
        ContractError: a number is not finite.
    """
    if isinstance(tree, str):
        return clean(tree, notes)
    if isinstance(tree, Numeral):
        return number(tree)
    if isinstance(tree, list):
        return [plain(item, notes) for item in tree]
    if isinstance(tree, dict):
        return {clean(key, notes): plain(value, notes) for key, value in tree.items()}
    return tree


def rendered(tree: object) -> str:
    """How does this tree look to a person? JSON in which numerals are texts; empty if nested too deeply.

    For excerpts, never to be read again.
    """
    try:
        return clean(json.dumps(tree, ensure_ascii=False, default=lambda numeral: numeral.text), set())
    except RecursionError:
        return ""
