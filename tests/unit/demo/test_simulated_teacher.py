"""What simulated teachers know comes from the text; what they get wrong comes from the seed."""

from random import Random

import pytest

from demo.simulated_teacher import TeacherRule, items_in, judge, label
from intentloop import catalogue, prompt, rules
from intentloop.answer import Answer, ground, parse
from intentloop.events import SequenceItem


def item(title: str, category: str) -> SequenceItem:
    return SequenceItem(action="item_view", title=title, category=category, price_yuan=9.9, dwell_s=12)


def test_categories_are_read_from_titles_that_hold_every_separator() -> None:
    titles = ["帐篷(双人),¥99,cat:数码.手机.手机壳,3s", "a → b", "【行为序列】商详页(x)", "闲逛|是;的", ""]
    items = [item(title, "户外.露营.帐篷") for title in titles]
    found = items_in(prompt.sequence_text(items))
    assert [one.category for one in found] == ["户外.露营.帐篷"] * 5


def test_searches_and_goods_without_a_category_are_passed_over() -> None:
    search = SequenceItem(action="search", title="帐篷")
    assert items_in(prompt.sequence_text([search, SequenceItem(action="item_view", title="灯")])) == ()


def _sequences(count: int) -> list[str]:
    random = Random(5)
    leaves = [random.choice(catalogue.LEAVES) for _ in range(count)]
    return [
        prompt.sequence_text([item(f"{number}号{leaf[2]}{copy}", catalogue.path(*leaf)) for copy in range(3)])
        for number, leaf in enumerate(leaves)
    ]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_noise_is_the_share_of_wrong_labels(noise: float) -> None:
    rule = TeacherRule(seed=2, noise_ratio=noise)
    sequences = _sequences(2000)
    wrong = sum(not label(sequence, rule).startswith("比价犹豫|") for sequence in sequences)
    deviation = (noise * (1 - noise) / 2000) ** 0.5
    assert abs(wrong / 2000 - noise) <= 4 * deviation


def test_a_teacher_is_wrong_about_the_same_sequences_for_ever_and_another_teacher_about_others() -> None:
    sequences = _sequences(600)
    first, again = ([label(s, TeacherRule(seed=1, noise_ratio=0.2)) for s in sequences] for _ in range(2))
    other = [label(s, TeacherRule(seed=2, noise_ratio=0.2)) for s in sequences]
    assert first == again
    assert first != other


def test_even_a_wrong_label_is_grounded_in_the_sequence() -> None:
    rule = TeacherRule(seed=4, noise_ratio=1.0)
    for sequence in _sequences(50):
        answer = parse(label(sequence, rule))
        assert isinstance(answer, Answer)
        assert isinstance(ground(answer, sequence), Answer)


def test_the_labels_of_a_noiseless_teacher_are_those_of_the_rule_engine() -> None:
    items = [item("甲", "家居.床品.枕头"), item("乙", "家居.灯具.台灯"), item("丙", "家居.厨具.炒锅")]
    ruled = rules.classify(items, rules.IntentRule())
    assert ruled.intent == "场景购物"
    assert label(prompt.sequence_text(items), TeacherRule(noise_ratio=0.0)) == "场景购物|家居;枕头;台灯;炒锅"


def test_a_judge_scores_by_presence_and_by_what_the_rule_engine_would_name() -> None:
    sequence = prompt.sequence_text([item(f"{n}号帐篷", "户外.露营.帐篷") for n in range(3)])
    rule = TeacherRule()
    assert judge(sequence, ("帐篷", "露营"), rule) == 3
    assert judge(sequence, ("号",), rule) == 2
    assert judge(sequence, ("帐篷", "冰箱"), rule) == 1
    assert judge(sequence, ("冰箱",), rule) == 0
    assert judge(sequence, (), rule) == 0
