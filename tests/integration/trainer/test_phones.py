"""Phones' reports are read on from where reading stopped, each envelope once, whatever else lies on the topic."""

import asyncio
from pathlib import Path

import msgspec

from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.events import Envelope, Inference
from intentloop.topics import TELEMETRY
from trainer import phones

BUDGET_S = 60.0  # reading ends as soon as nothing more comes


def envelope(number: int, version: str = "v1") -> Envelope:
    inference = Inference(
        event_id=f"e{number}", ts_ms=1, model_version=version, prompt_version="p1", read=(), sequence_digest="",
        answer="闲逛", ttft_ms=100.0 + number, total_ms=300.0, prompt_tokens=200, output_tokens=2,
    )  # fmt: skip
    user = f"user-{number}"
    return Envelope(batch_id=f"b{number}", user_id=user, device_id="d", device_model="Mate", events=(inference,))


async def send(kafka: KafkaSection, *envelopes: Envelope) -> None:
    async with FactProducer(kafka) as producer:
        for each in envelopes:
            await producer.send(TELEMETRY, each.user_id, each)


def test_reading_goes_on_where_it_stopped(kafka: KafkaSection, tmp_path: Path) -> None:
    ensure_topics(kafka)
    path = tmp_path / "work" / "phones.json"
    asyncio.run(send(kafka, *(envelope(number) for number in range(20)), envelope(3)))
    first = phones.collect(kafka, path, BUDGET_S)
    assert [(row.device_model, row.version, row.inferences) for row in first.table.rows] == [("Mate", "v1", 20)]
    assert first.table.resent == 1
    assert sum(first.offsets.values()) == 21
    assert phones.read(path) == first

    asyncio.run(send(kafka, envelope(20), envelope(21, "v2")))
    second = phones.collect(kafka, path, BUDGET_S)
    assert [(row.version, row.inferences) for row in second.table.rows] == [("v1", 21), ("v2", 1)]
    assert phones.collect(kafka, path, BUDGET_S) == second


def test_a_broker_that_began_anew_is_read_from_its_beginning(kafka: KafkaSection, tmp_path: Path) -> None:
    ensure_topics(kafka)
    path = tmp_path / "phones.json"
    asyncio.run(send(kafka, envelope(0)))
    old = phones.Collected(epoch="another/log", offsets=dict.fromkeys(range(TELEMETRY.partitions), 1_000_000))
    path.write_bytes(msgspec.json.encode(old))
    assert [row.inferences for row in phones.collect(kafka, path, BUDGET_S).table.rows] == [1]


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert phones.read(tmp_path / "phones.json").table.rows == []
