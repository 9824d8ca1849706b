"""What does HTTP cost without our gateway? A handler that only inflates, decodes and stores, on the same server.

`python -m bench.bare_handler FRAMEWORK PRODUCER PORT`: the framework is `asgi` (no framework at all) or `starlette`,
the producer `ours` (the gateway's own), `aiokafka`, `kafka_python` or `none`. No repairs, no hashing of users, no dead
letters, no limits.
"""

import asyncio
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from intentloop.adapters.codec import DECODERS
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.settings import KafkaSection, ProcessSettings
from intentloop.adapters.telemetry_producer import TelemetryProducer
from intentloop.topics import TELEMETRY

_decode = DECODERS[TELEMETRY.name].decode
Store = Callable[[str, bytes], Awaitable[object]]
Handler = Callable[[bytes], Awaitable[bytes]]
_ACCEPTED = b'{"accepted":%d,"rejected":[]}'


class BareSettings(ProcessSettings):
    """Where the broker is."""

    kafka: KafkaSection = KafkaSection()


@asynccontextmanager
async def open_store(producer: str, kafka: KafkaSection) -> AsyncIterator[Store]:
    """How does this handler store an envelope?"""
    if producer == "none":
        yield _store_nothing
    elif producer == "ours":
        ours = TelemetryProducer(kafka, timeout_s=5.0)
        ours.start()
        yield lambda user, body: ours.send(TELEMETRY, user, body)
        await ours.stop()
    elif producer == "aiokafka":
        async with FactProducer(kafka) as facts:
            yield lambda user, body: facts.send_bytes(TELEMETRY, user, body)
    else:
        yield _kafka_python(kafka)


async def _store_nothing(user: str, body: bytes) -> None:
    pass


def _kafka_python(kafka: KafkaSection) -> Store:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all", linger_ms=2, batch_size=262_144)
    loop = asyncio.get_running_loop()
    topic = f"{kafka.prefix}{TELEMETRY.name}"

    async def store(user: str, body: bytes) -> None:
        stored: asyncio.Future[None] = loop.create_future()
        sent = producer.send(topic, body, user.encode())
        sent.add_callback(lambda _: loop.call_soon_threadsafe(stored.set_result, None))
        sent.add_errback(lambda error: loop.call_soon_threadsafe(stored.set_exception, error))
        await stored

    return store


async def handle(body: bytes, store: Store) -> bytes:
    """Inflate, decode, store: the answer's body."""
    raw = zlib.decompress(body, 31)
    envelope = _decode(raw)
    await store(envelope.user_id, raw)
    return _ACCEPTED % len(envelope.events)


def plain_app(producer: str, kafka: KafkaSection) -> Any:
    """No framework: ASGI itself."""
    opened: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(opened, producer, kafka, receive, send)
            return
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
        answer = await handle(b"".join(chunks), opened["store"])
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 202, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    return app


async def _live(opened: dict[str, Any], producer: str, kafka: KafkaSection, receive: Any, send: Any) -> None:
    await receive()
    async with open_store(producer, kafka) as store:
        opened["store"] = store
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


def starlette_app(producer: str, kafka: KafkaSection) -> Any:
    """The same in Starlette; only where that is installed (see `stack.EXTRAS`)."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    opened: dict[str, Any] = {}

    async def receive_telemetry(request: Any) -> Any:
        return Response(await handle(await request.body(), opened["store"]), 202, media_type="application/json")

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with open_store(producer, kafka) as store:
            opened["store"] = store
            yield

    return Starlette(routes=[Route("/v1/telemetry", receive_telemetry, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    """Serve until ended."""
    framework, producer, port = sys.argv[1:4]
    build = {"asgi": plain_app, "starlette": starlette_app}[framework]
    app = build(producer, BareSettings().kafka)
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", ws="none", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
