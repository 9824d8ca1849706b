"""Is this one of our apps? A bearer token, compared in constant time, before a byte of the body is read."""

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from gateway.faults import BodyFault
from gateway.services import services_of


async def require_device_token(connection: "ASGIConnection[Any, Any, Any, Any]", _: BaseRouteHandler) -> None:
    """Refuse a request without the device token. Async, since the framework gives a plain guard a thread each time.

    Raises:
        BodyFault: 401.
    """
    check_token(connection.headers.get("authorization", ""), services_of(connection).token)


def check_token(authorization: str, expected: bytes) -> None:
    """Does this header's value carry the device token?

    Args:
        expected: Empty lets everybody in, told loudly at start.
    Raises:
        BodyFault: 401.
    """
    if not expected:
        return
    scheme, _space, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), expected):
        raise BodyFault(401, "the device token is missing or wrong; send 'Authorization: Bearer <token>'")
