"""Which bytes did the phone send? Read and inflated under two caps, in small steps.

Other requests are served between the steps. Memory stays under the caps plus one chunk, however the body was made.
Not here: what the bytes mean.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gateway.faults import BodyFault

INFLATE_CHUNK_BYTES = 65_536
_GZIP_WINDOW = 31  # zlib: a gzip header, 32 KiB window

Receive = Callable[[], Awaitable[Any]]  # of ASGI: one message of the request


class BodyRule(msgspec.Struct, frozen=True):
    """Caps in bytes, as sent and inflated, and the patience with a slow sender."""

    max_body_bytes: int
    max_inflated_bytes: int
    read_timeout_s: float


def check_head(content_length: str | None, content_encoding: str | None, rule: BodyRule) -> bool:
    """May the body be read, and is it gzip? Judged by the headers alone, before anything else is looked at.

    Raises:
        BodyFault: 413 when it says that it is too large, 415 for another encoding.
    """
    if content_length is not None and content_length.isdigit() and int(content_length) > rule.max_body_bytes:
        raise _too_large("body", content_length, rule.max_body_bytes)
    encoding = (content_encoding or "identity").strip().lower()
    if encoding not in {"gzip", "identity"}:
        raise BodyFault(415, f"content-encoding {ascii(encoding)[:60]} is not read; send gzip once, or identity")
    return encoding == "gzip"


async def read_body(receive: Receive, gzipped: bool, rule: BodyRule) -> bytes:
    """Which bytes did the phone mean?

    Raises:
        BodyFault: 413 over a cap, 400 for broken gzip or a lost phone, 408 when it sends too slowly.
    """
    try:
        async with asyncio.timeout(rule.read_timeout_s):
            body = await _receive_all(receive, rule.max_body_bytes)
    except TimeoutError:
        raise BodyFault(408, f"the body did not arrive within {rule.read_timeout_s:g} s; send it again") from None
    return await inflate(body, rule.max_inflated_bytes) if gzipped else body


async def inflate(body: bytes, max_bytes: int) -> bytes:
    """What does this gzip hold? Gives way to other requests between two chunks.

    Raises:
        BodyFault: 413 as soon as it is larger than `max_bytes`, 400 if it is broken, cut or has a tail.
    """
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    chunks: list[bytes] = []
    total, waiting = 0, body
    while not inflater.eof:
        try:
            chunk = inflater.decompress(waiting, INFLATE_CHUNK_BYTES)
        except zlib.error as error:
            raise BodyFault(400, f"the body is no gzip: {error}") from None
        waiting = inflater.unconsumed_tail
        total += len(chunk)
        if total > max_bytes:
            raise _too_large("inflated body", f"more than {max_bytes}", max_bytes)
        if not chunk and not waiting and not inflater.eof:
            raise BodyFault(400, f"the gzip ends after {len(body)} bytes before it is complete; send it whole")
        chunks.append(chunk)
        if not inflater.eof:
            await asyncio.sleep(0)
    if inflater.unused_data:
        raise BodyFault(400, f"{len(inflater.unused_data)} bytes follow the gzip; send one member only")
    return b"".join(chunks)


async def _receive_all(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyFault(400, "the phone went away before its body was complete")
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > max_bytes:
            raise _too_large("body", f"at least {total}", max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(what: str, size: str, limit: int) -> BodyFault:
    return BodyFault(413, f"{what} has {size} bytes, the limit is {limit}; send fewer events at once")
