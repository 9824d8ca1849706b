"""Three public formats become behaviours; a row that means nothing is set aside with its line and reason."""

import json

import pytest

from demo.visits import IDLE_MS, cut
from intentloop.readers import BadRow, Format, Row, read

LATEST_MS = 1_796_032_800_000

TAOBAO = """1,2268318,2520377,pv,1511544070
1,2333346,2520771,buy,1511561733
1,2576651,149192,pv
1,2576651,149192,stare,1511572885
1,3830808,2520377,cart,later
1,3830808,2520377,fav,99999999999

1,3830808,2520377,fav,1511593493
"""


def rows(name: Format, text: str) -> list[Row | BadRow]:
    return list(read(name, text.splitlines(keepends=True), LATEST_MS))


def good(name: Format, text: str) -> list[Row]:
    return [row for row in rows(name, text) if isinstance(row, Row)]


def bad(name: Format, text: str) -> list[BadRow]:
    return [row for row in rows(name, text) if isinstance(row, BadRow)]


def test_taobao_rows_become_behaviours_in_their_order() -> None:
    found = good("taobao-userbehaviour", TAOBAO)
    assert [(row.line, row.user_id, row.action, row.ts_ms) for row in found] == [
        (1, "1", "item_view", 1_511_544_070_000),
        (2, "1", "purchase", 1_511_561_733_000),
        (8, "1", "favourite", 1_511_593_493_000),
    ]


def test_numeric_ids_are_dressed_the_same_way_every_time_and_one_category_stays_one() -> None:
    found = good("taobao-userbehaviour", TAOBAO)
    assert found == good("taobao-userbehaviour", TAOBAO)
    assert found[0].category == found[2].category
    assert found[0].category.count(".") == 2
    assert found[0].title.endswith(found[0].category.rsplit(".", 1)[-1])
    assert found[0].price_yuan is not None
    assert all(row.made_up for row in found)


@pytest.mark.parametrize(
    ("line", "reason"), [(3, "4 columns"), (4, "'stare'"), (5, "'later'"), (6, "the clock was wrong")]
)
def test_a_bad_row_is_named_by_line_and_reason_and_its_neighbours_go_on(line: int, reason: str) -> None:
    found = {row.line: row.reason for row in bad("taobao-userbehaviour", TAOBAO)}
    assert set(found) == {3, 4, 5, 6}
    assert reason in found[line]


def test_an_otto_session_is_one_user_and_a_bad_event_in_it_costs_only_itself() -> None:
    events = [
        {"aid": 15, "ts": 1_659_304_800_025, "type": "clicks"},
        {"aid": 15, "ts": 1_659_304_904_511, "type": "wishes"},
        {"aid": 16, "ts": 1_659_304_904_511, "type": "carts"},
        {"aid": 16, "ts": 1_659_304_904_511, "type": "orders"},
    ]
    text = json.dumps({"session": 0, "events": events}) + "\n" + '{"session": 1, "events": 5}\n' + "{\n"
    found = good("otto", text)
    assert [(row.user_id, row.position, row.action) for row in found] == [
        ("0", 0, "item_view"),
        ("0", 2, "cart"),
        ("0", 3, "purchase"),
    ]
    reasons = [(row.line, row.reason) for row in bad("otto", text)]
    assert reasons[0][0] == 1
    assert reasons[0][1].startswith("event 1: behaviour 'wishes'")
    assert [line for line, _ in reasons] == [1, 2, 3]


def test_events_keep_their_own_titles_and_category_lists() -> None:
    event = {
        "user_id": "7",
        "ts": 1_511_544_070,
        "type": "item_detail",
        "item_id": 12,
        "title": "帐篷|便携；双人",
        "category_path": ["户外", "露营用品", "帐篷 2.0"],
        "price": None,
        "dwell_s": 157,
    }
    found = good("events-jsonl", json.dumps(event))
    assert found == [
        Row(
            line=1,
            user_id="7",
            action="item_view",
            ts_ms=1_511_544_070_000,
            item_id="12",
            title="帐篷|便携；双人",
            category="户外.露营用品.帐篷 2·0",
            dwell_ms=157_000,
        )
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"user_id": None},
        {"user_id": True},
        {"type": ["item_detail"]},
        {"ts": 1.5},
        {"ts": 1827},
        {"title": 5},
        {"title": "\ud83d"},
        {"category_path": "户外"},
        {"category_path": [1]},
        {"price": -1},
        {"dwell_s": "abc"},
    ],
)
def test_an_event_with_one_wrong_field_is_set_aside(change: dict[str, object]) -> None:
    event = {"user_id": "7", "ts": 1_511_544_070, "type": "item_detail", "title": "帐篷"}
    assert len(good("events-jsonl", json.dumps(event))) == 1
    assert len(bad("events-jsonl", json.dumps({**event, **change}))) == 1


def _at(user: str, *seconds: int) -> list[Row]:
    return [
        Row(
            line=number,
            user_id=user,
            action="item_view",
            ts_ms=1_511_544_000_000 + at * 1000,
            item_id="1",
            title="",
            category="",
        )
        for number, at in enumerate(seconds, start=1)
    ]


def test_a_pause_of_more_than_half_an_hour_ends_a_visit() -> None:
    visits = cut(_at("a", 0, 1800, 3601, 3602))
    assert [[row.line for row in visit.rows] for visit in visits] == [[1, 2], [3, 4]]
    assert IDLE_MS == 1800 * 1000


def test_visits_of_users_mix_by_time_while_each_users_order_is_kept_even_where_a_clock_went_back() -> None:
    visits = cut([*_at("a", 0, 10_000, 4_000), *_at("b", 5_000)])
    assert [(visit.user_id, visit.rows[0].line) for visit in visits] == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]
