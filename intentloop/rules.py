"""The rule engine: which intent do plain category counts suggest?

Three uses: it disagrees with the phone (a reason to label), it answers for the simulated teachers of the demo, and it
is the floor that any model must beat. It reads structured items, never text, so a title cannot talk to it.

Source: the decision guide in the published system prompt (`prompt.SYSTEM`, 判定参考); the shares are ours, so that one
stray item does not hide an intent.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from intentloop.events import SequenceItem
from intentloop.facts import IntentName


class IntentRule(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the categorised items of a sequence, in (0, 1]."""

    hesitate_share: float = 0.5
    hesitate_items: int = 2
    scene_share: float = 0.6
    scene_middles: int = 3
    max_keywords: int = 4


class RuledIntent(msgspec.Struct, frozen=True):
    """The rule engine's answer; `keywords` is empty for 闲逛."""

    intent: IntentName
    keywords: tuple[str, ...] = ()


def classify(items: Sequence[SequenceItem], rule: IntentRule) -> RuledIntent:
    """Which intent do the categories of this sequence suggest?

    A path has two levels or more; one name alone cannot tell a scene from a repeat. The same goods viewed and then put
    into the cart count once. Hesitating goes first: one full category that makes up at least `hesitate_share` of the
    items, seen `hesitate_items` times or more. Then a scene: one top category with at least `scene_share` of the items
    across `scene_middles` subcategories.
    """
    goods = dict.fromkeys([(item.title, item.category) for item in items if "." in item.category])
    if not goods:
        return RuledIntent("闲逛")
    categories = [category for _, category in goods]
    leaf, leaf_count = _commonest(categories)
    if leaf_count >= rule.hesitate_items and leaf_count / len(categories) >= rule.hesitate_share:
        return RuledIntent("比价犹豫", tuple(reversed(leaf.split(".")))[: rule.max_keywords])
    paths = [_path(category) for category in categories]
    top, top_count = _commonest([path[0] for path in paths])
    inside = [path for path in paths if path[0] == top]
    if top_count / len(paths) >= rule.scene_share and len({path[1] for path in inside}) >= rule.scene_middles:
        leaves = dict.fromkeys(path[-1] for path in inside)
        return RuledIntent("场景购物", (top, *leaves)[: rule.max_keywords])
    return RuledIntent("闲逛")


@lru_cache(maxsize=65_536)
def _path(category: str) -> tuple[str, ...]:
    return tuple(category.split("."))


def _commonest(names: Sequence[str]) -> tuple[str, int]:
    """Which name occurs most often, the first of them, and how often? `Counter` costs twice as much on a dozen."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    first = max(counts, key=counts.__getitem__)
    return first, counts[first]
