"""From a trigger on Kafka to the order of a feed."""

import asyncio
import time
from typing import Any, Literal

import msgspec
import pytest

from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.settings import KafkaSection
from intentloop.facts import IntentDrifted, IntentTriggered, TriggerData
from intentloop.privacy import user_hash
from intentloop.topics import DRIFTED, TRIGGERED
from tests.integration.gateway.conftest import USER_KEY, RunningGateway, wait_for

FEED = [
    {"id": "seen", "title": "咖啡", "exposed": True},
    {"id": "rice", "title": "大米"},
    {"id": "remote", "title": "空调遥控器", "category": "家电.空调.遥控器"},
]


def rerank(gateway: RunningGateway, user: str) -> Any:
    answer = gateway.client.post("/v1/rerank", json={"user_id": user, "cards": FEED})
    assert answer.status_code == 200, answer.text
    return answer.json()


def trigger(user: str, lives_ms: int, keywords: tuple[str, ...] = ("遥控器", "空调")) -> IntentTriggered:
    hashed = user_hash(user, USER_KEY.encode())
    data = TriggerData(
        user_id=hashed,
        device_id="d",
        intent="比价犹豫",
        keywords=keywords,
        model_version="v1",
        inference_id="i",
        expires_at_ms=int(time.time() * 1000) + lives_ms,
    )
    kind: Literal["shopping_hesitate_trigger"] = "shopping_hesitate_trigger"
    return IntentTriggered(
        id=f"t-{user}", source="test", type=kind, subject=hashed, time="2026-11-30T10:00:00Z", data=data
    )


def state_triggers(kafka: KafkaSection, *triggers: IntentTriggered) -> None:
    async def main() -> None:
        async with FactProducer(kafka) as producer:
            await producer.send_bytes(TRIGGERED, "x", b"not a trigger")  # must not stop those behind it
            for each in triggers:
                await producer.send(TRIGGERED, each.subject, each)

    asyncio.run(main())


def state_drifts(kafka: KafkaSection, *drifts: IntentDrifted) -> None:
    async def main() -> None:
        async with FactProducer(kafka) as producer:
            await producer.send_bytes(DRIFTED, "x", b"not a drift")
            for each in drifts:
                await producer.send(DRIFTED, each.user_id, each)

    asyncio.run(main())


def test_a_feed_follows_the_latest_trigger_until_it_expires(gateway: RunningGateway, kafka: KafkaSection) -> None:
    unchanged = rerank(gateway, "u1")
    assert [card["id"] for card in unchanged["cards"]] == ["seen", "rice", "remote"]
    assert (unchanged["intent"], unchanged["keywords"]) == ("", [])
    later, earlier = trigger("u1", 600_000), trigger("u1", 300_000, ("大米",))
    state_triggers(kafka, trigger("u0", -1_000), later, earlier, trigger("u2", 8_000))
    wait_for(lambda: rerank(gateway, "u2")["intent"] != "", "the trigger did not reach the feed")
    wait_for(lambda: rerank(gateway, "u1")["intent"] != "", "the trigger did not reach the feed")
    found = rerank(gateway, "u1")
    assert [card["id"] for card in found["cards"]] == ["seen", "remote", "rice"]
    assert (found["intent"], found["keywords"]) == ("比价犹豫", ["遥控器", "空调"])
    assert rerank(gateway, "u0") == unchanged
    wait_for(lambda: rerank(gateway, "u2") == unchanged, "the intent did not expire")
    assert gateway.client.get("/health").json()["checks"]["live_intents"] == ""


def drift(user: str, stale_ms: int) -> IntentDrifted:
    """A drift after which no intent stated before it lives longer than `stale_ms` from now."""
    until_ms = int(time.time() * 1000) + stale_ms
    hashed = user_hash(user, USER_KEY.encode())
    return IntentDrifted(id=f"d-{user}", user_id=hashed, scores=(), before=(), after=(), stale_until_ms=until_ms)


def test_nobody_acts_on_an_intent_that_behaviour_has_left(gateway: RunningGateway, kafka: KafkaSection) -> None:
    state_triggers(kafka, trigger("u1", 300_000), trigger("u2", 300_000))
    wait_for(lambda: rerank(gateway, "u1")["intent"] != "", "the trigger did not reach the feed")
    wait_for(lambda: rerank(gateway, "u2")["intent"] != "", "the trigger did not reach the feed")
    state_drifts(kafka, drift("u1", 400_000), drift("u2", 200_000), drift("u3", 400_000))
    wait_for(lambda: rerank(gateway, "u1")["intent"] == "", "the drift did not reach the feed")
    assert [card["id"] for card in rerank(gateway, "u1")["cards"]] == ["seen", "rice", "remote"]
    assert rerank(gateway, "u2")["intent"] != "", "stated after the drift"
    state_triggers(kafka, trigger("u1", 500_000), trigger("u3", 300_000), trigger("u4", 300_000))
    wait_for(lambda: rerank(gateway, "u4")["intent"] != "", "the trigger did not reach the feed")
    wait_for(lambda: rerank(gateway, "u1")["intent"] != "", "a newer trigger counts again")
    time.sleep(0.5)  # partitions are read one after the other
    assert rerank(gateway, "u3")["intent"] == "", "a trigger of before the drift that came late"


@pytest.mark.parametrize("first", ["drift", "trigger"])
def test_a_trigger_of_the_drift_s_own_moment_counts_in_whatever_order_they_are_read(
    gateway: RunningGateway, kafka: KafkaSection, first: str
) -> None:
    stated = trigger(first, 300_000)
    left = msgspec.structs.replace(drift(first, 0), stale_until_ms=stated.data.expires_at_ms)
    if first == "drift":
        state_drifts(kafka, left)
        time.sleep(1.0)  # to be read before the trigger
    state_triggers(kafka, stated)
    if first == "trigger":
        wait_for(lambda: rerank(gateway, first)["intent"] != "", "the trigger did not reach the feed")
        state_drifts(kafka, left)
        time.sleep(1.0)
    wait_for(lambda: rerank(gateway, first)["intent"] != "", "the trigger does not count")
    state_triggers(kafka, trigger("last", 300_000))
    wait_for(lambda: rerank(gateway, "last")["intent"] != "", "the trigger did not reach the feed")
    assert rerank(gateway, first)["intent"] != ""


def test_a_body_that_is_no_feed_is_refused(gateway: RunningGateway) -> None:
    for body in (b"", b"{}", b'{"user_id":"","cards":[]}', b'{"user_id":"u","cards":[{"title":"x"}]}', b"\xff"):
        answer = gateway.client.post("/v1/rerank", content=body)
        assert (answer.status_code, answer.json()["retry"]) == (400, False)
    many = {"user_id": "u", "cards": [{"id": str(n)} for n in range(501)]}
    assert gateway.client.post("/v1/rerank", json=many).status_code == 400
