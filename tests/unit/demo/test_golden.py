"""The golden set is the same for one seed, its labels are beyond doubt, and nobody in it trains a model."""

from collections import Counter

from demo.golden import golden_samples
from intentloop import prompt, rules


def test_a_seed_is_a_set_and_another_seed_another() -> None:
    assert golden_samples(1, 10, 10) == golden_samples(1, 10, 10)
    assert golden_samples(1, 10, 10) != golden_samples(2, 10, 10)


def test_labels_are_what_the_rule_engine_sees_and_digests_are_those_of_the_prompt() -> None:
    samples = golden_samples(3, 60, 40)
    for sample in samples:
        ruled = rules.classify(sample.read, rules.IntentRule())
        assert (sample.intent, sample.keywords) == (ruled.intent, ruled.keywords)
        assert sample.digest == prompt.digest(prompt.sequence_text(sample.read))
        assert sample.source == "generator"


def test_kinds_are_as_many_as_asked_for_without_doubles_and_all_intents_occur() -> None:
    samples = golden_samples(3, 60, 40)
    assert Counter(sample.slice for sample in samples) == {"weak": 60, "usual": 40}
    assert len({sample.digest for sample in samples}) == len({sample.user_id for sample in samples}) == 100
    for name in ("weak", "usual"):
        assert {sample.intent for sample in samples if sample.slice == name} == {"闲逛", "比价犹豫", "场景购物"}
