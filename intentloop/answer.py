"""What did a model really say? An intent with keywords, or a named fault; a fault is never read as 闲逛.

Reads phones' and teachers' replies alike: `闲逛`, `比价犹豫|k1;k2`, full-width and traditional forms, thinking in
front, JSON with or without a fence. Whether keywords occur in the behaviour is checked by `ground`.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from intentloop.facts import IntentName

FaultKind = Literal["unknown", "degenerate", "format", "ungrounded"]


class Answer(msgspec.Struct, frozen=True):
    """A reply that means something. `repaired` tells that the text had to be mended to be read."""

    intent: IntentName
    keywords: tuple[str, ...] = ()
    repaired: bool = False


class AnswerFault(msgspec.Struct, frozen=True):
    """A reply that means nothing, and why."""

    kind: FaultKind
    detail: str


LOOP_WORDS = 8  # keywords of which half are repeats come from a model in a loop; three to six are asked for

_NAMES: dict[str, IntentName] = {
    "闲逛": "闲逛",
    "閒逛": "闲逛",
    "閑逛": "闲逛",
    "比价犹豫": "比价犹豫",
    "比價猶豫": "比价犹豫",
    "场景购物": "场景购物",
    "場景購物": "场景购物",
}
_SEPARATORS = re.compile(r"[;；,，、]")
_PREFIX = re.compile(r"^(?:用户)?(?:购买)?意图\s*[:：]\s*")
_FENCE = re.compile(r"```[A-Za-z]*\s*(.*?)```", re.DOTALL)
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


def parse(raw: str, simplify: Callable[[str], str] = str) -> Answer | AnswerFault:
    """Which intent and keywords does this reply name?

    Args:
        raw: The whole reply as it came.
        simplify: Maps traditional characters to simplified ones; identity where the caller has no table.
    """
    text = raw.rsplit("</think>", 1)[-1].strip().removesuffix("<|im_end|>").strip()
    if text.startswith("<think>"):
        return AnswerFault("format", "the thinking never ended")
    if "\ufffd" in text:
        return AnswerFault("format", "holds U+FFFD: bytes were lost on the way")
    if is_degenerate(text):
        return AnswerFault("degenerate", f"{len(text)} characters of {len(set(text))} kinds")
    fenced = _FENCE.search(text) if "```" in text else None
    inner = fenced.group(1).strip() if fenced else text
    found = _OBJECT.search(inner) if "{" in inner else None
    if found and (inner.startswith("{") or '"intent"' in inner):  # a keyword may hold braces, too
        return _parse_object(found.group(0), simplify)
    return _parse_line(inner, simplify)


def is_degenerate(text: str) -> bool:
    """Is this the output of a broken model? Nothing that is read, or one short unit repeated, such as `哈哈哈哈`."""
    if len(text) >= 4 and text == text[0] * len(text):
        return True
    if len(text) >= 8 and any(text[unit:] == text[:-unit] for unit in (2, 3, 4)):
        return True
    return not any(map(str.isalnum, text))


def ground(answer: Answer, evidence: str) -> Answer | AnswerFault:
    """Does every keyword occur in what the shopper did?

    Args:
        evidence: Titles and categories (`prompt.evidence`); words of the template prove nothing.
    """
    missing = [keyword for keyword in answer.keywords if keyword not in evidence]
    if missing:
        return AnswerFault("ungrounded", f"{missing[0]!r} is in no title or category")
    return answer


def keep_grounded(answer: Answer, evidence: str) -> Answer | AnswerFault:
    """Which of the keywords may be kept? Those that occur in what was read; at least one must.

    A mended reply is trusted less: there every keyword must occur, since mending may have cut one in two.
    """
    if answer.repaired or answer.intent == "闲逛":
        return ground(answer, evidence)
    kept = tuple(keyword for keyword in answer.keywords if keyword in evidence)
    if not kept:
        return AnswerFault("ungrounded", f"none of {len(answer.keywords)} keywords is in a title or category")
    return Answer(answer.intent, kept, answer.repaired)


def _parse_line(line: str, simplify: Callable[[str], str]) -> Answer | AnswerFault:
    line = _PREFIX.sub("", line)
    name, bar, rest = line.replace("｜", "|").partition("|")
    return _build(name.strip(), _SEPARATORS.split(rest) if bar else (), simplify, repaired=False)


def _parse_object(text: str, simplify: Callable[[str], str]) -> Answer | AnswerFault:
    repaired = False
    try:
        value = json.loads(text)
    except RecursionError:
        return AnswerFault("format", "JSON nested too deeply")
    except ValueError:
        value, repaired = _mend_object(text), True
    if not isinstance(value, dict) or not isinstance(value.get("intent"), str):
        return AnswerFault("format", "JSON without a text field 'intent'")
    keywords = value.get("keywords") or []
    if not isinstance(keywords, list) or not all(isinstance(keyword, str) for keyword in keywords):
        return AnswerFault("format", "'keywords' is not a list of texts")
    return _build(value["intent"].strip(), keywords, simplify, repaired)


def _mend_object(text: str) -> object:
    """Read `{"intent":"…","keywords":["…","…"]}` although a value holds bare quotes: split on the outer marks only."""
    intent = re.search(r'"intent"\s*:\s*"([^"]*)"', text)
    keywords = re.search(r'"keywords"\s*:\s*\[\s*"(.*)"\s*\]', text, re.DOTALL)
    if intent is None:
        return None
    return {"intent": intent.group(1), "keywords": re.split(r'"\s*,\s*"', keywords.group(1)) if keywords else []}


def _build(name: str, keywords: Sequence[str], simplify: Callable[[str], str], repaired: bool) -> Answer | AnswerFault:
    intent = _NAMES.get(name) or _NAMES.get(simplify(name))
    if intent is None:
        return AnswerFault("unknown", f"{name[:40]!r} is none of the three intents")
    given = [word for word in (simplify(keyword).strip() for keyword in keywords) if word]
    words = tuple(dict.fromkeys(given))
    if len(given) >= LOOP_WORDS and len(given) >= 2 * len(words):
        return AnswerFault("degenerate", f"{len(given)} keywords of {len(words)} kinds")
    if intent == "闲逛" and words:
        return AnswerFault("format", f"闲逛 takes no keywords, got {len(words)}")
    if intent != "闲逛" and not words:
        return AnswerFault("format", f"{intent} without keywords")
    return Answer(intent, words, repaired)
