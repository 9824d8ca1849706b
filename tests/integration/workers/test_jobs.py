import asyncio
import os
import signal
import subprocess
import sys
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError

from intentloop.adapters.jobs import JobQueue, QueueCounts, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.settings import RedisSection
from intentloop.errors import ConfigurationError, FencedError, UnavailableError

pytestmark = pytest.mark.anyio

QUICK = QueueRule(lease_ms=200, max_tries=3)


def queue_of(redis: Redis, section: RedisSection, rule: QueueRule = QUICK) -> JobQueue:
    return JobQueue(redis, Keys(section.prefix), "label", rule)


def counts(waiting: int = 0, running: int = 0, buried: int = 0, done: int = 0) -> QueueCounts:
    return QueueCounts(waiting=waiting, running=running, buried=buried, done=done)


async def test_a_job_put_twice_is_worked_on_once_even_after_it_is_done(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        assert await queue.put("s1", b"one")
        assert not await queue.put("s1", b"other")
        (job,) = await queue.claim("w1", 5, 0)
        assert (job.id, job.payload, job.tries) == ("s1", b"one", 1)
        assert not await queue.put("s1", b"while running")
        await queue.done(job)
        await queue.done(job)  # the reply was lost and the command came twice
        assert not await queue.put("s1", b"replayed")
        assert await queue.claim("w1", 5, 0) == []
        assert await queue.counts() == counts(done=1)


async def test_an_expired_lease_is_taken_over_and_the_first_owner_is_fenced(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        (first,) = await queue.claim("w1", 1, 0)
        assert await queue.claim("w2", 1, 50) == []
        (second,) = await queue.claim("w2", 1, 2000)
        assert (second.id, second.tries) == ("s1", 2)
        for step in (queue.renew(first), queue.done(first), queue.fail(first, "r"), queue.bury(first, "r")):
            with pytest.raises(FencedError, match="s1"):
                await step
        await queue.done(second)
        with pytest.raises(FencedError):
            await queue.done(first)
        assert await queue.counts() == counts(done=1)


async def test_a_renewed_lease_is_not_taken_over(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section, QueueRule(lease_ms=500))
        await queue.put("s1", b"x")
        (job,) = await queue.claim("w1", 1, 0)
        for _ in range(8):
            await asyncio.sleep(0.1)
            await queue.renew(job)
            assert await queue.claim("w2", 1, 0) == []
        await queue.done(job)


async def test_a_job_is_buried_with_its_reason_after_bounded_tries(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        for _ in range(3):
            (job,) = await queue.claim("w1", 1, 0)
            await queue.fail(job, "teacher timed out")
        assert await queue.claim("w1", 1, 0) == []
        assert await queue.buried() == {"s1": "given up after 3 tries: teacher timed out"}
        assert await queue.counts() == counts(buried=1)


async def test_workers_that_only_die_bury_the_job_too(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section, QueueRule(lease_ms=30, max_tries=2))
        await queue.put("s1", b"x")
        for _ in range(2):
            assert len(await queue.claim("w1", 1, 1000)) == 1
        assert await queue.claim("w1", 1, 200) == []
        assert (await queue.buried())["s1"].startswith("given up after 2 tries: its workers died")


async def test_a_job_that_got_further_has_its_tries_anew(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        for number in range(2 * QUICK.max_tries):
            (job,) = await queue.claim(f"w{number}", 1, 2000)  # the one before died
            await queue.progressed(job)
        await queue.fail(job, "broken")
        (last,) = await queue.claim("last", 1, 2000)
        assert last.tries == 2
        with pytest.raises(FencedError):
            await queue.progressed(job)


async def test_a_parked_job_has_burnt_no_try(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section, QueueRule(max_tries=1))
        await queue.put("s1", b"x")
        for _ in range(4):
            (job,) = await queue.claim("w1", 1, 0)
            assert job.tries == 1
            await queue.park(job, "the teacher is closed")
        assert await queue.counts() == counts(waiting=1)


async def test_what_a_dead_worker_wrote_down_reaches_the_next_one(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        (first,) = await queue.claim("w1", 1, 0)
        await queue.note(first, b"decided")
        (second,) = await queue.claim("w2", 1, 2000)
        assert (first.note, second.note) == (b"", b"decided")
        with pytest.raises(FencedError):
            await queue.note(first, b"too late")


async def test_counts_tell_waiting_and_running_apart(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section, QueueRule())
        assert await queue.counts() == counts()
        for number in range(5):
            await queue.put(f"s{number}", b"x")
        jobs = await queue.claim("w1", 2, 0)
        await queue.bury(jobs[0], "unreadable")
        assert await queue.counts() == counts(waiting=3, running=1, buried=1)


async def test_a_lost_script_cache_is_not_noticed(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        await redis.script_flush()
        (job,) = await queue.claim("w1", 1, 0)
        await redis.script_flush()
        await queue.done(job)
        assert await queue.counts() == counts(done=1)


async def test_a_done_job_is_remembered_longer_than_its_hash(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        await queue.done((await queue.claim("w1", 1, 0))[0])
        assert await redis.delete(Keys(redis_section.prefix).job("label", "s1")) == 1  # as after its day
        assert not await queue.put("s1", b"replayed")


async def test_old_done_jobs_are_forgotten(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section, QueueRule(keep_done_ms=0))
        await queue.put("s1", b"x")
        await queue.done((await queue.claim("w1", 1, 0))[0])
        await asyncio.sleep(0.01)
        assert await queue.forget() == 1
        assert (await queue.counts()).done == 0


_CLAIM_AND_HANG = """
import asyncio, sys
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import RedisSection

async def main():
    section = RedisSection(url=sys.argv[1], prefix=sys.argv[2])
    queue = JobQueue(connect(section), Keys(section.prefix), "label", QueueRule(lease_ms=200, max_tries=3))
    print((await queue.claim("doomed", 1, 5000))[0].id, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_job_of_a_killed_worker_is_taken_up_again(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        queue = queue_of(redis, redis_section)
        await queue.put("s1", b"x")
        command = [sys.executable, "-c", _CLAIM_AND_HANG, redis_section.url, redis_section.prefix]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as doomed:
            assert doomed.stdout is not None
            assert (await asyncio.to_thread(doomed.stdout.readline)).strip() == b"s1"
            os.kill(doomed.pid, signal.SIGKILL)
        (job,) = await queue.claim("w2", 1, 3000)
        await queue.done(job)
        assert (job.tries, await queue.counts()) == (2, counts(done=1))


async def test_a_redis_that_may_evict_is_refused(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        await check_noeviction(redis)

        async def info(section: str) -> dict[str, str]:
            return {"maxmemory_policy": "allkeys-lru"}

        redis.info = info  # type: ignore[method-assign, assignment]
        with pytest.raises(ConfigurationError, match="allkeys-lru"):
            await check_noeviction(redis)


async def test_a_redis_that_is_not_there_is_waited_for_and_never_taken_as_empty() -> None:
    async with connect(RedisSection(url="redis://127.0.0.1:9/0")) as redis:
        with pytest.raises(UnavailableError, match="did not answer"):
            await ready(redis, timeout_s=0.3)


class Loading:
    """A Redis that reads its data from disk for a while."""

    def __init__(self) -> None:
        self.pings = 0

    async def ping(self) -> bool:
        self.pings += 1
        if self.pings < 3:
            raise BusyLoadingError("Redis is loading the dataset in memory")
        return True


async def test_a_redis_that_is_loading_is_waited_for() -> None:
    loading = Loading()
    await ready(cast(Redis, loading), timeout_s=5)
    assert loading.pings == 3


async def test_more_callers_than_connections_wait_their_turn(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis:
        names = [f"{redis_section.prefix}:{number}" for number in range(300)]
        assert all(await asyncio.gather(*(redis.set(name, "x") for name in names)))


async def test_a_primary_that_turns_read_only_for_a_moment_is_ridden_out(redis_section: RedisSection) -> None:
    async with connect(redis_section) as redis, connect(redis_section) as operator:
        queue = queue_of(redis, redis_section)
        await queue.put("before", b"x")
        await operator.replicaof("127.0.0.1", "1")  # nobody is there: it keeps its data and refuses writes
        putting = asyncio.create_task(queue.put("s1", b"x"))
        await asyncio.sleep(0.1)
        assert not putting.done()
        await operator.replicaof("NO", "ONE")
        assert await putting
        assert await queue.counts() == counts(waiting=2)
