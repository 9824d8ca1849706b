"""How do shoppers behave? Sessions with a known intent, in the shape of real ones.

Calibrated on the public Taobao sample (4,321 events of 43 users, cut at 30 idle minutes): shares of views,
carts, favourites and purchases 0.909, 0.044, 0.030, 0.018; gaps within a session log-normal with mean ln 50 s and
deviation 1.4 (median 47 s there). Around each telling action lies noise (exposures, page views): RecGPT-Mobile V2.

A `mixed` session carries stray items of other categories, or for 闲逛 a chance repeat: the kind of behaviour that
the first model, trained on clean sessions, does not know. Randomness comes in as an argument, so a seed is a world.
"""

import math
from random import Random

import msgspec

from intentloop import catalogue
from intentloop.events import Action
from intentloop.facts import IntentName


class Step(msgspec.Struct, frozen=True):
    """One action of a session; `gap_ms` is the time since the action before."""

    action: Action
    item_id: str
    title: str
    category: str
    price_yuan: float | None
    dwell_ms: int
    gap_ms: int


class Session(msgspec.Struct, frozen=True):
    """What a shopper did and what they were really after."""

    steps: tuple[Step, ...]
    intent: IntentName
    mixed: bool


class ShopperRule(msgspec.Struct, frozen=True, kw_only=True):
    """`intents` are the shares of 闲逛, 比价犹豫 and 场景购物; `mixed_ratio` of sessions are of the unfamiliar kind.

    `noise_ratio` is the mean number of meaningless events around each telling one.
    """

    intents: tuple[float, float, float] = (0.78, 0.15, 0.07)
    mixed_ratio: float = 0.5
    noise_ratio: float = 1.0


NAMES: tuple[IntentName, IntentName, IntentName] = ("闲逛", "比价犹豫", "场景购物")


def session(random: Random, rule: ShopperRule) -> Session:
    """What does one shopper do in one visit?"""
    intent = random.choices(NAMES, rule.intents)[0]
    mixed = random.random() < rule.mixed_ratio
    leaves = _PLANS[intent](random, mixed)
    steps: list[Step] = []
    if intent != "闲逛" and random.random() < 0.3:
        steps.append(_search(random, leaves[0][2] if intent == "比价犹豫" else leaves[0][0]))
    for leaf in leaves:
        steps.extend(_noise(random, rule.noise_ratio))
        steps.append(_item(random, leaf, "item_view"))
        follow_up = random.random()
        if follow_up < 0.092:  # 0.044 + 0.030 + 0.018 of all actions follow a view
            action: Action = "cart" if follow_up < 0.044 else "favourite" if follow_up < 0.074 else "purchase"
            steps.append(msgspec.structs.replace(steps[-1], action=action, dwell_ms=0, gap_ms=_gap_ms(random)))
    return Session(tuple(steps), intent, mixed)


Leaf = tuple[str, str, str]


def _browse(random: Random, mixed: bool) -> list[Leaf]:
    tops = random.sample(list(catalogue.TREE), random.randint(4, 5) if mixed else random.randint(3, 5))
    leaves = [_leaf_of(random, top) for top in tops]
    if mixed:
        leaves.insert(random.randint(1, len(leaves)), leaves[random.randrange(len(leaves))])
    return leaves


def _hesitate(random: Random, mixed: bool) -> list[Leaf]:
    leaf = random.choice(catalogue.LEAVES)
    return _stray(random, [leaf] * random.randint(3, 5), mixed)


def _scene(random: Random, mixed: bool) -> list[Leaf]:
    top = random.choice(list(catalogue.TREE))
    middles = random.sample(list(catalogue.TREE[top]), random.randint(3, 4))
    return _stray(random, [(top, middle, random.choice(catalogue.TREE[top][middle])) for middle in middles], mixed)


_PLANS = {"闲逛": _browse, "比价犹豫": _hesitate, "场景购物": _scene}


def _stray(random: Random, leaves: list[Leaf], mixed: bool) -> list[Leaf]:
    """Put one or two items of other top categories between the planned ones, never so many that the intent is lost."""
    if not mixed:
        return leaves
    home = leaves[0][0]
    strays = random.randint(1, 2)
    for top in random.sample([top for top in catalogue.TREE if top != home], strays):
        leaves.insert(random.randint(1, len(leaves) - 1), _leaf_of(random, top))
    return leaves


def _leaf_of(random: Random, top: str) -> Leaf:
    middle = random.choice(list(catalogue.TREE[top]))
    return top, middle, random.choice(catalogue.TREE[top][middle])


def _item(random: Random, leaf: Leaf, action: Action) -> Step:
    brand, epithet = random.choice(catalogue.BRANDS), random.choice(catalogue.EPITHETS)
    price = random.choice(catalogue.PRICES_YUAN)
    title = f"{brand}{epithet}{leaf[2]}"
    item_id = (
        f"{catalogue.LEAVES.index(leaf):03d}{catalogue.BRANDS.index(brand):02d}{catalogue.EPITHETS.index(epithet):02d}"
    )
    return Step(action, item_id, title, catalogue.path(*leaf), price, random.randint(2, 120) * 1000, _gap_ms(random))


def _search(random: Random, query: str) -> Step:
    return Step("search", "", query, "", None, 0, _gap_ms(random))


def _noise(random: Random, ratio: float) -> list[Step]:
    count = 0
    while random.random() < ratio / (1 + ratio) and count < 8:
        count += 1
    return [
        Step(random.choice(("exposure", "page_view", "ui")), "", "", "", None, 0, _gap_ms(random) // 8)
        for _ in range(count)
    ]


def _gap_ms(random: Random) -> int:
    return int(min(600.0, max(1.0, math.exp(random.gauss(math.log(50), 1.4)))) * 1000)
