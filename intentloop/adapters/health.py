"""Is this process well? A tiny HTTP server that answers `/health` (200 or 503 with reasons) and `/metrics`."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from intentloop.adapters.settings import HealthSection

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_REQUEST_TIMEOUT_S = 5.0


class HealthServer:
    """Serves one process's health; for processes without an HTTP interface of their own.

    Args:
        section: Where to listen.
        checks: Returns each check's name with an empty text when it is fine, or with the reason why not.
    """

    def __init__(self, section: HealthSection, checks: Callable[[], dict[str, str]]) -> None:
        self._section, self._checks = section, checks
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._answer, self._section.host, self._section.port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._respond(head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")))
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _respond(self, request_line: list[str]) -> bytes:
        method, path = [*request_line, "", ""][:2]
        if method not in {"GET", "HEAD"}:
            return _http(405, "text/plain", b"use GET\n")
        path = path.partition("?")[0]
        if path == "/metrics":
            return _http(200, CONTENT_TYPE_LATEST, generate_latest())
        if path != "/health":
            return _http(404, "text/plain", b"there are /health and /metrics\n")
        found = self._checks()
        ill = {name: reason for name, reason in found.items() if reason}
        body = {"status": "ill" if ill else "ok", "checks": found}
        return _http(503 if ill else 200, "application/json", msgspec.json.encode(body))


def _http(status: int, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body
