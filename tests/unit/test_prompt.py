"""The template: same bytes everywhere, and no title that can break out of it."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intentloop import prompt
from intentloop.events import SequenceItem

TENT = SequenceItem(action="item_view", title="便携帐篷", category="户外.露营.帐篷", price_yuan=199.0, dwell_s=66)
TITLES_HARD = Path(__file__).resolve().parents[3] / "shared" / "data" / "derived" / "titles_hard.jsonl"


def test_an_item_reads_as_the_published_example_does() -> None:
    assert prompt.item_text(TENT) == "商详页(便携帐篷,¥199,cat:户外.露营.帐篷,66s)"


def test_what_is_unknown_is_left_out() -> None:
    assert prompt.item_text(SequenceItem(action="search", title="帐篷")) == "搜索(帐篷)"


def test_a_sequence_joins_items_oldest_first() -> None:
    items = (SequenceItem(action="search", title="帐篷"), TENT)
    assert prompt.sequence_text(items) == "【行为序列】搜索(帐篷) → 商详页(便携帐篷,¥199,cat:户外.露营.帐篷,66s)"


def test_the_rendered_prompt_is_qwens_markup_with_thinking_off() -> None:
    assert prompt.render("x", system="s") == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_released_models_know_these_bytes() -> None:
    assert (prompt.VERSION, prompt.digest("")) == ("p1", "6713f95a95549787fa81d9c3ad47037a"), (
        "another text, another name"
    )


def test_every_prompt_begins_with_the_opening() -> None:
    assert prompt.render("x").startswith(prompt.opening() + "x")
    assert prompt.render("x", "s").startswith(prompt.opening("s") + "x")


def test_an_answer_without_keywords_is_the_intent_alone() -> None:
    assert prompt.answer_text("闲逛", ()) == "闲逛"
    assert prompt.answer_text("比价犹豫", ("帐篷", "露营")) == "比价犹豫|帐篷;露营"


def test_the_digest_tells_one_template_from_another() -> None:
    assert prompt.digest("x") == prompt.digest("x")
    assert prompt.digest("x") != prompt.digest("x", system="other")
    assert prompt.digest("x") != prompt.digest("y")


@given(st.text())
def test_no_title_can_end_the_turn_open_a_thought_or_add_a_behaviour(title: str) -> None:
    sequence = prompt.sequence_text((SequenceItem(action="item_view", title=title), TENT))
    assert sequence.count(" → ") == 1
    assert sequence.count("【行为序列】") == 1
    assert "<" not in sequence
    assert "\n" not in sequence


@pytest.mark.skipif(not TITLES_HARD.exists(), reason="the real titles of ../shared are not here")
def test_real_titles_that_break_naive_formats_stay_data() -> None:
    titles = [json.loads(line)["text"] for line in TITLES_HARD.read_text(encoding="utf-8").splitlines()]
    assert len(titles) > 500
    for title in titles:
        text = prompt.sequence_text((SequenceItem(action="item_view", title=title), TENT))
        assert text.split(" → ")[1] == prompt.item_text(TENT)


@given(
    st.lists(
        st.builds(
            SequenceItem,
            action=st.sampled_from(["search", "cart", "other"]),
            title=st.one_of(st.text(max_size=60), st.just("便携帐篷")),
            category=st.one_of(st.just(""), st.just("户外.露营"), st.text(max_size=60)),
            price_yuan=st.sampled_from([None, 0.0, 19.9, 1e7]),
            dwell_s=st.integers(0, 99),
        ),
        max_size=4,
    )
)
def test_a_sequence_reads_as_its_items_do_and_its_digest_is_that_of_the_whole_prompt(items: list[SequenceItem]) -> None:
    text = prompt.sequence_text(items)
    assert text == "【行为序列】" + " → ".join(prompt.item_text(item) for item in items)
    assert prompt.digest(text) == sha256(prompt.render(text).encode()).hexdigest()[:32]


def test_an_item_without_a_title_begins_with_what_it_has() -> None:
    assert prompt.item_text(SequenceItem(action="search", title=" \t", price_yuan=5.0)) == "搜索(¥5)"
    assert prompt.item_text(SequenceItem(action="search")) == "搜索()"
    assert prompt.item_text(SequenceItem(action="cart", title=",", dwell_s=3)) == "加购(,,3s)"
