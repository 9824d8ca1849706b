"""From a phone's request to Kafka, over a real socket, with everything that phones and strangers send."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.events import Envelope
from intentloop.facts import DeadLetter
from intentloop.privacy import user_hash
from intentloop.topics import TELEMETRY, dead
from tests.integration.gateway.conftest import TOKEN, USER_KEY, RunningGateway, running_gateway, stored, wait_for


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def event(name: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "behaviour", "event_id": name, "action": "item_view", "ts_ms": now_ms(), "title": "帐篷"} | changes


def batch(name: str, *events: Any, user: str = "raw-user-1") -> dict[str, Any]:
    return {"batch_id": name, "user_id": user, "device_id": "d1", "sent_at_ms": now_ms(), "events": list(events)}


def test_a_batch_is_on_kafka_before_it_is_acknowledged_and_nobodys_id_is(
    gateway: RunningGateway, kafka: KafkaSection
) -> None:
    body = gzip.compress(json.dumps(batch("b1", event("e1"), event("e2"))).encode())
    answer = gateway.client.post("/v1/telemetry", content=body, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2, "rejected": []})
    ((key, envelope),) = stored(kafka, TELEMETRY, 1)
    assert isinstance(envelope, Envelope)
    assert key == envelope.user_id == user_hash("raw-user-1", USER_KEY.encode())
    assert [each.event_id for each in envelope.events] == ["e1", "e2"]
    assert abs(envelope.received_at_ms - now_ms()) < 30_000


def test_t16_a_bad_event_goes_to_the_dead_letters_and_its_neighbours_go_on(
    gateway: RunningGateway, kafka: KafkaSection
) -> None:
    bad = {"type": "item_detail", "ts": now_ms(), "dwell_s": "abc", "user_id": "raw-user-1", "title": "13812345678"}
    answer = gateway.client.post("/v1/telemetry", json=batch("b1", event("e1"), bad, event("e2")))
    expected = [{"index": 1, "reason": "dwell_s 'abc' is not a finite number"}]
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2, "rejected": expected})
    ((_, envelope),) = stored(kafka, TELEMETRY, 1)
    assert [(each.index, each.reason) for each in envelope.rejected] == [(1, expected[0]["reason"])]
    ((_, letter),) = stored(kafka, dead(TELEMETRY), 1)
    assert isinstance(letter, DeadLetter)
    assert (letter.source_topic, letter.source_offset, letter.index) == (TELEMETRY.name, 0, 1)
    assert "abc" in letter.excerpt
    assert "raw-user-1" not in letter.excerpt
    assert "13812345678" not in letter.excerpt
    counted = gateway.client.get("/metrics").text
    assert 'intentloop_gateway_events_total{outcome="accepted"} 2.0' in counted
    assert 'intentloop_gateway_events_total{outcome="rejected"} 1.0' in counted


def test_t01_a_batch_that_is_sent_again_is_taken_again_with_the_same_events(
    gateway: RunningGateway, kafka: KafkaSection
) -> None:
    first, again = batch("b1", event("e1", ts_ms=now_ms())), batch("b1-retry")
    again["events"] = [*first["events"], event("e2")]
    for body in (first, again):
        assert gateway.client.post("/v1/telemetry", json=body).status_code == 202
    envelopes = [envelope for _, envelope in stored(kafka, TELEMETRY, 2)]
    assert len({each.user_id for each in envelopes}) == 1
    assert [[one.event_id for one in each.events] for each in envelopes] == [["e1"], ["e1", "e2"]]
    assert envelopes[0].events[0] == envelopes[1].events[0]


def test_t10_a_bomb_is_refused_while_others_are_served_and_memory_stays(shared: RunningGateway) -> None:
    bomb = gzip.compress(b"0" * 134_217_728, 9)
    headers = {"content-encoding": "gzip", "authorization": f"Bearer {TOKEN}"}
    before = psutil.Process(shared.process.pid).memory_info().rss

    async def run() -> tuple[list[int], float]:
        async with httpx.AsyncClient(base_url=shared.url, timeout=20, trust_env=False) as client:
            bombs = [
                asyncio.create_task(client.post("/v1/telemetry", content=bomb, headers=headers)) for _ in range(16)
            ]
            begun, slowest = time.perf_counter(), 0.0
            while not all(task.done() for task in bombs):
                begun = time.perf_counter()
                assert (await client.get("/metrics")).status_code == 200
                slowest = max(slowest, time.perf_counter() - begun)
            return [task.result().status_code for task in bombs], slowest

    statuses, slowest = asyncio.run(run())
    assert statuses == [413] * 16
    assert slowest < 5.0  # a synchronous inflate would hold everybody for the whole bomb
    assert psutil.Process(shared.process.pid).memory_info().rss - before < 100 << 20
    stranger = httpx.post(f"{shared.url}/v1/telemetry", content=bomb, headers={"content-encoding": "gzip"})
    assert stranger.status_code == 401


def test_a_body_that_never_ends_is_cut_off_also_for_a_stranger(shared: RunningGateway) -> None:
    def endless() -> Any:
        for _ in range(64):
            yield b"0" * (1 << 20)

    for headers, status in (({}, 413), ({"authorization": "Bearer wrong"}, 401)):
        try:
            answer = shared.client.post("/v1/telemetry", content=endless(), headers=headers)
        except httpx.TransportError:
            continue  # the connection was closed while we were still sending: as good
        assert answer.status_code == status
    assert shared.client.get("/health").status_code == 200


def test_a_stranger_is_turned_away_everywhere(shared: RunningGateway) -> None:
    routes = (
        ("POST", "/v1/telemetry"),
        ("GET", "/v1/device/config?user_id=u"),
        ("GET", "/v1/models/v1/manifest.json"),
        ("GET", "/v1/models/v1/files/llm.mnn"),
    )
    for header in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
        for method, path in routes:
            answer = httpx.request(method, shared.url + path, headers={"authorization": header}, trust_env=False)
            assert (answer.status_code, answer.json()["retry"]) == (401, False), (header, path)


def test_whole_body_faults_say_what_is_wrong_and_are_not_worth_a_retry(
    gateway: RunningGateway, kafka: KafkaSection
) -> None:
    k11 = batch("k11", *(event(f"e{n}", title="帐" * 1500) for n in range(300)))
    cases: list[tuple[bytes, dict[str, str], int]] = [
        (b"{", {}, 400),
        (b"", {}, 400),
        (b"{}", {"content-encoding": "gzip"}, 400),
        (b"{}", {"content-encoding": "br"}, 415),
        (b" " * ((1 << 20) + 1), {}, 413),
        (json.dumps(k11).encode(), {}, 413),
        (gzip.compress(json.dumps(k11).encode()), {"content-encoding": "gzip"}, 413),
    ]
    for content, headers, status in cases:
        answer = gateway.client.post("/v1/telemetry", content=content, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.json()["retry"] is False
        assert answer.json()["error"]
    assert gateway.client.post("/v1/telemetry", json=batch("b", event("e1"))).status_code == 202
    assert len(stored(kafka, TELEMETRY, 1)) == 1


def test_the_short_way_and_the_frameworks_answer_alike(shared: RunningGateway) -> None:
    cases: tuple[tuple[bytes, dict[str, str], int], ...] = (
        (json.dumps(batch("b", event("e1"), {"ts": "x"}, event("e2", action="new"))).encode(), {}, 202),
        (b"{", {}, 400),
        (b"{}", {"content-encoding": "br"}, 415),
        (b" " * ((1 << 20) + 1), {}, 413),
        (b"{}", {"authorization": "Bearer wrong"}, 401),
    )
    for content, headers, status in cases:
        short, full = (
            shared.client.post(path, content=content, headers=headers) for path in ("/v1/telemetry", "/v1/telemetry/")
        )
        assert (short.status_code, full.status_code) == (status, status)
        assert short.content == full.content
        for name in ("content-type", "content-length", "www-authenticate"):
            assert short.headers.get(name) == full.headers.get(name), name


def test_k11_a_batch_too_large_for_one_message_is_refused_and_others_go_on(shared: RunningGateway) -> None:
    read = [{"action": "item_view", "title": "帐" * 400} for _ in range(50)]
    inference = {"kind": "inference", "ts_ms": now_ms(), "model_version": "v", "prompt_version": "p"}
    events = [
        inference | {"event_id": f"i{n}", "read": read, "sequence_digest": "d", "answer": "闲逛"} for n in range(20)
    ]
    body = gzip.compress(json.dumps(batch("big", *events), ensure_ascii=False).encode())
    answer = shared.client.post("/v1/telemetry", content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 413
    assert "1000000" in answer.json()["error"]
    assert shared.client.post("/v1/telemetry", json=batch("b", event("e1"))).status_code == 202


def test_64_connections_at_once_lose_nothing(gateway: RunningGateway, kafka: KafkaSection) -> None:
    async def run() -> list[int]:
        limits = httpx.Limits(max_connections=64)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=gateway.url, headers=headers, limits=limits, timeout=20, trust_env=False
        ) as client:

            async def phone(number: int) -> list[int]:
                return [
                    (
                        await client.post(
                            "/v1/telemetry", json=batch(f"b{number}-{n}", event(f"e{number}-{n}"), user=f"u{number}")
                        )
                    ).status_code
                    for n in range(5)
                ]

            answered = await asyncio.gather(*(phone(number) for number in range(64)))
            return [status for statuses in answered for status in statuses]

    assert asyncio.run(run()) == [202] * 320
    envelopes = [envelope for _, envelope in stored(kafka, TELEMETRY, 320)]
    sent = {f"e{number}-{n}" for number in range(64) for n in range(5)}
    assert sorted(one.event_id for each in envelopes for one in each.events) == sorted(sent)
    for number in (0, 63):  # one user's batches stay in their order
        mine = [each.batch_id for each in envelopes if each.user_id == user_hash(f"u{number}", USER_KEY.encode())]
        assert mine == [f"b{number}-{n}" for n in range(5)]


_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
_EVENTS = st.builds(lambda tree, ts: event("x", title=tree, ts_ms=ts), _TREES, _TREES) | _TREES
_BODIES = (
    st.binary(max_size=200)
    | st.builds(lambda tree: json.dumps(tree).encode(), _TREES)
    | st.builds(lambda events: json.dumps(batch("fuzz", *events)).encode(), st.lists(_EVENTS, max_size=5))
)
_ENCODINGS = st.sampled_from(["", "identity", "gzip", "GZIP", "br", "gzip,gzip", "\x7f"])


def test_no_body_makes_the_gateway_fail(shared: RunningGateway) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_BODIES, _ENCODINGS, st.booleans())
    def fuzz(body: bytes, encoding: str, compressed: bool) -> None:
        content = gzip.compress(body) if compressed else body
        answer = shared.client.post("/v1/telemetry", content=content, headers={"content-encoding": encoding})
        assert answer.status_code in {202, 400, 413, 415}, (body, encoding, answer.text)
        if answer.status_code == 202:
            found = answer.json()
            sent = len(json.loads(body)["events"])
            assert found["accepted"] + len(found["rejected"]) == sent

    fuzz()
    assert shared.client.get("/health").status_code == 200


def test_the_gateway_ends_in_order_on_sigterm_and_lives_again_after_kill_9(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with running_gateway(kafka, redis_section, tmp_path) as running:
            wait_for(lambda: running.client.get("/health").status_code == 200, "not healthy")
            assert running.client.post("/v1/telemetry", json=batch("b", event("e"))).status_code == 202
            os.kill(running.process.pid, number)
            assert running.process.wait(120) == code
    assert len(stored(kafka, TELEMETRY, 2)) == 2


def test_a_gateway_without_a_user_key_does_not_start() -> None:
    environment = {**os.environ, "INTENTLOOP_PRIVACY__USER_KEY": ""}
    ended = subprocess.run([sys.executable, "-m", "gateway"], env=environment, capture_output=True, timeout=120)
    assert ended.returncode == 78
    assert b"INTENTLOOP_PRIVACY__USER_KEY" in ended.stderr
