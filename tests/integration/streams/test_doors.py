"""The compare-and-set script, the broker's identity and the health server against real services."""

import asyncio
import urllib.error
import urllib.request

import pytest
from kafka.admin import KafkaAdminClient
from redis.asyncio import Redis

from intentloop.adapters.broker_epoch import LogIdentity, broker_epoch
from intentloop.adapters.health import HealthServer
from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import HealthSection, KafkaSection, RedisSection
from intentloop.adapters.state_store import PartitionWrite, StateStore, enter_epoch, read_counts
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import ConfigurationError, FencedError, UnavailableError
from intentloop.topics import TELEMETRY


def test_a_batch_is_applied_once_whole_and_a_lost_script_is_loaded_again(redis_section: RedisSection) -> None:
    async def run() -> None:
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        store = StateStore(redis, keys, ttl_s=90_000)
        user = keys.user(3, "u1")
        await redis.script_flush()
        write = PartitionWrite(3, -1, 10, {user: b"\x00packed"}, {"applied": 4, "late": 1})
        await store.apply([write, PartitionWrite(4, -1, 7, {}, {"applied": 2})])
        assert await store.watermarks([3, 4, 5]) == {3: 10, 4: 7, 5: -1}
        assert await redis.get(user) == b"\x00packed"
        assert 89_990 <= await redis.ttl(user) <= 90_000
        assert await redis.ttl(keys.watermark(3)) == -1, "a watermark never expires"
        with pytest.raises(FencedError, match="watermark of partition 3 is 10, expected -1"):
            await store.apply([write])
        with pytest.raises(FencedError):
            await store.load({3: 9}, [user])
        assert await store.load({3: 10}, [user, "absent"]) == {user: b"\x00packed", "absent": None}
        assert await read_counts(redis, keys) == {"applied": 6, "late": 1}
        await redis.aclose()

    asyncio.run(run())


def test_versions_that_nobody_released_share_their_counters_once_there_are_too_many(
    redis_section: RedisSection,
) -> None:
    async def run() -> None:
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        store = StateStore(redis, keys, ttl_s=90_000, max_counters=4)
        await redis.hset(keys.releases, "v1", "{}")
        for number in range(50):
            junk = {f"fleet:junk{number}:said:闲逛": 1, f"faults_degenerate:junk{number}": 2}
            counts = {"applied": 1, **junk, "fleet:v1:said:闲逛": 3}
            await store.apply([PartitionWrite(0, number - 1, number, {}, counts)])
        found = await read_counts(redis, keys)
        assert found.pop("applied") == 50
        assert found.pop("fleet:v1:said:闲逛") == 150, "a release always has its own"
        assert len(found) <= 6, "the cap, and one shared name of each kind"
        assert sum(count for name, count in found.items() if name.startswith("fleet:")) == 50, "none is lost"
        assert sum(count for name, count in found.items() if name.startswith("faults_degenerate:")) == 100
        assert found["fleet:other:said:闲逛"] > 40
        store._released_at_s -= 60.0  # v2 comes out later
        await redis.hset(keys.releases, "v2", "{}")
        await store.apply([PartitionWrite(0, 49, 50, {}, {"fleet:v2:top:c1": 7, "late": 1})])
        found = await read_counts(redis, keys)
        assert (found["fleet:v2:top:c1"], found["late"]) == (7, 1)
        await redis.aclose()

    asyncio.run(run())


def test_a_broker_that_began_anew_is_noticed(redis_section: RedisSection) -> None:
    async def run() -> None:
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        assert await enter_epoch(redis, keys, "one", reset=False) == 0
        assert await enter_epoch(redis, keys, "two", reset=False) == 0, "nothing was applied yet"
        await redis.set(keys.watermark(2), 5)
        assert await enter_epoch(redis, keys, "two", reset=False) == 0
        with pytest.raises(ConfigurationError, match="RESET_ON_NEW_BROKER"):
            await enter_epoch(redis, keys, "three", reset=False)
        assert await enter_epoch(redis, keys, "three", reset=True) == 1
        assert await redis.get(keys.watermark(2)) == b"-3"
        assert await enter_epoch(redis, keys, "three", reset=False) == 1
        await redis.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("applied", [False, True])
