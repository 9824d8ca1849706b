"""Is it time for a new model? Asks `intentloop/retrain.py` about every second and acts on its answer.

A request is written down first, then queued as a job `train`, then told as `loop.retrain-requested.v1`, then closed.
After a crash what is open is completed with the same id. One worker decides at a time (lease `decide`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from intentloop import topics
from intentloop.adapters import metrics
from intentloop.adapters.clock import now_ms
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.jobs import JobQueue
from intentloop.adapters.leases import Lease
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.training_store import TrainingStore
from intentloop.facts import RetrainRequested
from intentloop.retrain import Decision, LoopFacts, Request, RetrainRule, RunVerdict, decide

log = logging.getLogger(__name__)

_NUMBERS = re.compile(r"\d+")


class LoopStores(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision reads and writes; `release` tells the current version, empty before the first.

    `drifted` tells whether the fleet of a version has drifted (`watch_fleet.py`).
    """

    training: TrainingStore
    retrains: RetrainLog
    train_queue: JobQueue
    producer: FactProducer
    release: Callable[[], Awaitable[str]]
    drifted: Callable[[str], Awaitable[bool]]


class Decider:
    """Decides and asks for retrains.

    Args:
        stores: What it reads and writes.
        rule: When it is time.
    """

    def __init__(self, stores: LoopStores, rule: RetrainRule) -> None:
        self._stores, self._rule = stores, rule
        self._told = ""

    async def run(self, lease: Lease, interval_s: float, stop: asyncio.Event) -> None:
        """Decide again and again while the lease is ours, until told to stop."""
        while not stop.is_set():
            if await lease.hold():
                await self.step()
            await asyncio.sleep(interval_s)
        await lease.release()

    async def step(self) -> Decision:
        """Complete what is open, decide once, remember the decision, act on it."""
        await self._complete()
        facts = await self.facts()
        outcome = decide(facts, self._rule)
        asked = isinstance(outcome, Request)
        decision = Decision(
            kind="request" if asked else "wait", reason=outcome.reason, at_ms=facts.now_ms, release=facts.release
        )
        if asked:
            await self._stores.retrains.open(_request(facts, outcome.reason))
            await self._complete()
        await self._stores.retrains.remember(decision)
        self._tell(decision)
        return decision

    def _tell(self, decision: Decision) -> None:
        """One line when the obstacle changes, not when only its numbers do."""
        obstacle = _NUMBERS.sub("", decision.reason)
        if decision.kind == "request" or obstacle != self._told:
            self._told = obstacle
            log.info("retrain: %s, %s", decision.kind, decision.reason)

    async def facts(self) -> LoopFacts:
        """What is known now?"""
        counts = await self._stores.training.counts()
        queue = await self._stores.train_queue.counts()
        release = await self._stores.release()
        asked = [entry.request for entry in await self._stores.retrains.entries()]
        verdicts = await self._stores.training.verdicts()
        same_base = [_seen(request, verdicts) for request in asked if request.base_version == release]
        return LoopFacts(
            now_ms=now_ms(),
            release=release,
            hard_new=counts.hard_new,
            samples=counts.samples,
            per_class=counts.per_class,
            revision=counts.revision,
            training_now=queue.waiting + queue.running > 0,
            asked_at_ms=tuple(request.requested_at_ms for request in asked),
            hard_at_last_request=same_base[-1] if same_base else 0,
            drift_confirmed=await self._stores.drifted(release),
        )

    async def _complete(self) -> None:
        stores = self._stores
        for entry in await self._stores.retrains.entries():
            if entry.told:
                continue
            await stores.train_queue.put(entry.request.id, msgspec.json.encode(entry.request))
            await stores.producer.send(topics.RETRAIN_REQUESTED, entry.request.base_version, entry.request)
            await self._stores.retrains.close(entry.request)
            metrics.RETRAIN_REQUESTS.inc()


def _seen(request: RetrainRequested, verdicts: Mapping[str, RunVerdict]) -> int:
    """How many new hard samples were there at this request, or when its run began to learn?"""
    verdict = verdicts.get(request.id)
    return max(request.hard_new, verdict.hard_seen if verdict else 0)


def _request(facts: LoopFacts, reason: str) -> RetrainRequested:
    """Its id follows from the training set, so that the same evidence is never asked for twice."""
    return RetrainRequested(
        id=f"train-{facts.release}-{facts.revision}",
        base_version=facts.release,
        reason=reason,
        hard_new=facts.hard_new,
        samples=facts.samples,
        requested_at_ms=facts.now_ms,
    )
