"""What does a simulated teacher answer? The rule engine over the categories it reads, wrong now and then, by seed.

Simulated teachers stand in for large models where there is no network. They see what a real one would see, the chat
message with the behaviour sequence in it, and nothing else. Not here: HTTP (`teachers.py`).
"""

import re
from collections.abc import Sequence

import msgspec

from intentloop import rules
from intentloop.events import SequenceItem
from intentloop.ids import bucket
from intentloop.prompt import answer_text


class TeacherRule(msgspec.Struct, frozen=True, kw_only=True):
    """`noise_ratio` of all sequences get a wrong intent, the same ones for ever for one `seed`."""

    seed: int = 1
    noise_ratio: float = 0.05
    intents: rules.IntentRule = msgspec.field(default_factory=rules.IntentRule)


_ITEM = re.compile(r"^(?P<page>[^()]{1,8})\((?P<body>.*)\)$", re.DOTALL)
_CATEGORY = re.compile(r"(?:^|,)cat:(?P<path>[^,]+)(?:,\d+s)?$")


def items_in(sequence: str) -> tuple[SequenceItem, ...]:
    """Which items does this sequence text name? Only what the rule engine needs: title and category."""
    found: list[SequenceItem] = []
    for part in sequence.removeprefix("【行为序列】").split(" → "):
        item = _ITEM.match(part.strip())
        category = _CATEGORY.search(item["body"]) if item else None
        if item and category:
            title = item["body"][: category.start()]
            found.append(SequenceItem(action="item_view", title=title, category=category["path"]))
    return tuple(found)


def label(sequence: str, rule: TeacherRule) -> str:
    """Which answer does the teacher give for this sequence?"""
    items = items_in(sequence)
    ruled = rules.classify(items, rule.intents)
    if bucket(sequence, f"noise-{rule.seed}") < rule.noise_ratio:
        ruled = _mistake(items, ruled, bucket(sequence, f"mistake-{rule.seed}"))
    return answer_text(ruled.intent, ruled.keywords)


def judge(sequence: str, keywords: Sequence[str], rule: TeacherRule) -> int:
    """How good are these keywords, from 0 (useless) to 3? Good is what the rule engine would name."""
    present = [keyword for keyword in keywords if keyword in sequence]
    if not present or len(present) < len(keywords):
        return 1 if present else 0
    expected = rules.classify(items_in(sequence), rule.intents).keywords
    shared = len(set(expected) & set(keywords))
    return 3 if expected and shared * 2 >= len(expected) else 2


def _mistake(items: Sequence[SequenceItem], ruled: rules.RuledIntent, where: float) -> rules.RuledIntent:
    """Which wrong intent does a hasty labeller choose? Its keywords still occur in the sequence."""
    paths = [item.category.split(".") for item in items]
    others = [name for name in ("闲逛", "比价犹豫", "场景购物") if name != ruled.intent]
    chosen = others[int(where * len(others))]
    if chosen == "闲逛" or not paths:
        return rules.RuledIntent("闲逛")
    last = paths[-1]
    if chosen == "比价犹豫":
        return rules.RuledIntent("比价犹豫", (last[-1], last[0]))
    return rules.RuledIntent("场景购物", (last[0], *dict.fromkeys(path[-1] for path in paths))[:4])
