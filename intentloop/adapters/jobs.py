"""Who does which piece of long work, once in effect? A job queue in a Redis Stream with leases.

Life of a job: put (idempotent by id) → claimed with a lease → renewed while it runs → done. A worker that dies leaves
its lease to expire and the next claim takes the job over; a job taken too often is buried with its last reason. Each
step is one script, so a retried command or a crash between two commands cannot lose or double a job. Every claim hands
out a higher fence; whoever comes back with an old one gets FencedError. Not here: what the work is.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from intentloop.adapters import job_scripts
from intentloop.adapters.clock import now_ms
from intentloop.adapters.keys import Keys
from intentloop.errors import FencedError

POLL_S = 0.1  # how often an idle claim looks again


class QueueRule(msgspec.Struct, frozen=True, kw_only=True):
    """`lease_ms`: how long a worker may be silent. `max_tries`: claims without progress after which a job is buried.

    `keep_done_ms`: how long ids of done jobs are remembered; longer than the retention of the topic that feeds the
    queue, or a replay would do old work again.
    """

    lease_ms: int = 60_000
    max_tries: int = 5
    keep_done_ms: int = 21 * 86_400_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One claimed job. `tries` counts this one; `entry`, `fence` and `worker` prove who holds the lease.

    `note` is what an earlier try wrote down before its effects, so that this one repeats them instead of deciding anew.
    """

    id: str
    payload: bytes
    tries: int
    entry: str
    fence: int
    worker: str
    note: bytes = b""


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are in which state; derived from the stream itself, never counted along."""

    waiting: int
    running: int
    buried: int
    done: int


class JobQueue:
    """One named queue.

    Args:
        redis: Connected client.
        keys: Names of keys.
        name: Of the queue, for example `label` or `train`.
        rule: Lease and tries; all workers of a queue use the same.
    """

    def __init__(self, redis: Redis, keys: Keys, name: str, rule: QueueRule) -> None:
        self.name = name
        self.rule = rule
        self._redis: Any = redis
        self._keys = [keys.queue(name), keys.buried(name), keys.done(name)]
        self._job_prefix = keys.job(name, "")
        self._scripts: dict[str, Any] = {
            verb: redis.register_script(source) for verb, source in job_scripts.ALL.items()
        }

    async def put(self, job_id: str, payload: bytes) -> bool:
        """Queue a job unless its id is known, whatever became of it; true when it is new."""
        return bool(await self._run("put", job_id, payload))

    async def claim(self, worker: str, count: int, block_ms: int) -> list[Job]:
        """Take up to `count` jobs: first those whose lease ran out, then new ones; waits up to `block_ms` for one.

        Args:
            worker: Name of the claimer, unique among the living.
        """
        deadline = time.monotonic() + block_ms / 1000
        while True:
            rows = await self._run("claim", worker, count, self.rule.lease_ms, self.rule.max_tries, now_ms())
            left_s = deadline - time.monotonic()
            if rows or left_s <= 0:
                return [_job(row, worker) for row in rows]
            await asyncio.sleep(min(POLL_S, left_s))

    async def renew(self, job: Job) -> None:
        """Start the lease anew.

        Raises:
            FencedError: the job was taken over, finished or buried by another.
        """
        await self._owned("renew", job, job.worker)

    async def note(self, job: Job, note: bytes) -> None:
        """Write down what is about to be done; whoever claims the job later gets it as `Job.note`.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("note", job, note)

    async def progressed(self, job: Job) -> None:
        """A part of the job is done for good: whoever dies from now on has its tries anew, this one being the first.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("progressed", job)

    async def done(self, job: Job) -> None:
        """Finish a job; doing so twice with the same lease is the same as once.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("done", job, now_ms())

    async def fail(self, job: Job, reason: str) -> None:
        """Give a job back after a failed try; buried when it was the last one.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("fail", job, reason, self.rule.max_tries, now_ms())

    async def park(self, job: Job, reason: str) -> None:
        """Give a job back untried: what it needs is not there now, which is not the job's fault.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("fail", job, reason, 0, now_ms())

    async def bury(self, job: Job, reason: str) -> None:
        """Give a job up for good.

        Raises:
            FencedError: the job was taken over by another.
        """
        await self._owned("bury", job, reason, now_ms())

    async def counts(self) -> QueueCounts:
        """How many jobs wait, run, are buried, are done (within `keep_done_ms`)?"""
        waiting, running, buried, done = await self._run("counts")
        return QueueCounts(waiting=int(waiting), running=int(running), buried=int(buried), done=int(done))

    async def buried(self) -> dict[str, str]:
        """Which jobs were given up, and why?"""
        found = await self._redis.hgetall(self._keys[1])
        return {job_id.decode(): reason.decode() for job_id, reason in found.items()}

    async def forget(self) -> int:
        """Forget done jobs older than `keep_done_ms` and workers that left nothing behind; returns how many jobs."""
        return int(await self._run("forget", now_ms() - self.rule.keep_done_ms, self.rule.lease_ms))

    async def _owned(self, verb: str, job: Job, *arguments: object) -> None:
        if not await self._run(verb, job.id, job.entry, job.fence, *arguments):
            raise FencedError(
                f"job {job.id} of queue {self.name!r} is no longer held by {job.worker} (fence {job.fence}); "
                "another worker took it over, so stop without effect"
            )

    async def _run(self, verb: str, *arguments: object) -> Any:
        return await self._scripts[verb](keys=self._keys, args=[self._job_prefix, *arguments])


def _job(row: Sequence[Any], worker: str) -> Job:
    job_id, payload, tries, entry, fence, note = row
    return Job(
        id=job_id.decode(),
        payload=payload,
        tries=int(tries),
        entry=entry.decode(),
        fence=int(fence),
        worker=worker,
        note=note,
    )
