"""Which of what librdkafka hands out are records, and which are word of a fault?"""

import asyncio
import logging

import pytest
from confluent_kafka import KafkaError, Message

from intentloop.adapters.embedded import free_port
from intentloop.adapters.record_fetcher import RecordFetcher, _is_record
from intentloop.errors import UnavailableError


def message(code: int | None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message(topic="t", partition=3, offset=1, key=None, value=b"x", error=error)


def test_a_record_is_one() -> None:
    assert _is_record(message(None))


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION])
def test_a_topic_that_is_not_there_yet_is_waited_for_and_told(code: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not _is_record(message(code))
    assert "partition 3 of t is not there" in caplog.text


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG])
def test_what_the_broker_refuses_or_breaks_is_an_error_and_no_silence(code: int) -> None:
    with pytest.raises(UnavailableError, match="partition 3 of t cannot be read"):
        _is_record(message(code))


def test_a_broker_that_cannot_be_reached_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        fetcher = RecordFetcher(f"127.0.0.1:{free_port()}", "t", "g")
        try:
            await fetcher.begin_at({0: 0})
            async with asyncio.timeout(60):
                while not caplog.records:
                    assert await fetcher.fetch(10) == []
            for _ in range(10):
                await fetcher.fetch(10)
        finally:
            await fetcher.close()

    with caplog.at_level(logging.WARNING, "streams.fetch"):
        asyncio.run(run())
    told = [record.getMessage() for record in caplog.records]
    assert all(text.startswith("records of t cannot be fetched from 127.0.0.1:") for text in told)
    assert len(told) <= 2, "once that there is no connection, once that there is none to any broker"
