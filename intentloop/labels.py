"""How does a verdict, or a person's answer, become the fact `SampleLabelled`? Its id follows from the sample's."""

import msgspec

from intentloop.answer import Answer
from intentloop.facts import SampleLabelled, SamplePicked, Vote
from intentloop.verdict import Verdict


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All that teachers said about one sample; `score` is the keyword judge's, None where none was asked for."""

    verdict: Verdict
    votes: tuple[Vote, ...]
    score: int | None = None
    judge_cost_yuan: float = 0.0


def by_teachers(sample: SamplePicked, judgement: Judgement, audit: bool, now_ms: int) -> SampleLabelled:
    """Which fact does this judgement state? `audit`: a person is asked as well, although the teachers agree."""
    return SampleLabelled(
        id=f"label-{sample.id}",
        sample=sample,
        verdict=judgement.verdict.kind,
        reason=judgement.verdict.reason,
        intent=judgement.verdict.intent,
        keywords=judgement.verdict.keywords,
        keyword_score=judgement.score,
        votes=judgement.votes,
        audit=audit,
        source="teachers",
        cost_yuan=sum((vote.cost_yuan for vote in judgement.votes), judgement.judge_cost_yuan),
        labelled_at_ms=now_ms,
    )


def by_person(sample: SamplePicked, name: str, answer: Answer, now_ms: int) -> SampleLabelled:
    """Which fact does a person's answer state?"""
    vote = Vote(teacher=name, model="person", intent=answer.intent, keywords=answer.keywords)
    return SampleLabelled(
        id=f"person-{sample.id}",
        sample=sample,
        verdict="unanimous" if answer.intent == sample.device_intent else "hard",
        reason="labelled by a person",
        intent=answer.intent,
        keywords=answer.keywords,
        keyword_score=None,
        votes=(vote,),
        audit=False,
        source="person",
        cost_yuan=0.0,
        labelled_at_ms=now_ms,
    )