def test_a_batch_of_the_log_before_is_not_written_where_nothing_was_applied_in_either(
    redis_section: RedisSection, applied: bool
) -> None:
    async def run() -> None:
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        store = StateStore(redis, keys, ttl_s=60)
        await enter_epoch(redis, keys, "one", reset=False)
        if applied:
            await store.apply([PartitionWrite(2, -1, 5, {}, {})])
        stalled = PartitionWrite(3, (await store.watermarks([3]))[3], 4, {keys.user(3, "u"): b"old"}, {})
        await enter_epoch(redis, keys, "two", reset=True)
        with pytest.raises(FencedError):
            await store.apply([stalled])
        assert await redis.get(keys.user(3, "u")) is None
        begin = (await store.watermarks([3]))[3]
        assert begin < 0
        await store.apply([PartitionWrite(3, begin, 0, {}, {})])
        assert await store.watermarks([3]) == {3: 0}
        await redis.aclose()

    asyncio.run(run())


def test_workers_that_enter_a_new_broker_together_reset_it_once(redis_section: RedisSection) -> None:
    async def run() -> None:
        redis, keys = Redis.from_url(redis_section.url), Keys(redis_section.prefix)
        await enter_epoch(redis, keys, "one", reset=False)
        await redis.set(keys.watermark(2), 5)

        async def enter_and_apply() -> int:
            resets = await enter_epoch(redis, keys, "two", reset=True)
            await redis.set(keys.watermark(2), 7)  # applied on the new broker: nobody may take it away
            return resets

        assert await asyncio.gather(*(enter_and_apply() for _ in range(20))) == [1] * 20
        assert await redis.get(keys.watermark(2)) == b"7"
        await redis.aclose()

    asyncio.run(run())


def test_the_epoch_names_cluster_and_topic(kafka: KafkaSection, prefix: str) -> None:
    ensure_topics(kafka)
    ensure_topics(other := kafka.model_copy(update={"prefix": f"{prefix}.other."}))
    cluster, topic = broker_epoch(kafka, TELEMETRY).split("/")
    assert cluster
    assert topic
    assert broker_epoch(other, TELEMETRY).split("/")[0] == cluster
    assert broker_epoch(other, TELEMETRY) != broker_epoch(kafka, TELEMETRY)
    assert broker_epoch(kafka.model_copy(update={"epoch": "mine"}), TELEMETRY) == "mine"


def test_a_topic_that_was_made_anew_has_another_epoch(kafka: KafkaSection) -> None:
    identity = LogIdentity(kafka, TELEMETRY)
    with pytest.raises(UnavailableError, match="has no topic"):
        identity.read()
    ensure_topics(kafka, (TELEMETRY,))
    before = identity.read()
    assert identity.read() == before == broker_epoch(kafka, TELEMETRY)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_topics([f"{kafka.prefix}{TELEMETRY.name}"])
    admin.close()
    with pytest.raises(UnavailableError, match="has no topic"):
        identity.read()
    ensure_topics(kafka, (TELEMETRY,))
    after = identity.read()
    assert after.split("/")[0] == before.split("/")[0]
    assert after.split("/")[1] != before.split("/")[1]


def fetch(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_is_red_with_the_reason_and_green_without() -> None:
    async def run() -> None:
        reasons = {"agent": "", "redis": ""}
        server = HealthServer(HealthSection(), lambda: reasons)
        port = await server.start()
        assert await asyncio.to_thread(fetch, port, "/health") == (
            200,
            '{"status":"ok","checks":{"agent":"","redis":""}}',
        )
        reasons["agent"] = "the agent has stopped"
        status, body = await asyncio.to_thread(fetch, port, "/health")
        assert status == 503
        assert "the agent has stopped" in body
        assert (await asyncio.to_thread(fetch, port, "/metrics"))[0] == 200
        assert (await asyncio.to_thread(fetch, port, "/other"))[0] == 404
        assert (await asyncio.to_thread(fetch, port, "/health", "POST"))[0] == 405
        await server.stop()

    asyncio.run(run())
