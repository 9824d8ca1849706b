"""When does a worker ask again whose log its records are of, and what does it do with the answer?"""

import asyncio
from typing import Any

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


def worker(broker: Broker, connections: list[Any]) -> Worker:
    made = Worker(StreamsSettings(), lambda: tuple(connections))
    made._log, made._epoch = broker, "c/old"  # type: ignore[assignment]
    return made


def confirm(one: Worker, times: int) -> None:
    async def run() -> None:
        for _ in range(times):
            await one._confirm_log()

    asyncio.run(run())


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_worker, "CONFIRM_S", 3600.0)


@pytest.mark.usefixtures("long_ago")
def test_a_broker_is_asked_once_for_as_long_as_no_connection_changes() -> None:
    broker, connections = Broker("c/old"), [object()]
    one = worker(broker, connections)
    confirm(one, 3)
    assert broker.asked == 1
    connections[0] = object()
    confirm(one, 3)
    assert broker.asked == 2
    connections.append(object())
    confirm(one, 3)
    assert broker.asked == 3


@pytest.mark.usefixtures("long_ago")
def test_records_over_a_new_connection_of_another_log_end_the_worker_before_anything_follows_from_them() -> None:
    connections = [object()]
    one = worker(Broker("c/old", "c/new"), connections)
    confirm(one, 2)
    connections[0] = object()
    with pytest.raises(FencedError, match="is 'c/new' now"):
        confirm(one, 1)


def test_a_topic_made_anew_under_the_same_connection_is_noticed_when_the_answer_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_worker, "CONFIRM_S", 0.0)
    with pytest.raises(FencedError):
        confirm(worker(Broker("c/old", "c/old", "c/new"), [object()]), 3)


@pytest.mark.usefixtures("long_ago")
def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    broker = Broker(UnavailableError("gone"), UnavailableError("gone"), "c/old")
    one = worker(broker, [object()])
    confirm(one, 2)
    assert broker.asked == 3
    assert one._ills["broker"] == ""


def test_a_broker_that_never_answers_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_worker, "UNTOLD_S", 0.0)
    one = worker(Broker(UnavailableError("gone")), [object()])
    with pytest.raises(UnavailableError):
        confirm(one, 1)
    assert one._ills["broker"] == "gone", "health says why meanwhile"
