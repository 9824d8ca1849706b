"""What does HTTP cost without our gateway? Other handlers for the same post, on the same server with the same settings.

`python -m bench.bare_handler FRAMEWORK PRODUCER WORK PORT`: the framework is `asgi` (no framework at all) or
`starlette`, the producer `ours` (the gateway's own), `aiokafka`, `kafka_python` or `none`. The work is `bare`: inflate,
decode and store what came, without token, limits, checks of events or hashing of users; or `same`: what a team would
have to write in that framework to do the gateway's work for a sound batch, with the gateway's functions.
"""

import asyncio
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn

from gateway.authenticate import check_token
from gateway.read_body import BodyRule, check_head, inflate
from gateway.sort_batch import sort_batch
from intentloop.adapters.clock import now_ms
from intentloop.adapters.codec import DECODERS, encode
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.settings import KafkaSection, ProcessSettings
from intentloop.adapters.telemetry_producer import TelemetryProducer
from intentloop.intake import IntakeRule
from intentloop.privacy import user_hash
from intentloop.topics import TELEMETRY

_decode = DECODERS[TELEMETRY.name].decode
Store = Callable[[str, bytes], Awaitable[object]]
Headers = Mapping[str, str]
Handler = Callable[[bytes, Headers, Store], Awaitable[bytes]]
_ACCEPTED = b'{"accepted":%d,"rejected":[]}'
_TOKEN = b"bench"
_BODY_RULE, _INTAKE_RULE = BodyRule(1 << 20, 2 << 20, 30.0), IntakeRule()
_hash_user = partial(user_hash, key=b"bench")


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


async def handle(body: bytes, _headers: Headers, store: Store) -> bytes:
    """Inflate, decode, store: the answer's body."""
    raw = zlib.decompress(body, 31)
    envelope = _decode(raw)
    await store(envelope.user_id, raw)
    return _ACCEPTED % len(envelope.events)


async def handle_as_gateway(body: bytes, headers: Headers, store: Store) -> bytes:
    """Token, limits, bounded inflating, checks of every event, hashed user, encode, store: the answer's body."""
    check_token(headers.get("authorization", ""), _TOKEN)
    gzipped = check_head(headers.get("content-length"), headers.get("content-encoding"), _BODY_RULE)
    raw = await inflate(body, _BODY_RULE.max_inflated_bytes) if gzipped else body
    found = sort_batch(raw, now_ms(), _hash_user, _INTAKE_RULE)
    for envelope in found.envelopes:
        await store(envelope.user_id, encode(envelope))
    return _ACCEPTED % found.accepted


HANDLERS: Mapping[str, Handler] = {"bare": handle, "same": handle_as_gateway}


def plain_app(producer: str, handler: Handler, kafka: KafkaSection) -> Any:
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
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        answer = await handler(b"".join(chunks), headers, opened["store"])
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


def starlette_app(producer: str, handler: Handler, kafka: KafkaSection) -> Any:
    """The same in Starlette; only where that is installed (see `stack.EXTRAS`)."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    opened: dict[str, Any] = {}

    async def receive_telemetry(request: Any) -> Any:
        answer = await handler(await request.body(), request.headers, opened["store"])
        return Response(answer, 202, media_type="application/json")

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with open_store(producer, kafka) as store:
            opened["store"] = store
            yield

    return Starlette(routes=[Route("/v1/telemetry", receive_telemetry, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    """Serve until ended."""
    framework, producer, work, port = sys.argv[1:5]
    build = {"asgi": plain_app, "starlette": starlette_app}[framework]
    app = build(producer, HANDLERS[work], BareSettings().kafka)
    uvicorn.run(
        app,
        port=int(port),
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
