"""When does a worker ask again whose log its records are of, and what does it do with the answer?"""

import asyncio

import pytest

from intentloop.errors import FencedError, UnavailableError
from streams import run_worker
from streams.run_worker import Worker
from streams.settings import StreamsSettings


class Broker:
    """Stands for `LogIdentity`: answers what is there, in turn, and then the last of it for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers, self.asked = list(answers), 0

    def read(self) -> str:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def worker(broker: Broker) -> Worker:
    made = Worker(StreamsSettings())
    made._log, made._epoch = broker, "c/old"  # type: ignore[assignment]
    return made


def confirm(one: Worker, times: int) -> None:
    async def run() -> None:
        for _ in range(times):
            await one._confirm_log()

    asyncio.run(run())


def test_a_broker_is_asked_for_each_batch() -> None:
    broker = Broker("c/old")
    confirm(worker(broker), 3)
    assert broker.asked == 3


def test_records_of_another_log_end_the_worker_before_anything_follows_from_them() -> None:
    one = worker(Broker("c/old", "c/new"))
    confirm(one, 1)
    with pytest.raises(FencedError, match="is 'c/new' now"):
        confirm(one, 1)


def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    broker = Broker(UnavailableError("gone"), UnavailableError("gone"), "c/old")
    one = worker(broker)
    confirm(one, 1)
    assert broker.asked == 3
    assert one._ills["broker"] == ""


def test_a_broker_that_never_answers_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_worker, "UNTOLD_S", 0.0)
    one = worker(Broker(UnavailableError("gone")))
    with pytest.raises(UnavailableError):
        confirm(one, 1)
    assert one._ills["broker"] == "gone", "health says why meanwhile"
