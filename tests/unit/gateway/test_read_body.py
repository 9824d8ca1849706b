"""A body is bounded before it costs anything."""

import asyncio
import gzip
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.faults import BodyFault
from gateway.read_body import INFLATE_CHUNK_BYTES, BodyRule, Receive, check_head, inflate, read_body

RULE = BodyRule(max_body_bytes=1 << 20, max_inflated_bytes=2 << 20, read_timeout_s=0.2)


def receiving(chunks: list[bytes]) -> Receive:
    """An ASGI server that has these chunks."""
    messages: Iterator[dict[str, Any]] = iter(
        {"type": "http.request", "body": chunk, "more_body": index + 1 < len(chunks)}
        for index, chunk in enumerate(chunks)
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    return receive


def status_of(chunks: list[bytes], gzipped: bool, rule: BodyRule = RULE) -> int:
    with pytest.raises(BodyFault) as fault:
        asyncio.run(read_body(receiving(chunks), gzipped, rule))
    return fault.value.status


def test_a_body_in_chunks_is_put_together_and_inflated() -> None:
    body = gzip.compress(b"x" * 200_000)
    assert asyncio.run(read_body(receiving([body[:50], body[50:]]), True, RULE)) == b"x" * 200_000
    assert asyncio.run(read_body(receiving([b"ab", b"c"]), False, RULE)) == b"abc"


def test_t10_a_bomb_is_stopped_at_the_cap_and_memory_stays_bounded() -> None:
    bomb = gzip.compress(b"0" * 134_217_728, 9)
    tracemalloc.start()
    assert status_of([bomb], True) == 413
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < RULE.max_inflated_bytes + 8 * INFLATE_CHUNK_BYTES + 2 * len(bomb)


def test_t10_others_are_served_while_a_large_body_is_inflated() -> None:
    async def run() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await inflate(gzip.compress(b"0" * (2 << 20)), 2 << 20)
        task.cancel()
        return turns

    assert asyncio.run(run()) >= (2 << 20) // INFLATE_CHUNK_BYTES - 1  # a turn between each two chunks


def test_t10_a_gzip_inside_a_gzip_is_inflated_once() -> None:
    inner = gzip.compress(b"0" * 100)
    assert asyncio.run(inflate(gzip.compress(inner), 1 << 20)) == inner


def test_a_body_of_exactly_the_cap_is_taken_and_one_byte_more_is_not() -> None:
    assert asyncio.run(inflate(gzip.compress(b"0" * 1000), 1000)) == b"0" * 1000
    with pytest.raises(BodyFault, match="limit is 1000"):
        asyncio.run(inflate(gzip.compress(b"0" * 1001), 1000))


def test_a_body_without_a_length_is_counted_while_it_comes() -> None:
    assert status_of([b"0" * (1 << 19)] * 3, False) == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no gzip",
        gzip.compress(b"abc", mtime=0)[:-3],
        gzip.compress(b"abc", mtime=0)[:12],
        gzip.compress(b"a", mtime=0) + b"tail",
        b"\x1f\x8b",
    ],
    ids=["empty", "plain", "without its checksum", "cut", "with a tail", "a magic number only"],
)
def test_a_broken_gzip_is_a_bad_request(body: bytes) -> None:
    assert status_of([body], True) == 400


def test_a_phone_that_goes_away_or_dawdles_is_not_waited_for() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def slow() -> dict[str, Any]:
        await asyncio.sleep(5)
        return {}

    for receive, status in ((gone, 400), (slow, 408)):
        with pytest.raises(BodyFault) as fault:
            asyncio.run(read_body(receive, False, RULE))
        assert fault.value.status == status


def test_the_headers_alone_refuse_what_is_too_large_or_of_another_encoding() -> None:
    assert check_head("100", "GZIP", RULE)
    assert not check_head(None, None, RULE)
    assert not check_head("junk", "identity", RULE)
    for length, encoding, status in (
        (str((1 << 20) + 1), None, 413),
        ("1", "br", 415),
        ("1", "gzip, gzip", 415),
        ("1", "zstd", 415),
        ("1", "deflate", 415),
    ):
        with pytest.raises(BodyFault) as fault:
            check_head(length, encoding, RULE)
        assert fault.value.status == status
