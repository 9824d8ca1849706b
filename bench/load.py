"""How does a server answer under load? Raw HTTP/1.1 over asyncio sockets: a client library would be the bottleneck.

Closed loop: each connection sends its next request when the last one was answered. Open loop: requests leave by the
clock whatever the server does, and each one's time counts from when it was due, so a stalled server cannot hide it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import msgspec


class Answered(msgspec.Struct):
    """What came back: seconds of each request, and how many did not say 202."""

    seconds: list[float]
    wrong: int = 0
    wall_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One keep-alive connection; answers come in the order of the requests, one at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._then: Callable[[bool], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def ask(self, request: bytes, then: Callable[[bool], None]) -> None:
        """Send one request; `then` is told whether the answer was 202."""
        assert self._transport is not None
        self._then = then
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < _length(head):
            return
        self._buffer = b""
        then, self._then = self._then, None
        if then is not None:
            then(head.startswith(b"HTTP/1.1 202"))

    def connection_lost(self, error: Exception | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(False)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def connect(port: int, count: int) -> list[_Connection]:
    """Open connections to a server on this machine."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def closed_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Answered:
    """Keep `connections` requests under way for `seconds`."""
    opened = await connect(port, connections)
    answered, supply = Answered([]), _endless(requests)
    begun_s = time.perf_counter()
    waiting = asyncio.Event()
    busy = connections

    def drive(connection: _Connection) -> None:
        sent_s = time.perf_counter()

        def then(right: bool) -> None:
            nonlocal busy
            now_s = time.perf_counter()
            answered.seconds.append(now_s - sent_s)
            answered.wrong += not right
            if right and now_s - begun_s < seconds:
                drive(connection)
                return
            busy -= 1
            if busy == 0:
                waiting.set()

        connection.ask(next(supply), then)

    for connection in opened:
        drive(connection)
    await asyncio.wait_for(waiting.wait(), seconds + 30)
    answered.wall_s = time.perf_counter() - begun_s
    for connection in opened:
        connection.close()
    return answered


class _Pool:
    """Connections that an open loop takes from and gives back to; it grows when all are busy."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[_Connection] = []
        self._opened: list[_Connection] = []
        self.answered = Answered([])
        self.under_way = 0

    async def grow(self, count: int) -> None:
        """Open more connections."""
        more = await connect(self._port, count)
        self._free += more
        self._opened += more

    async def send(self, request: bytes, due_s: float) -> None:
        """Send one request that was due at `due_s`."""
        if not self._free:
            await self.grow(4)
        connection = self._free.pop()
        self.under_way += 1

        def then(right: bool) -> None:
            self.under_way -= 1
            self.answered.seconds.append(time.perf_counter() - due_s)
            self.answered.wrong += not right
            if right:  # a server that is overrun hangs up
                self._free.append(connection)

        connection.ask(request, then)

    def close(self) -> None:
        """Hang up."""
        for connection in self._opened:
            connection.close()


async def open_loop(port: int, requests: Iterable[bytes], rate: float, on_due: Callable[[float], None]) -> Answered:
    """Send requests at `rate` a second, each on a free connection; `on_due` is told when each one was due."""
    pool = _Pool(port)
    await pool.grow(16)
    begun_s = time.perf_counter()
    for number, request in enumerate(requests):
        due_s = begun_s + number / rate
        if (pause_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(pause_s)
        on_due(due_s)
        await pool.send(request, due_s)
    async with asyncio.timeout(30):
        while pool.under_way:
            await asyncio.sleep(0.01)
    pool.answered.wall_s = time.perf_counter() - begun_s
    pool.close()
    return pool.answered


def _endless(requests: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests
