"""Deliveries reach who waits for them, whoever else gave up, and until the producer has stopped."""

import asyncio

import pytest

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection
from intentloop.adapters.telemetry_producer import Position, TelemetryProducer
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import ContractError, UnavailableError
from intentloop.topics import TELEMETRY
from tests.integration.gateway.conftest import stored


def test_one_who_gives_up_takes_nothing_from_the_others(kafka: KafkaSection) -> None:
    ensure_topics(kafka)

    async def main() -> list[Position]:
        wrong: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        producer = TelemetryProducer(kafka, timeout_s=20.0)
        producer.start()
        sends = [asyncio.create_task(producer.send(TELEMETRY, "u", b'{"n":%d}' % n)) for n in range(40)]
        await asyncio.sleep(0)  # all are handed over
        for given_up in sends[:20]:
            given_up.cancel()
        positions = await asyncio.gather(*sends[20:])
        await producer.stop()
        assert wrong == []
        assert all(given_up.cancelled() for given_up in sends[:20])
        return positions

    positions = asyncio.run(main())
    assert [each.offset for each in positions] == list(range(20, 40)), "one user's values in the order they were sent"
    assert len({each.partition for each in positions}) == 1


def test_stopping_waits_for_what_is_under_way(kafka: KafkaSection) -> None:
    ensure_topics(kafka)

    async def main() -> tuple[bool, bool]:
        producer = TelemetryProducer(kafka, timeout_s=20.0)
        producer.start()
        sent = asyncio.create_task(producer.send(TELEMETRY, "u", b'{"batch_id":"b","user_id":"u","device_id":"d"}'))
        await asyncio.sleep(0)
        before = sent.done()
        await producer.stop()
        with pytest.raises(ContractError, match="after stop"):
            await producer.send(TELEMETRY, "u", b"{}")
        return before, sent.done()

    assert asyncio.run(main()) == (False, True)
    assert [key for key, _ in stored(kafka, TELEMETRY, 1)] == ["u"]


def test_a_broker_that_is_not_there_is_told_in_time() -> None:
    nowhere = KafkaSection(bootstrap=f"127.0.0.1:{embedded.free_port()}")

    async def main() -> None:
        producer = TelemetryProducer(nowhere, timeout_s=0.5)
        producer.start()
        with pytest.raises(UnavailableError, match="did not confirm"):
            await asyncio.wait_for(producer.send(TELEMETRY, "u", b"{}"), 60)
        await producer.stop()

    asyncio.run(main())
