from typing import Any

import pytest

from intentloop.answer import Answer
from intentloop.errors import ContractError
from intentloop.labels import Judgement, by_person, by_teachers
from intentloop.training_set import has_failed_vote, is_golden_user, is_hard, place, sample_of, teachers_agreement
from intentloop.verdict import Verdict
from tests.unit.core_workers.samples import labelled, picked, vote

RATIO = 0.5
GOLDEN = next(number for number in range(50) if is_golden_user(f"u{number}", RATIO))
PLAIN = next(number for number in range(50) if not is_golden_user(f"u{number}", RATIO))


@pytest.mark.parametrize(
    ("number", "changes", "where"),
    [
        (PLAIN, {"verdict": "hard"}, "train"),
        (PLAIN, {"verdict": "unanimous"}, "train"),
        (PLAIN, {"verdict": "dropped"}, "nowhere"),
        (PLAIN, {"verdict": "people", "intent": ""}, "nowhere"),
        (PLAIN, {"source": "person"}, "train"),
        (GOLDEN, {"verdict": "hard"}, "nowhere"),
        (GOLDEN, {"source": "person"}, "golden"),
    ],
)
def test_a_label_belongs_to_one_place(number: int, changes: dict[str, Any], where: str) -> None:
    assert place(labelled(number, **changes), RATIO) == where


def test_golden_users_are_about_the_share_that_was_asked_for() -> None:
    golden = sum(is_golden_user(f"user-{number}", 0.05) for number in range(10_000))
    assert 430 < golden < 570  # 500 ± 3.2 standard deviations of 22
    assert not is_golden_user("anybody", 0.0)


def test_a_label_becomes_a_sample() -> None:
    sample = sample_of(labelled(3))
    assert (sample.id, sample.user_id, sample.intent, sample.hard) == (picked(3).id, "u3", "比价犹豫", True)
    assert not is_hard(labelled(3, intent="闲逛", keywords=()))
    with pytest.raises(ContractError, match="has intent ''"):
        sample_of(labelled(3, intent=""))


def test_agreement_needs_two_votes() -> None:
    assert teachers_agreement(labelled(1)) is True
    assert teachers_agreement(labelled(1, votes=(vote("闲逛"), vote("比价犹豫", "x", teacher="b")))) is False
    failed = labelled(1, votes=(vote("闲逛"), vote("", teacher="b", failure="filtered")))
    assert teachers_agreement(failed) is None
    assert has_failed_vote(failed)


def test_the_fact_of_teachers_adds_up_what_it_cost() -> None:
    votes = (vote("闲逛", cost_yuan=0.5), vote("闲逛", teacher="b", cost_yuan=0.25))
    judgement = Judgement(
        verdict=Verdict(kind="unanimous", reason="r", intent="闲逛"), votes=votes, judge_cost_yuan=0.125
    )
    label = by_teachers(picked(1), judgement, audit=True, now_ms=5)
    assert (label.cost_yuan, label.audit, label.id) == (0.875, True, f"label-{picked(1).id}")


def test_the_fact_of_a_person_tells_who_and_whether_the_phone_was_right() -> None:
    label = by_person(picked(1), "lin", Answer("闲逛"), 5)
    assert (label.verdict, label.source, label.votes[0].teacher) == ("unanimous", "person", "lin")
    assert by_person(picked(1), "lin", Answer("比价犹豫", ("帐篷",)), 5).verdict == "hard"
