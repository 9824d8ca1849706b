"""The protocol with a store and a producer that record the order of what happens."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import pytest

from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.state_store import PartitionWrite
from intentloop.errors import FencedError
from intentloop.fold import FoldRule
from intentloop.picks import PickRule
from intentloop.topics import Topic
from streams.apply_batch import BatchApplier
from streams.fold_records import FoldContext
from tests.unit.streams.test_fold_records import record


class Doors:
    """Stands for Redis and Kafka at once, so that the order of effects is seen."""

    def __init__(self, watermark: int = -1) -> None:
        self.watermark, self.done, self.send_fails = watermark, list[str](), False

    async def watermarks(self, partitions: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, self.watermark)

    async def load(
        self, expected: Mapping[int, int], state_keys: Sequence[str], confirmed: Mapping[int, int]
    ) -> dict[str, bytes | None]:
        self.done.append("load")
        return dict.fromkeys(state_keys)

    async def apply(self, writes: Iterable[PartitionWrite]) -> None:
        self.done.append(f"apply to {next(iter(writes)).watermark}")

    async def send_all(self, facts: Iterable[tuple[Topic, str, bytes]]) -> None:
        for _ in facts:
            await asyncio.sleep(0)
            if self.send_fails:
                raise ConnectionError("broker is gone")
            self.done.append("stored")


def applier(doors: Doors) -> BatchApplier:
    context = FoldContext(Keys("t"), FoldRule(pick=PickRule(random_ratio=1.0)))
    return BatchApplier(doors, doors, context)  # type: ignore[arg-type]


def run(doors: Doors, records: Sequence[Record], earliest: int = 0, log: str = "ours") -> int:
    async def confirm() -> None:
        doors.done.append(f"the log is {log}")
        if log != "ours":
            raise FencedError("another log")

    async def body() -> int:
        worker = applier(doors)
        await worker.positions({0: earliest})
        folded = await worker.fold(records)
        await worker.finish(folded, asyncio.create_task(confirm()))
        return folded.records

    return asyncio.run(body())


def test_outputs_are_stored_before_the_watermark_moves() -> None:
    doors = Doors()
    assert run(doors, [record(0, 1)]) == 1
    assert doors.done[:2] == ["load", "the log is ours"]
    assert doors.done[-1] == "apply to 0"
    assert set(doors.done[2:-1]) == {"stored"}
    assert len(doors.done) > 3


@pytest.mark.parametrize("watermark", [-1, 5])
def test_nothing_follows_from_records_of_another_log(watermark: int) -> None:
    doors = Doors(watermark)
    with pytest.raises(FencedError, match="another log"):
        run(doors, [record(0, 1)], log="another")
    assert set(doors.done) <= {"load", "the log is another"}


def test_a_failed_send_leaves_the_watermark_where_it_was() -> None:
    doors = Doors()
    doors.send_fails = True
    with pytest.raises(ConnectionError):
        run(doors, [record(0, 1)])
    assert not any(step.startswith("apply") for step in doors.done)


def test_what_lies_at_or_below_the_watermark_is_skipped() -> None:
    doors = Doors(watermark=1)
    assert run(doors, [record(0, 1), record(1, 1), record(2, 1)]) == 1
    assert run(Doors(watermark=2), [record(1, 1), record(2, 1)]) == 0


def test_a_gap_stops_the_worker() -> None:
    with pytest.raises(FencedError, match="goes on at offset 3, expected 2"):
        run(Doors(watermark=0), [record(1, 1), record(3, 1)])


def test_a_gap_that_is_still_there_after_a_seek_is_none_of_ours() -> None:
    doors = Doors(watermark=1)
    assert run(doors, [record(3, 1), record(4, 1)]) == 2  # offset 2 holds the marker of a transaction
    assert doors.done[-1] == "apply to 4"
    with pytest.raises(FencedError, match="goes on at offset 6, expected 5"):
        run(Doors(watermark=1), [record(3, 1), record(4, 1), record(6, 1)])


def test_a_gap_after_a_record_that_was_known_is_a_gap() -> None:
    with pytest.raises(FencedError, match="goes on at offset 4, expected 3"):
        run(Doors(watermark=2), [record(2, 1), record(4, 1)])


def test_records_that_retention_deleted_are_not_waited_for() -> None:
    assert run(Doors(watermark=3), [record(7, 1)], earliest=7) == 1
    assert run(Doors(), [record(7, 1)], earliest=7) == 1


def test_records_of_a_partition_that_was_taken_away_are_left_to_its_owner() -> None:
    assert run(Doors(), [record(0, 1, partition=5)]) == 0
