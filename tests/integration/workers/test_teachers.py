import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from intentloop.adapters.settings import TeacherSection
from intentloop.adapters.teachers import Refusal, Reply, Teacher, require
from intentloop.errors import ConfigurationError
from tests.integration.workers.scripted import Scripted, chat, http, refused, scripted

pytestmark = pytest.mark.anyio
GOOD = "比价犹豫|空调遥控器;美的;通用款"


@asynccontextmanager
async def teacher(*answers: bytes, **changes: Any) -> AsyncIterator[tuple[Teacher, Scripted]]:
    async with scripted(*answers) as server:
        client = Teacher(server.section(**changes))
        try:
            yield client, server
        finally:
            await client.close()


def alarms(caplog: pytest.LogCaptureFixture) -> int:
    return sum("ALARM" in record.message for record in caplog.records)


async def test_a_reply_comes_with_its_text_tokens_and_cost() -> None:
    async with teacher(chat(GOOD, (1_000, 100))) as (client, server):
        reply = await client.ask("s", "u")
        assert isinstance(reply, Reply)
        assert reply.text == GOOD
        assert (reply.usage.prompt_tokens, reply.usage.output_tokens, reply.usage.estimated) == (1_000, 100, False)
        assert reply.usage.cost_yuan == pytest.approx(0.0028)  # 1,000 x 2 + 100 x 8 yuan a million
        assert server.requests[0]["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


async def test_what_providers_want_differently_is_sent_as_set_and_nothing_else() -> None:
    async with teacher(chat(GOOD), extra_body={"enable_thinking": False}, temperature=0.6) as (client, server):
        await client.ask("s", "u")
        assert server.requests[0]["enable_thinking"] is False
        assert server.requests[0]["temperature"] == 0.6
    async with teacher(chat(GOOD)) as (client, server):
        await client.ask("s", "u")
        assert {"temperature", "top_p", "enable_thinking", "stream"}.isdisjoint(server.requests[0])


async def test_l04_a_cut_reply_is_tried_again_with_more_room_and_booked() -> None:
    async with teacher(chat(None, (412, 64), "length"), chat(GOOD, (412, 20))) as (client, server):
        reply = await client.ask("s", "u")
        assert isinstance(reply, Reply)
        assert [request["max_tokens"] for request in server.requests] == [128, 256]
        assert (reply.usage.prompt_tokens, reply.usage.output_tokens) == (824, 84)
    async with teacher(chat(None, (412, 64), "length")) as (client, server):
        refusal = await client.ask("s", "u")
        assert isinstance(refusal, Refusal)
        assert (refusal.kind, len(server.requests), refusal.usage.output_tokens) == ("truncated", 3, 192)


L06 = {
    "error": {
        "code": "invalid_parameter_error",
        "param": None,
        "message": "parameter.enable_thinking must be set to false for non-streaming calls",
        "type": "invalid_request_error",
    },
    "id": "chatcmpl-x",
    "request_id": "x",
}
L10 = {"error": {"message": "invalid temperature: only 1 is allowed for this model", "type": "invalid_request_error"}}


@pytest.mark.parametrize("error", [L06, L10])
async def test_l06_l10_wrong_settings_close_the_teacher_with_one_alarm(
    error: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with teacher(refused(400, error)) as (client, server):
        with caplog.at_level(logging.INFO):
            await client.self_test("s", "u")
            outcomes = await asyncio.gather(*(client.ask("s", "u") for _ in range(5)))
        assert {outcome.kind for outcome in outcomes if isinstance(outcome, Refusal)} == {"closed"}
        assert len(server.requests) == 1
        assert alarms(caplog) == 1
        assert error["error"]["message"][:30] in client.closed()


L08 = [
    {
        "error": {
            "code": "data_inspection_failed",
            "param": None,
            "message": "Input data may contain inappropriate content.",
        }
    },
    {
        "error": {
            "message": "<400> InternalError.Algo.DataInspectionFailed: "
            "Input text data may contain inappropriate content."
        }
    },
]


@pytest.mark.parametrize("error", L08)
async def test_l08_a_filtered_sample_is_not_tried_again_and_trips_nothing(error: dict[str, Any]) -> None:
    async with teacher(refused(400, error), breaker_failures=1) as (client, server):
        refusal = await client.ask("s", "验孕棒")
        assert isinstance(refusal, Refusal)
        assert (refusal.kind, len(server.requests), client.closed()) == ("filtered", 1, "")


@pytest.mark.parametrize("message", ["The engine is currently overloaded", "We're receiving too many requests"])
async def test_l11_overload_is_waited_for(message: str) -> None:
    async with teacher(refused(429, {"error": {"message": message}}), chat(GOOD)) as (client, server):
        assert isinstance(await client.ask("s", "u"), Reply)
        assert len(server.requests) == 2


async def test_l11_a_used_up_allowance_closes_the_teacher_until_its_reset(caplog: pytest.LogCaptureFixture) -> None:
    error = {"error": {"message": "You've reached your usage limit for this period"}}
    async with teacher(refused(429, error), chat(GOOD), exhausted_pause_s=0.3) as (client, server):
        for _ in range(3):
            outcome = await client.ask("s", "u")
            assert isinstance(outcome, Refusal)
            assert outcome.kind == "closed"
        assert (len(server.requests), alarms(caplog)) == (1, 1)
        await asyncio.sleep(0.35)
        assert isinstance(await client.ask("s", "u"), Reply)


async def test_l13_throttling_pauses_all_calls_to_this_teacher() -> None:
    error = {"code": "Throttling.RateQuota", "message": "Requests rate limit exceeded", "request_id": "x"}
    async with teacher(refused(429, error), chat(GOOD), throttle_pause_s=0.4) as (client, server):
        first = asyncio.create_task(client.ask("s", "u"))
        await asyncio.sleep(0.15)
        assert len(server.requests) == 1
        began = time.monotonic()
        assert isinstance(await client.ask("s", "another"), Reply)
        assert time.monotonic() - began > 0.2  # it waited for the pause that the first one caused
        assert isinstance(await first, Reply)


SSE_HEAD = "text/event-stream"


def sse(*lines: str) -> bytes:
    return http("".join(f"{line}\n\n" for line in lines).encode(), content_type=SSE_HEAD)


async def test_l14_chunks_without_choices_are_no_accident() -> None:
    stream = sse(
        'data: {"choices":[],"prompt_filter_results":[]}',
        f'data: {{"choices":[{{"delta":{{"content":"{GOOD}"}}}}]}}',
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}',
        'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19}}',
        "data: [DONE]",
    )
    async with teacher(stream, stream=True) as (client, server):
        reply = await client.ask("s", "u")
        assert isinstance(reply, Reply)
        assert (reply.text, reply.usage.prompt_tokens, reply.usage.output_tokens) == (GOOD, 10, 9)
        assert server.requests[0]["stream_options"] == {"include_usage": True}


async def test_l14_a_stream_without_its_end_is_cut_and_with_a_finish_reason_it_is_whole() -> None:
    whole = sse(f'data: {{"choices":[{{"delta":{{"content":"{GOOD}"}},"finish_reason":"stop"}}]}}')
    cut = sse('data: {"choices":[{"delta":{"content":"比价犹豫|空调"}}]}')
    async with teacher(cut, whole, stream=True) as (client, server):
        reply = await client.ask("s", "u")
        assert isinstance(reply, Reply)
        assert (reply.text, reply.usage.estimated, len(server.requests)) == (GOOD, True, 2)


async def test_l16_characters_split_over_chunks_arrive_whole() -> None:
    first = bytes.fromhex(
        "646174613a207b2263686f69636573223a5b7b2264656c7461223a7b22636f6e74656e74223a22e6af94e4bbb7e78a"
    )
    second = bytes.fromhex("b9e8b1ab227d7d5d7d0a0a")
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    async with teacher(http(first + b"<PAUSE>" + second + end, content_type=SSE_HEAD), stream=True) as (client, _):
        reply = await client.ask("s", "u")
        assert isinstance(reply, Reply)
        assert reply.text.encode() == "比价犹豫".encode()


async def test_l22_missing_usage_is_estimated_and_marked() -> None:
    async with teacher(chat(GOOD, usage=None)) as (client, _):
        reply = await client.ask("系统", "用户消息")
        assert isinstance(reply, Reply)
        assert reply.usage.estimated
        assert reply.usage.prompt_tokens >= 6
        assert reply.usage.cost_yuan > 0


async def test_failures_in_a_row_open_the_breaker_and_a_pause_closes_it(caplog: pytest.LogCaptureFixture) -> None:
    error = refused(502, {"error": {"message": "bad gateway"}})
    async with teacher(error, error, error, chat(GOOD), breaker_failures=3, breaker_pause_s=0.2) as (client, server):
        outcome = await client.ask("s", "u")
        assert isinstance(outcome, Refusal)
        assert (outcome.kind, len(server.requests), alarms(caplog)) == ("closed", 3, 1)
        assert isinstance(await client.ask("s", "u"), Refusal)
        assert len(server.requests) == 3
        await asyncio.sleep(0.25)
        assert isinstance(await client.ask("s", "u"), Reply)


@pytest.mark.parametrize("body", [b"<html>nginx</html>", b"{}", b'{"choices":[]}', b"", b"\xff\xfe"])
async def test_nonsense_with_status_200_is_bounded_and_no_exception(body: bytes) -> None:
    async with teacher(http(body)) as (client, server):
        outcome = await client.ask("s", "u")
        assert isinstance(outcome, Refusal)
        assert (outcome.kind, len(server.requests)) == ("unavailable", 3)


async def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    async with scripted() as server:

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        quiet = await asyncio.start_server(silent, "127.0.0.1", 0)
        base_url = f"http://127.0.0.1:{quiet.sockets[0].getsockname()[1]}/v1"
        client = Teacher(server.section(base_url=base_url, timeout_s=0.2, attempts=2))
        outcome = await client.ask("s", "u")
        assert isinstance(outcome, Refusal)
        assert outcome.kind == "unavailable"
        await client.close()
        quiet.close()
        await quiet.wait_closed()


def test_a_teacher_without_an_address_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="INTENTLOOP_TEACHER_A__BASE_URL"):
        require(TeacherSection(), "teacher_a")


def test_a_key_never_shows_in_a_log() -> None:
    assert "geheim" not in repr(TeacherSection(api_key="geheim"))  # type: ignore[arg-type]
