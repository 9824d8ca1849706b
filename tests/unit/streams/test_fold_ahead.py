"""One batch is folded while the one before is still being written: nothing but the time it takes is different."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.state_store import NO_WATERMARK, PartitionWrite
from intentloop.errors import FencedError
from intentloop.fold import FoldRule
from intentloop.topics import Topic
from streams import run_worker
from streams.apply_batch import BatchApplier, Folded
from streams.fold_records import FoldContext
from streams.run_worker import Worker
from streams.settings import StreamsSettings
from tests.unit.streams.test_fold_records import record

PARTITIONS = (0, 1)


class Shelf:
    """Stands for Redis and Kafka: keeps what is written and sent, refuses what Redis' script would refuse."""

    def __init__(self) -> None:
        self.marks = dict.fromkeys(PARTITIONS, NO_WATERMARK)
        self.states: dict[str, bytes] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.done: list[str] = []
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def watermarks(self, partitions: Sequence[int]) -> dict[int, int]:
        await asyncio.sleep(0)
        return {partition: self.marks[partition] for partition in partitions}

    async def load(
        self, expected: Mapping[int, int], state_keys: Sequence[str], confirmed: Mapping[int, int]
    ) -> dict[str, bytes | None]:
        found = {key: self.states.get(key) for key in state_keys}
        for partition, watermark in expected.items():
            if self.marks[partition] not in (watermark, confirmed[partition]):
                raise FencedError("another watermark")
        await asyncio.sleep(0)
        return found

    async def send_all(self, facts: Iterable[tuple[Topic, str, bytes]]) -> None:
        self.done.append("send")
        await self.may_store.wait()
        self.sent += [(topic.name, value) for topic, _, value in facts]

    async def apply(self, writes: Iterable[PartitionWrite]) -> None:
        for write in writes:
            if self.marks[write.partition] != write.expected:
                raise FencedError("another watermark")
            self.states |= write.states
            self.marks[write.partition] = write.watermark
        self.done.append("write")


def applier(shelf: Shelf) -> BatchApplier:
    return BatchApplier(shelf, shelf, FoldContext(Keys("t"), FoldRule()))  # type: ignore[arg-type]


def batches(users: Sequence[tuple[int, int]], cuts: Sequence[int]) -> list[list[Record]]:
    following = dict.fromkeys(PARTITIONS, 0)
    records = []
    for user, partition in users:
        records.append(record(following[partition], user, partition))
        following[partition] += 1
    return [records[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(records)])]


async def plainly(cut: Sequence[list[Record]]) -> Shelf:
    shelf = Shelf()
    one = applier(shelf)
    await one.positions(dict.fromkeys(PARTITIONS, 0))
    for batch in cut:
        await one.apply(batch)
    return shelf


async def ahead(cut: Sequence[list[Record]], moves: Sequence[str]) -> Shelf:
    """Each batch is folded while the one before is unfinished, finished just before, or finished meanwhile."""
    shelf = Shelf()
    one = applier(shelf)
    await one.positions(dict.fromkeys(PARTITIONS, 0))
    waiting = await one.fold([])
    for batch, move in zip(cut, moves, strict=False):
        match move:
            case "meanwhile":
                folded, _ = await asyncio.gather(one.fold(batch), one.finish(waiting))
            case "before":
                await one.finish(waiting)
                folded = await one.fold(batch)
            case _:
                begin = await one.positions(dict.fromkeys(PARTITIONS, 0)) if move == "assigned" else {}
                assert all(begin.get(item.partition, 0) <= item.offset for item in batch), "nothing is left out"
                folded = await one.fold(batch)
                await one.finish(waiting)
        waiting = folded
    await one.finish(waiting)
    assert one.applied() == shelf.marks
    return shelf


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=20), st.data())
def test_folding_ahead_gives_what_one_batch_after_the_other_gives(
    users: list[tuple[int, int]], data: st.DataObject
) -> None:
    cut = batches(users, data.draw(st.lists(st.integers(0, len(users)), max_size=5)))
    kinds = st.sampled_from(["before", "meanwhile", "after", "assigned"])
    expected, found = asyncio.run(plainly(cut)), asyncio.run(ahead(cut, [data.draw(kinds) for _ in cut]))
    assert (found.states, found.marks, sorted(found.sent)) == (expected.states, expected.marks, sorted(expected.sent))


def test_an_assignment_goes_on_after_what_is_being_written() -> None:
    async def run() -> None:
        shelf = Shelf()
        one = applier(shelf)
        await one.positions({0: 0})
        folded = await one.fold([record(0, 1), record(1, 2)])
        assert await one.positions({0: 0, 1: 0}) == {0: 2, 1: 0}
        assert one.applied() == {0: NO_WATERMARK, 1: NO_WATERMARK}, "health asks for what Redis has confirmed"
        await one.finish(folded)
        assert await one.apply([record(1, 2), record(2, 1)]) == 1
        assert shelf.marks == {0: 2, 1: NO_WATERMARK}

    asyncio.run(run())


