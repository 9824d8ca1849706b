"""Work under a lease: when it is done, nothing goes on renewing, whatever a client makes of being cancelled."""

import asyncio
from typing import Any, cast

import pytest

from intentloop.adapters.jobs import Job, JobQueue, QueueRule
from trainer import runner

JOB = Job(id="job-1", payload=b"", tries=1, entry="1-0", fence=1, worker="one")


class StubbornQueue:
    """A queue whose client once answers a cancellation with an error of its own, or with nothing at all."""

    rule = QueueRule(lease_ms=30)

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.stubborn = True
        self.asked = asyncio.Event()

    async def renew(self, job: Job) -> None:
        """Take for ever."""
        self.asked.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if not self.stubborn:
                raise
            self.stubborn = False
            if self.error is not None:
                raise self.error from None


@pytest.mark.parametrize("error", [ConnectionError("closed"), None])
def test_a_client_that_swallows_the_cancellation_does_not_keep_a_finished_job(error: Exception | None) -> None:
    async def scene() -> str:
        queue = StubbornQueue(error)

        async def work() -> Any:
            await queue.asked.wait()
            return None

        async with asyncio.timeout(30):
            await runner.while_leased(cast(JobQueue, queue), JOB, work())
        return "done"

    assert asyncio.run(scene()) == "done"
