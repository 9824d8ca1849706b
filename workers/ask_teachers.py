"""What do the teachers say about one sample? Both are asked at once; an agreed label's keywords go to the judge.

Returns a judgement, or why there is none yet: `Park` (a teacher is closed, nobody's fault, the try does not count) or
`Retry` (a teacher could not answer now). On the last try a teacher that cannot answer is a failed vote.
"""

import asyncio

import msgspec

from intentloop import prompt, teacher_prompt, verdict
from intentloop.adapters.chinese import simplify
from intentloop.adapters.spending import Spending
from intentloop.adapters.teachers import Refusal, Reply, Teacher
from intentloop.answer import Answer, AnswerFault, keep_grounded, parse
from intentloop.facts import SamplePicked, Vote
from intentloop.keyword_quality import KeywordRule, grade
from intentloop.labels import Judgement


class Teachers(msgspec.Struct, frozen=True, kw_only=True):
    """Two that label and one that judges keywords (it may be one of the two)."""

    a: Teacher
    b: Teacher
    judge: Teacher

    def closed(self) -> str:
        """Which teacher may not be asked now, and why? Empty when all may."""
        return next((f"{one.name}: {one.closed()}" for one in (self.a, self.b, self.judge) if one.closed()), "")


class Park(msgspec.Struct, frozen=True):
    """Nothing could be asked; the try does not count."""

    reason: str


class Retry(msgspec.Struct, frozen=True):
    """Somebody could not answer now; try later, a bounded number of times."""

    reason: str


async def judge_sample(
    sample: SamplePicked, teachers: Teachers, spending: Spending, rule: KeywordRule, last_try: bool
) -> Judgement | Park | Retry:
    """What do the teachers make of this sample?"""
    sequence, evidence = prompt.sequence_text(sample.read), prompt.evidence(sample.read)
    message = teacher_prompt.label_message(sequence)
    outcomes = await asyncio.gather(
        *(_ask(teacher, teacher_prompt.LABEL_SYSTEM, message, spending) for teacher in (teachers.a, teachers.b))
    )
    later = _not_now(outcomes, last_try)
    if later is not None:
        return later
    votes = tuple(
        _vote(teacher, outcome, evidence) for teacher, outcome in zip((teachers.a, teachers.b), outcomes, strict=True)
    )
    weighed = verdict.weigh(sample.device_intent, votes)
    if not verdict.needs_judge(weighed):
        return Judgement(verdict=weighed, votes=votes)
    request = teacher_prompt.judge_message(sequence, weighed.intent, weighed.keywords)
    judged = await _ask(teachers.judge, teacher_prompt.JUDGE_SYSTEM, request, spending)
    later = _not_now([judged], last_try)
    if later is not None:
        return later
    score = teacher_prompt.score_in(judged.text) if isinstance(judged, Reply) else None
    graded = grade(weighed, score, rule)
    return Judgement(verdict=graded, votes=votes, score=score, judge_cost_yuan=judged.usage.cost_yuan)


async def _ask(teacher: Teacher, system: str, message: str, spending: Spending) -> Reply | Refusal:
    outcome = await teacher.ask(system, message)
    await spending.add(outcome.usage.cost_yuan)
    return outcome


def _not_now(outcomes: list[Reply | Refusal], last_try: bool) -> Park | Retry | None:
    refusals = {outcome.kind: outcome.detail for outcome in outcomes if isinstance(outcome, Refusal)}
    if "closed" in refusals:
        return Park(refusals["closed"])
    if "unavailable" in refusals and not last_try:
        return Retry(refusals["unavailable"])
    return None


def _vote(teacher: Teacher, outcome: Reply | Refusal, evidence: str) -> Vote:
    """How does this teacher's outcome count? A reply that means nothing is a failure, never 闲逛."""
    vote = Vote(
        teacher=teacher.name,
        model=teacher.section.model,
        parameters=teacher.parameters(),
        prompt_tokens=outcome.usage.prompt_tokens,
        output_tokens=outcome.usage.output_tokens,
        tokens_estimated=outcome.usage.estimated,
        cost_yuan=outcome.usage.cost_yuan,
        seconds=outcome.usage.seconds,
    )
    if isinstance(outcome, Refusal):
        return msgspec.structs.replace(vote, failure=f"{outcome.kind}: {outcome.detail}")
    read = read_answer(outcome.text, evidence)
    if isinstance(read, AnswerFault):
        return msgspec.structs.replace(vote, failure=f"{read.kind}: {read.detail}", raw=outcome.text)
    return msgspec.structs.replace(
        vote, intent=read.intent, keywords=read.keywords, repaired=read.repaired, raw=outcome.text
    )


def read_answer(text: str, evidence: str) -> Answer | AnswerFault:
    """What does a reply say? Simplified characters, and keywords that occur in titles or categories (`evidence`)."""
    answer = parse(text, simplify)
    if isinstance(answer, AnswerFault):
        return answer
    return keep_grounded(answer, f"{evidence}\n{simplify(evidence)}")
