"""The short way around the framework answers every request, also when something of ours breaks."""

import asyncio
import json
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from litestar.types import ASGIApp

from gateway.bypass_framework import bypass_framework
from gateway.read_body import BodyRule
from gateway.services import Services
from intentloop.adapters.telemetry_producer import Position
from intentloop.errors import UnavailableError
from intentloop.intake import IntakeRule
from intentloop.privacy import user_hash
from intentloop.topics import Topic

BATCH = json.dumps({"batch_id": "b", "user_id": "u", "device_id": "d", "events": []}).encode()
BAD_EVENT = BATCH.replace(b"[]", b"[1]")


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def services(fault: Exception | None = None) -> Services:
    async def store(topic: Topic, key: str, value: bytes) -> Position:
        if fault is not None:
            raise fault
        return Position(0, 7)

    return cast(
        Services,
        SimpleNamespace(
            token=b"secret",
            store=store,
            body_rule=BodyRule(1 << 20, 2 << 20, 5.0),
            intake_rule=IntakeRule(),
            hash_user=partial(user_hash, key=b"k"),
            settings=SimpleNamespace(limits=SimpleNamespace(retry_after_s=3)),
        ),
    )


def asked(
    app: ASGIApp, body: bytes = BAD_EVENT, method: str = "POST", path: str = "/v1/telemetry", token: bytes = b"secret"
) -> tuple[int, dict[bytes, bytes], Any]:
    sent: list[Any] = []
    headers = [(b"authorization", b"Bearer " + token), (b"authorization", b"Bearer of another")]
    scope: Any = {"type": "http", "method": method, "path": path, "headers": headers}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    start, end = sent
    return start["status"], dict(start["headers"]), json.loads(end["body"] or "null")


def test_only_posts_of_telemetry_go_the_short_way() -> None:
    app = bypass_framework(elsewhere, services())
    assert asked(app)[0] == 202
    assert asked(app, method="GET")[0] == 299
    assert asked(app, path="/v1/telemetry/")[0] == 299
    assert asked(app, path="/v1/rerank")[0] == 299

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        scope["seen"] = True

    scope: Any = {"type": "lifespan"}
    asyncio.run(bypass_framework(lifespan, services())(scope, None, None))  # type: ignore[arg-type]
    assert scope["seen"], "the application starts and ends by its lifespan"


def test_the_first_header_of_a_name_counts_and_the_answer_has_its_length() -> None:
    status, headers, answer = asked(bypass_framework(elsewhere, services()))
    assert (status, answer["accepted"], len(answer["rejected"])) == (202, 0, 1)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == b"%d" % len(json.dumps(answer, separators=(",", ":")))


def test_each_fault_has_its_status_and_says_whether_to_come_again(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(bypass_framework(elsewhere, services()), token=b"wrong")[0] == 401
    away = bypass_framework(elsewhere, services(UnavailableError("no broker")))
    status, headers, answer = asked(away)
    assert (status, headers[b"retry-after"], answer) == (503, b"3", {"error": "not now: no broker", "retry": True})
    broken = bypass_framework(elsewhere, services(ZeroDivisionError("ours")))
    status, _, answer = asked(broken)
    assert (status, answer["retry"]) == (500, True)
    assert "ZeroDivisionError: ours" in caplog.text
    assert "ours" not in answer["error"].replace("a fault of ours", ""), "a phone is not told how we work"
