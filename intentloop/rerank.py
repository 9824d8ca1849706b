"""In which order should a feed's cards stand, now that we know what the shopper is after?

Unexposed cards are sorted by how well they fit the live intent's keywords; exposed ones never move, since a card that
jumps under a finger is worse than a poor order. Equal fits keep the recommender's order. No intent, no change.
"""

from collections.abc import Sequence

import msgspec

from intentloop.facts import IntentName

CATEGORY_WEIGHT = 2  # a keyword that names a level of the category says more than one that is part of a title
TITLE_WEIGHT = 1


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a feed; `category` is a dotted path. `exposed`: the shopper has seen it where it is."""

    id: str
    title: str = ""
    category: str = ""
    exposed: bool = False


class LiveIntent(msgspec.Struct, frozen=True, kw_only=True):
    """What a shopper is after now, by the phone's model; it means nothing after `expires_at_ms`."""

    intent: IntentName
    keywords: tuple[str, ...]
    expires_at_ms: int


def rerank(cards: Sequence[Card], live: LiveIntent | None, now_ms: int) -> tuple[Card, ...]:
    """In which order should these cards stand?"""
    if live is None or live.intent == "闲逛" or live.expires_at_ms <= now_ms:
        return tuple(cards)
    keywords = tuple(keyword.casefold() for keyword in live.keywords if keyword)
    unexposed = (card for card in cards if not card.exposed)
    ranked = iter(sorted(unexposed, key=lambda card: -fit(card, keywords)))  # stable
    return tuple(card if card.exposed else next(ranked) for card in cards)


def fit(card: Card, keywords: Sequence[str]) -> int:
    """How well does a card fit these keywords (casefolded)? 0 for not at all."""
    title, levels = card.title.casefold(), card.category.casefold().split(".")
    return sum(CATEGORY_WEIGHT * (keyword in levels) + TITLE_WEIGHT * (keyword in title) for keyword in keywords)
