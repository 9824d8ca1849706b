"""Which requests do not need the framework? POST /v1/telemetry, and nearly all are: they go straight to the handler.

More than half of what such a request costs by way of Litestar goes into routing, guards, request and response objects
that it does not use (`docs/decisions.md`, 12). The answers are equal on both ways. Everything else, other spellings of
this path and the OpenAPI document are Litestar's.
"""

import logging
from collections.abc import Iterable
from typing import Any

from litestar.types import ASGIApp, HTTPResponseBodyEvent, HTTPResponseStartEvent, Receive, Scope, Send

from gateway.authenticate import check_token
from gateway.faults import BodyFault, FaultAnswer, not_now, refused
from gateway.receive_telemetry import PATH, store_batch
from gateway.services import Services
from intentloop.adapters import metrics
from intentloop.adapters.codec import encode
from intentloop.errors import UnavailableError

log = logging.getLogger("gateway")


def bypass_framework(routes: ASGIApp, services: Services) -> ASGIApp:
    """Put the short way in front of all routes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST" and scope.get("path") == PATH:
            await _answer(services, scope, receive, send)
        else:
            await routes(scope, receive, send)

    return app


async def _answer(services: Services, scope: Any, receive: Receive, send: Send) -> None:
    headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}  # the first of a name stays
    try:
        check_token(headers.get(b"authorization", ""), services.token)
        length, encoding = headers.get(b"content-length"), headers.get(b"content-encoding")
        body = await store_batch(services, length, encoding, receive)
    except Exception as error:
        fault = _fault(error, services.settings.limits.retry_after_s)
        metrics.GATEWAY_REFUSALS.labels(str(fault.status)).inc()
        await _send(send, fault.status, encode(fault.body), fault.headers.items())
        return
    await _send(send, 202, body)


def _fault(error: Exception, retry_after_s: int) -> FaultAnswer:
    match error:
        case BodyFault():
            return refused(error)
        case UnavailableError():
            return not_now(error, retry_after_s)
        case _:
            log.error("telemetry was not taken", exc_info=error)
            return FaultAnswer(500, {"error": "a fault of ours, see the gateway's log", "retry": True}, {})


async def _send(send: Send, status: int, body: bytes, more: Iterable[tuple[str, str]] = ()) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode()) for name, value in more]
    await send(HTTPResponseStartEvent(type="http.response.start", status=status, headers=headers))
    await send(HTTPResponseBodyEvent(type="http.response.body", body=body, more_body=False))
