"""Serve one SIMULATED teacher over HTTP: `python -m demo.teachers --name qwen --port 9001 --seed 1 --noise 0.05`.

It speaks the chat-completions protocol as a provider does, whole or as server-sent events, with usage, and now and then
answers 429 or 500. What it says comes from a rule engine (`simulated_teacher.py`), never from a model.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from random import Random
from typing import Annotated, Any

import msgspec
import typer
import uvicorn
from litestar import Litestar, Request, Response, get, post
from litestar.response import ServerSentEvent
from litestar.status_codes import HTTP_200_OK

from demo.simulated_teacher import TeacherRule, judge, label
from intentloop import teacher_prompt
from intentloop.adapters.clock import now_ms
from intentloop.compress import estimate_tokens

log = logging.getLogger("teachers")


class ServingRule(msgspec.Struct, frozen=True, kw_only=True):
    """How the server behaves: mean latency, and the share of requests that fail although nothing is wrong."""

    latency_s: float = 0.02
    overload_ratio: float = 0.01
    fault_ratio: float = 0.01
    fenced: bool = False


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str = ""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks; unknown fields are ignored, as providers do."""

    model: str
    messages: list[Message]
    stream: bool = False
    stream_options: dict[str, Any] | None = None


def main(
    name: Annotated[str, typer.Option(help="what the teacher is called; shown as simulated")],
    port: Annotated[int, typer.Option(help="TCP port on loopback")],
    seed: int = 1,
    noise: Annotated[float, typer.Option(help="share of sequences it labels wrongly")] = 0.05,
    fenced: Annotated[bool, typer.Option(help="answer as JSON in a code fence")] = False,
) -> None:
    """Serve until stopped."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    log.info("simulated teacher %s on port %s: rule engine, %.0f %% wrong, seed %s", name, port, noise * 100, seed)
    app = create(name, TeacherRule(seed=seed, noise_ratio=noise), ServingRule(fenced=fenced))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def create(name: str, rule: TeacherRule, serving: ServingRule) -> Litestar:
    """Build the server of one simulated teacher."""
    random = Random(f"serving-{name}-{rule.seed}")

    @get("/health", sync_to_thread=False)
    def health() -> dict[str, str]:
        return {"status": "ok", "teacher": f"{name} (simulated)"}

    @post("/v1/chat/completions", status_code=HTTP_200_OK)
    async def complete(request: Request[Any, Any, Any]) -> Response[Any]:
        try:
            asked = msgspec.json.decode(await request.body(), type=ChatRequest)
        except msgspec.DecodeError as error:
            return _error(400, "invalid_request_error", str(error))
        await asyncio.sleep(serving.latency_s * (0.5 + random.random()))
        dice = random.random()
        if dice < serving.overload_ratio:
            return _error(429, "engine_overloaded_error", "The engine is currently overloaded, please try again later")
        if dice < serving.overload_ratio + serving.fault_ratio:
            return _error(500, "internal_error", "simulated failure")
        text = answer(asked, rule)
        if text is None:
            return _error(400, "invalid_request_error", "the last user message holds no behaviour sequence")
        if serving.fenced and "|" in text:
            text = _fence(text)
        return _stream(asked, text) if asked.stream else _whole(asked, text)

    return Litestar([health, complete], openapi_config=None, logging_config=None)


def answer(asked: ChatRequest, rule: TeacherRule) -> str | None:
    """What does the teacher say? None to a message that is none of ours."""
    message = next((message.content for message in reversed(asked.messages) if message.role == "user"), "")
    judging = teacher_prompt.judge_request_in(message)
    if judging is not None:
        return str(judge(*judging, rule))
    sequence = teacher_prompt.sequence_in(message)
    return None if sequence is None else label(sequence, rule)


def _fence(text: str) -> str:
    intent, _, keywords = text.partition("|")
    value = {"intent": intent, "keywords": keywords.split(";")}
    return f"```json\n{msgspec.json.encode(value).decode()}\n```"


def _usage(asked: ChatRequest, text: str) -> dict[str, int]:
    read = sum(estimate_tokens(message.content) for message in asked.messages)
    said = estimate_tokens(text)
    return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


def _whole(asked: ChatRequest, text: str) -> Response[Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Response(_body(asked, "chat.completion", [choice]) | {"usage": _usage(asked, text)}, status_code=HTTP_200_OK)


def _stream(asked: ChatRequest, text: str) -> ServerSentEvent:
    async def pieces() -> AsyncIterator[str]:
        for piece in text:
            choice = {"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}
            yield _json(_body(asked, "chat.completion.chunk", [choice]))
        yield _json(_body(asked, "chat.completion.chunk", [{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        if (asked.stream_options or {}).get("include_usage"):
            yield _json(_body(asked, "chat.completion.chunk", []) | {"usage": _usage(asked, text)})
        yield "[DONE]"

    return ServerSentEvent(pieces())


def _body(asked: ChatRequest, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    created_ms = now_ms()
    return {
        "id": f"chatcmpl-{created_ms}",
        "object": kind,
        "created": created_ms // 1000,
        "model": asked.model,
        "choices": choices,
    }


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _error(status: int, kind: str, message: str) -> Response[Any]:
    return Response({"error": {"message": message, "type": kind, "code": kind}}, status_code=status)


if __name__ == "__main__":
    typer.run(main)
