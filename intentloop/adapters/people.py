"""Which samples wait for a person? A blind queue: who annotates sees the behaviour, never what anybody else said.

The same job queue that workers use, with a longer lease: a sample that somebody looked at and left comes back.
"""

import msgspec
from redis.asyncio import Redis

from intentloop.adapters.jobs import Job, JobQueue, QueueCounts, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.facts import SamplePicked

LEASE_MS = 15 * 60_000
MAX_TRIES = 1_000_000  # a person may look away as often as they like


class PersonTask(msgspec.Struct, frozen=True, kw_only=True):
    """One sample for a person; `reason` is for the books, not for the annotator."""

    sample: SamplePicked
    reason: str


class PeopleQueue:
    """The blind queue.

    Args:
        redis: Connected client.
        keys: Names of keys.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._queue = JobQueue(redis, keys, "people", QueueRule(lease_ms=LEASE_MS, max_tries=MAX_TRIES))

    async def put(self, task: PersonTask) -> bool:
        """Ask people about a sample, once."""
        return await self._queue.put(task.sample.id, msgspec.json.encode(task))

    async def claim(self, name: str) -> tuple[Job, PersonTask] | None:
        """Which sample shall this person look at next? None when there is none."""
        jobs = await self._queue.claim(f"person-{name}", 1, 0)
        return (jobs[0], msgspec.json.decode(jobs[0].payload, type=PersonTask)) if jobs else None

    async def done(self, job: Job) -> None:
        """The label is stored."""
        await self._queue.done(job)

    async def give_back(self, job: Job) -> None:
        """Somebody else shall look at it."""
        await self._queue.park(job, "given back by a person")

    async def counts(self) -> QueueCounts:
        """How many samples wait, are looked at, are done?"""
        return await self._queue.counts()
