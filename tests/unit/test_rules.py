"""The rule engine and the shoppers agree on what an intent is."""

from random import Random

import pytest

from intentloop import compress, rules, shoppers
from intentloop.events import Behaviour, SequenceItem

RULE = rules.IntentRule()


def view(category: str, title: str = "") -> SequenceItem:
    return SequenceItem(action="item_view", title=title or category, category=category)


def test_one_full_category_repeated_is_hesitating() -> None:
    items = [view("户外.露营.帐篷", "甲"), view("户外.露营.帐篷", "乙"), view("户外.露营.帐篷", "丙")]
    assert rules.classify(items, RULE) == rules.RuledIntent("比价犹豫", ("帐篷", "露营", "户外"))


def test_one_top_category_across_subcategories_is_a_scene() -> None:
    items = [view("户外.露营.帐篷"), view("户外.钓鱼.鱼竿"), view("户外.骑行.头盔")]
    assert rules.classify(items, RULE) == rules.RuledIntent("场景购物", ("户外", "帐篷", "鱼竿", "头盔"))


def test_unrelated_top_categories_are_browsing() -> None:
    assert (
        rules.classify([view("户外.露营.帐篷"), view("食品.零食.坚果"), view("数码.手机.数据线")], RULE).intent
        == "闲逛"
    )


def test_a_shop_with_two_levels_is_read_as_well() -> None:
    chairs = [view("大百货.电脑椅", "甲"), view("大百货.电脑椅", "乙"), view("美妆.隔离")]
    assert rules.classify(chairs, RULE) == rules.RuledIntent("比价犹豫", ("电脑椅", "大百货"))
    rooms = [view("大百货.电脑椅"), view("大百货.乳胶枕"), view("大百货.羽绒被")]
    assert rules.classify(rooms, RULE) == rules.RuledIntent("场景购物", ("大百货", "电脑椅", "乳胶枕", "羽绒被"))


def test_a_category_of_one_level_says_nothing() -> None:
    assert rules.classify([view("帐篷", "甲"), view("帐篷", "乙")], RULE) == rules.RuledIntent("闲逛")


def test_nothing_with_a_category_is_browsing() -> None:
    assert rules.classify([SequenceItem(action="search", title="帐篷")], RULE) == rules.RuledIntent("闲逛")


def test_goods_viewed_and_then_put_into_the_cart_count_once() -> None:
    tent = view("户外.露营.帐篷", "甲")
    cart = SequenceItem(action="cart", title="甲", category="户外.露营.帐篷")
    assert rules.classify([tent, cart, view("户外.钓鱼.鱼竿"), view("户外.骑行.头盔")], RULE).intent == "场景购物"


def test_a_title_that_names_an_intent_changes_nothing() -> None:
    items = [view("户外.露营.帐篷", "比价犹豫|帐篷"), view("食品.零食.坚果", "场景购物"), view("数码.手机.数据线")]
    assert rules.classify(items, RULE).intent == "闲逛"


@pytest.mark.parametrize("mixed_ratio", [0.0, 1.0])
def test_the_rule_engine_sees_what_a_shopper_set_out_to_do(mixed_ratio: float) -> None:
    random = Random(7)
    rule = shoppers.ShopperRule(intents=(1, 1, 1), mixed_ratio=mixed_ratio)
    agreed = 0
    for number in range(600):
        session = shoppers.session(random, rule)
        items = compress.compress(behaviours(session, number), compress.CompressRule())
        agreed += rules.classify(items, RULE).intent == session.intent
    assert agreed / 600 > 0.99


def test_the_same_seed_is_the_same_world() -> None:
    rule = shoppers.ShopperRule()
    first, second, other = Random(3), Random(3), Random(4)
    sessions = [shoppers.session(first, rule) for _ in range(20)]
    assert sessions == [shoppers.session(second, rule) for _ in range(20)]
    assert sessions != [shoppers.session(other, rule) for _ in range(20)]


def test_shares_of_actions_follow_the_real_sample() -> None:
    random = Random(11)
    rule = shoppers.ShopperRule(noise_ratio=0.0)
    actions = [step.action for _ in range(4000) for step in shoppers.session(random, rule).steps]
    telling = [action for action in actions if action != "search"]
    assert telling.count("item_view") / len(telling) == pytest.approx(0.909, abs=0.02)
    assert telling.count("cart") / len(telling) == pytest.approx(0.044, abs=0.01)


def behaviours(session: shoppers.Session, number: int) -> list[Behaviour]:
    now_ms, result = 1_796_000_000_000, []
    for index, step in enumerate(session.steps):
        now_ms += step.gap_ms
        result.append(
            Behaviour(
                event_id=f"{number}-{index}",
                action=step.action,
                ts_ms=now_ms,
                item_id=step.item_id,
                title=step.title,
                category=step.category,
                price_yuan=step.price_yuan,
                dwell_ms=step.dwell_ms,
            )
        )
    return result
