"""A feed follows the shopper's intent, and never moves what the shopper has seen."""

from hypothesis import given
from hypothesis import strategies as st

from intentloop.rerank import Card, LiveIntent, fit, rerank

NOW_MS = 1_000


def live(*keywords: str, expires_at_ms: int = 2_000) -> LiveIntent:
    return LiveIntent(intent="比价犹豫", keywords=keywords, expires_at_ms=expires_at_ms)


def cards(*titles: str, exposed: str = "") -> list[Card]:
    return [Card(id=title, title=title, exposed=title in exposed) for title in titles]


def order(found: tuple[Card, ...]) -> str:
    return "".join(card.id for card in found)


def test_what_fits_goes_first_and_the_rest_keeps_its_order() -> None:
    feed = [Card(id="a", title="咖啡"), Card(id="b", title="大米"), Card(id="c", title="美的空调遥控器")]
    assert order(rerank(feed, live("遥控器"), NOW_MS)) == "cab"


def test_a_level_of_the_category_weighs_more_than_a_word_of_the_title() -> None:
    title, level = Card(id="t", title="帐篷灯"), Card(id="l", title="三人款", category="户外.露营.帐篷")
    assert (fit(title, ["帐篷"]), fit(level, ["帐篷"]), fit(level, ["露"])) == (1, 2, 0)
    assert order(rerank([title, level], live("帐篷"), NOW_MS)) == "lt"


def test_an_exposed_card_stays_where_it_is() -> None:
    feed = cards("A", "B", "C", "D", exposed="AC")
    assert order(rerank(feed, live("d"), NOW_MS)) == "ADCB"


def test_no_intent_an_old_one_or_browsing_changes_nothing() -> None:
    feed = cards("A", "B")
    browsing = LiveIntent(intent="闲逛", keywords=("b",), expires_at_ms=2_000)
    for intent in (None, live("b", expires_at_ms=NOW_MS), browsing, live(), live("")):
        assert rerank(feed, intent, NOW_MS) == tuple(feed)
    assert order(rerank(feed, live("b"), NOW_MS)) == "BA"


_CARDS = st.lists(
    st.builds(Card, id=st.text("xy", max_size=3), title=st.text("空调ab", max_size=4), exposed=st.booleans()),
    max_size=12,
)


@given(_CARDS, st.lists(st.text("空调ab", max_size=2), max_size=3))
def test_no_card_is_lost_added_or_moved_when_exposed(feed: list[Card], keywords: list[str]) -> None:
    found = rerank(feed, live(*keywords), NOW_MS)
    key = str
    assert sorted(found, key=key) == sorted(feed, key=key)
    assert [card if card.exposed else None for card in found] == [card if card.exposed else None for card in feed]
    fits = [fit(card, [keyword for keyword in keywords if keyword]) for card in found if not card.exposed]
    assert fits == sorted(fits, reverse=True)
