"""Labelling jobs become labels: ask the teachers, decide, store, tell, done.

Per job, with its lease renewed all the time:
1. What an earlier try wrote down is taken as it is; else the teachers are asked (`ask_teachers.py`).
2. Write the label down on the job: from here on a crash repeats the same effects instead of deciding anew.
3. Store it in the training set (idempotent by label id).
4. Put it into the people's queue where a person is needed (idempotent by sample id).
5. Send `label.sample-labelled.v1`; consumers deduplicate by id.
6. The job is done.

A worker that lost its lease stops without effect. Not here: who picks samples, when to retrain.
"""

import asyncio
import logging
import time

import msgspec

from intentloop import topics
from intentloop.adapters import codec, metrics
from intentloop.adapters.clock import now_ms
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import Job, JobQueue
from intentloop.adapters.people import PeopleQueue, PersonTask
from intentloop.adapters.settings import LabellingSection
from intentloop.adapters.spending import Spending
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import ContractError, FencedError
from intentloop.facts import SampleLabelled, SamplePicked
from intentloop.keyword_quality import KeywordRule
from intentloop.labels import Judgement, by_teachers
from intentloop.training_set import is_golden_user
from intentloop.verdict import Verdict, is_audited
from workers.ask_teachers import Park, Retry, Teachers, judge_sample

log = logging.getLogger(__name__)

CLAIM_WAIT_MS = 500
OBSTACLE_PAUSE_S = 0.5

_decode_label = msgspec.json.Decoder(SampleLabelled).decode


class LabelStores(msgspec.Struct, frozen=True, kw_only=True):
    """Where labels go."""

    queue: JobQueue
    training: TrainingStore
    people: PeopleQueue
    spending: Spending
    producer: FactProducer


class Labeller:
    """Works on labelling jobs; run it several times at once.

    Args:
        teachers: Whom to ask.
        stores: Where labels go.
        section: Ratios, budget and tries.
    """

    def __init__(self, teachers: Teachers, stores: LabelStores, section: LabellingSection) -> None:
        self._teachers, self._stores, self._section = teachers, stores, section
        self._obstacle_told = ""

    async def run(self, worker: str, stop: asyncio.Event) -> None:
        """Label until told to stop; the job in hand is finished first."""
        while not stop.is_set():
            obstacle = await self.obstacle()
            self._tell(obstacle)
            if obstacle:
                await asyncio.sleep(OBSTACLE_PAUSE_S)
                continue
            for job in await self._stores.queue.claim(worker, 1, CLAIM_WAIT_MS):
                await self.work(job)

    async def obstacle(self) -> str:
        """Why should nothing be claimed now? Empty when teachers may be asked and the day's budget is not spent."""
        closed = self._teachers.closed()
        if closed:
            return f"a teacher is closed, {closed}"
        spent = await self._stores.spending.today_yuan()
        if spent >= self._section.daily_budget_yuan:
            return f"today cost {spent:.2f} yuan, the budget is {self._section.daily_budget_yuan:.2f}"
        return ""

    async def work(self, job: Job) -> None:
        """Take one job to its end, its lease renewed meanwhile."""
        began = time.monotonic()
        working, renewing = asyncio.create_task(self._settle(job)), asyncio.create_task(self._renew(job))
        try:
            done, _ = await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            metrics.LABEL_SECONDS.observe(time.monotonic() - began)
        except FencedError as error:
            log.warning("stopped without effect: %s", error)
        finally:
            working.cancel()
            renewing.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)

    async def _renew(self, job: Job) -> None:
        task = asyncio.current_task()  # a client may swallow the cancellation, so the task itself is asked, too
        while task is not None and not task.cancelling():
            await asyncio.sleep(self._section.lease_s / 3)
            await self._stores.queue.renew(job)

    async def _settle(self, job: Job) -> None:
        queue = self._stores.queue
        label: SampleLabelled | Park | Retry
        if job.note:
            label = _decode_label(job.note)
        else:
            try:
                sample = codec.read(topics.PICKED, job.payload)
            except ContractError as error:
                await queue.bury(job, f"undecodable: {error}")
                return
            label = await self._decide(sample, job)
        if isinstance(label, Park):
            await queue.park(job, label.reason)
        elif isinstance(label, Retry):
            log.info("job %s, try %d of %d: %s", job.id, job.tries, self._section.max_tries, label.reason)
            await queue.fail(job, label.reason)
        else:
            await self._book(job, label)

    async def _decide(self, sample: SamplePicked, job: Job) -> SampleLabelled | Park | Retry:
        judgement: Judgement | Park | Retry
        if is_golden_user(sample.user_id, self._section.golden_ratio):
            reason = "a golden user: only people label what judges models"
            judgement = Judgement(verdict=Verdict(kind="people", reason=reason), votes=())
        else:
            last_try = job.tries >= self._section.max_tries
            rule = KeywordRule(drop_at_most=self._section.drop_at_most)
            judgement = await judge_sample(sample, self._teachers, self._stores.spending, rule, last_try)
        if not isinstance(judgement, Judgement):
            return judgement
        agreed = judgement.verdict.kind in ("unanimous", "hard")
        return by_teachers(sample, judgement, agreed and is_audited(sample.id, self._section.audit_ratio), now_ms())

    async def _book(self, job: Job, label: SampleLabelled) -> None:
        stores = self._stores
        if not job.note:
            await stores.queue.note(job, msgspec.json.encode(label))
        await stores.training.add(label)
        if label.verdict == "people" or label.audit:
            await stores.people.put(PersonTask(sample=label.sample, reason=label.reason))
        await stores.producer.send(topics.LABELLED, label.sample.id, label)
        await stores.queue.done(job)
        metrics.LABEL_VERDICTS.labels(label.verdict).inc()

    def _tell(self, obstacle: str) -> None:
        if obstacle != self._obstacle_told:
            self._obstacle_told = obstacle
            log.warning("labelling waits: %s", obstacle) if obstacle else log.info("labelling goes on")
