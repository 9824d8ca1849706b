import pytest

from intentloop.keyword_quality import KeywordRule, grade
from intentloop.verdict import Verdict, agreed_keywords, is_audited, needs_judge, weigh
from tests.unit.core_workers.samples import vote

A = vote("比价犹豫", "帐篷", "山雀", "露营")
B = vote("比价犹豫", "露营", "帐篷", "便携", teacher="b")


def test_phone_and_both_teachers_alike_are_unanimous() -> None:
    verdict = weigh("比价犹豫", [A, B])
    assert (verdict.kind, verdict.intent, verdict.keywords) == ("unanimous", "比价犹豫", ("帐篷", "露营", "山雀"))


@pytest.mark.parametrize("device", ["闲逛", "场景购物", ""])
def test_teachers_alike_and_a_phone_that_differs_are_hard(device: str) -> None:
    verdict = weigh(device, [A, B])
    assert (verdict.kind, verdict.intent) == ("hard", "比价犹豫")
    assert "比价犹豫" in verdict.reason


def test_teachers_that_differ_need_a_person_even_when_one_agrees_with_the_phone() -> None:
    verdict = weigh("闲逛", [A, vote("闲逛", teacher="b")])
    assert (verdict.kind, verdict.intent) == ("people", "")
    assert verdict.reason == "the teachers differ: a says 比价犹豫, b says 闲逛"


@pytest.mark.parametrize("failure", ["filtered: 400", "format: no bar", "unknown: 'Price'"])
def test_a_failed_teacher_is_not_a_vote(failure: str) -> None:
    for votes in ([A, vote("", teacher="b", failure=failure)], [vote("", failure=failure), B]):
        verdict = weigh("比价犹豫", votes)
        assert (verdict.kind, verdict.intent) == ("people", "")
        assert failure in verdict.reason


def test_two_failures_do_not_agree_with_each_other() -> None:
    failed = [vote("", failure="truncated"), vote("", teacher="b", failure="truncated")]
    assert weigh("", failed).kind == "people"


def test_one_vote_alone_decides_nothing() -> None:
    assert weigh("比价犹豫", [A]).kind == "people"


def test_keywords_that_both_named_come_first() -> None:
    assert agreed_keywords(("a", "b", "c"), ("c", "d", "b")) == ("b", "c", "a")
    assert agreed_keywords(("a", "b"), ("x",)) == ("a", "b")
    assert len(agreed_keywords(tuple("abcdefgh"), ())) == 6


def test_only_agreed_labels_with_keywords_are_judged() -> None:
    assert needs_judge(weigh("闲逛", [A, B]))
    assert not needs_judge(weigh("闲逛", [vote("闲逛"), vote("闲逛", teacher="b")]))
    assert not needs_judge(weigh("闲逛", [A, vote("闲逛", teacher="b")]))


@pytest.mark.parametrize(
    ("score", "kind"), [(0, "dropped"), (1, "dropped"), (2, "hard"), (3, "hard"), (None, "people")]
)
def test_bad_keywords_are_dropped_and_a_missing_score_needs_a_person(score: int | None, kind: str) -> None:
    verdict = grade(weigh("闲逛", [A, B]), score, KeywordRule())
    assert verdict.kind == kind
    assert (verdict.intent == "") == (kind == "people")


def test_the_audited_share_is_as_set_and_fixed() -> None:
    audited = [number for number in range(10_000) if is_audited(f"s{number}", 0.1)]
    assert 900 < len(audited) < 1_100  # 1,000 ± 3.3 standard deviations of 30
    assert audited == [number for number in range(10_000) if is_audited(f"s{number}", 0.1)]
    assert not any(is_audited(f"s{number}", 0.0) for number in range(100))


def test_a_verdict_is_a_value() -> None:
    assert Verdict(kind="people", reason="x") == Verdict(kind="people", reason="x")
