"""A teacher's server that answers with exactly the bytes a test gives it, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from intentloop.adapters.settings import TeacherSection


class Scripted:
    """What to answer, in turn (the last one for ever), and what was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self.answer: Callable[[dict[str, Any]], bytes] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # a client that is killed just goes
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        request = json.loads(await reader.readexactly(int(length.split(b":")[1])))
        self.requests.append(request)
        if self.answer is not None:
            answer = self.answer(request)
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for part in answer.split(b"<PAUSE>"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)

    def section(self, **changes: Any) -> TeacherSection:
        """Settings of a client of this server, in a hurry."""
        values: dict[str, Any] = {
            "name": "a",
            "base_url": self.base_url,
            "model": "m",
            "backoff_s": 0.01,
            "throttle_pause_s": 0.1,
            "timeout_s": 5.0,
            "prompt_yuan_per_million": 2.0,
            "output_yuan_per_million": 8.0,
        }
        return TeacherSection(**(values | changes))


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[Scripted]:
    """Run such a server on a free port of loopback."""
    teacher = Scripted(*answers)
    server = await asyncio.start_server(teacher.serve, "127.0.0.1", 0)
    teacher.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield teacher
    finally:
        server.close()
        await server.wait_closed()


def http(body: bytes, status: int = 200, content_type: str = "application/json", headers: str = "") -> bytes:
    """One HTTP answer; without a length, so that the end of the connection ends it."""
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\n{headers}connection: close\r\n\r\n".encode() + body


def chat(content: str | None, usage: tuple[int, int] | None = (100, 10), finish: str = "stop") -> bytes:
    """A chat completion as providers send it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    body: dict[str, Any] = {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": None,
    }
    if usage:
        total = sum(usage)
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": total}
    return http(json.dumps(body, ensure_ascii=False).encode())


def refused(status: int, error: Any, headers: str = "") -> bytes:
    """An error as providers send it."""
    return http(json.dumps(error, ensure_ascii=False).encode(), status, headers=headers)
