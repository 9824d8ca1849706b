"""How far are streams behind, by `intentloop status`, on either broker?"""

import asyncio
import uuid

import pytest

from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.commands import status
from intentloop.topics import TELEMETRY
from tests.integration.streams.listener import send_numbers


async def behind(kafka: KafkaSection, redis_section: RedisSection, left: int) -> int:
    """Put 3,000 records on the topic, have all but `left` of one partition applied, and ask."""
    ensure_topics(kafka, (TELEMETRY,))
    last = await send_numbers(kafka, 3_000)
    some = max(last, key=lambda number: last[number])
    async with connect(redis_section) as redis:
        keys = Keys(redis_section.prefix)
        for partition in range(TELEMETRY.partitions):
            mark = last.get(partition, -3) - (left if partition == some else 0)
            await redis.set(keys.watermark(partition), mark)
    found = await status.find(status.StatusSettings(kafka=kafka, redis=redis_section))
    return found.behind[TELEMETRY.name]


@pytest.mark.needs_apache_kafka
def test_a_backlog_is_told_whole_however_little_of_it_can_be_read(
    apache_kafka: str, redis_section: RedisSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LOOK_S", 0.0)
    kafka = KafkaSection(bootstrap=apache_kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")
    assert asyncio.run(behind(kafka, redis_section, 230)) == 230


def test_on_the_embedded_broker_what_can_be_read_is_behind(kafka: KafkaSection, redis_section: RedisSection) -> None:
    assert asyncio.run(behind(kafka, redis_section, 23)) == 23