def test_a_batch_whose_forerunner_another_worker_replaced_is_not_written() -> None:
    async def run() -> None:
        shelf = Shelf()
        one = applier(shelf)
        await one.positions({0: 0})
        first = await one.fold([record(0, 1)])
        second = await one.fold([record(1, 1)])
        shelf.marks[0] = 0  # somebody else wrote the first record
        with pytest.raises(FencedError):
            await one.finish(first)
        states = dict(shelf.states)
        shelf.marks[0] = 5
        with pytest.raises(FencedError):
            await one.finish(second)
        assert shelf.states == states

    asyncio.run(run())


class Message(NamedTuple):
    value: list[Record]


class Stream:
    """A Faust stream of given messages."""

    def __init__(self, messages: Sequence[Message], shelf: Shelf) -> None:
        self.messages, self.shelf = messages, shelf
        self.channel: Any = self
        self.queue: Any = self

    def empty(self) -> bool:
        return True

    def noack(self) -> "Stream":
        return self

    async def events(self) -> AsyncIterator[Message]:
        for message in self.messages:
            yield message

    async def ack(self, message: Message) -> None:
        self.shelf.done.append(f"acknowledge {message.value[0].offset}")


def test_the_worker_folds_the_next_batch_while_one_waits_and_sends_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def confirm(_: Worker) -> None:
        await asyncio.sleep(0)

    async def run() -> list[str]:
        shelf = Shelf()
        shelf.may_store.clear()
        one = applier(shelf)
        await one.positions({0: 0})
        fold = one.fold

        async def noted(records: Sequence[Record]) -> Folded:
            folded = await fold(records)
            shelf.done.append(f"fold {records[0].offset}")
            return folded

        monkeypatch.setattr(one, "fold", noted)
        monkeypatch.setattr(Worker, "_confirm_log", confirm)
        worker = Worker(StreamsSettings())
        worker._applier = one
        running = asyncio.create_task(worker.run(Stream([Message([record(n, 1)]) for n in range(3)], shelf)))
        async with asyncio.timeout(10):
            while "fold 1" not in shelf.done:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert shelf.done == ["fold 0", "send", "fold 1"] or shelf.done == ["fold 0", "fold 1", "send"]
        shelf.may_store.set()
        await running
        await worker.close()
        return shelf.done

    monkeypatch.setattr(run_worker, "end_process", pytest.fail)
    done = asyncio.run(run())
    steps = ["send", "write", "acknowledge 0", "send", "write", "acknowledge 1", "send", "write", "acknowledge 2"]
    assert [step for step in done if not step.startswith("fold")] == steps


def test_a_rebalance_waits_for_what_is_in_hand_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def confirm(_: Worker) -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        shelf = Shelf()
        shelf.may_store.clear()
        one = applier(shelf)
        await one.positions({0: 0})
        worker = Worker(StreamsSettings())
        worker._applier = one
        await worker.settle()  # nothing is in hand
        running = asyncio.create_task(worker.run(Stream([Message([record(n, 1)]) for n in range(2)], shelf)))
        while "send" not in shelf.done:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(run_worker, "SETTLE_S", 0.05)
        await worker.settle()
        assert "write" not in shelf.done, "it gave up"
        monkeypatch.setattr(run_worker, "SETTLE_S", 10.0)
        asyncio.get_running_loop().call_later(0.05, shelf.may_store.set)
        await worker.settle()
        assert [step for step in shelf.done if step != "send"] == ["write", "acknowledge 0", "write", "acknowledge 1"]
        await running
        await worker.close()

    monkeypatch.setattr(Worker, "_confirm_log", confirm)
    monkeypatch.setattr(run_worker, "end_process", pytest.fail)
    asyncio.run(run())


def test_a_batch_that_cannot_be_finished_ends_the_worker_also_when_no_other_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Exception] = []

    async def confirm(_: Worker) -> None:
        raise FencedError("another log")

    async def run() -> list[str]:
        shelf = Shelf()
        one = applier(shelf)
        await one.positions({0: 0})
        monkeypatch.setattr(Worker, "_confirm_log", confirm)
        worker = Worker(StreamsSettings())
        worker._applier = one
        await worker.run(Stream([Message([record(0, 1)])], shelf))
        await worker.close()
        return shelf.done

    monkeypatch.setattr(run_worker, "end_process", ends.append)
    assert asyncio.run(run()) == []
    assert [str(error) for error in ends] == ["another log"]
