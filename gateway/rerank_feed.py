"""POST /v1/rerank: a feed's cards in, the same cards out, the unexposed ones in the order of the live intent."""

from typing import Any

import msgspec
from litestar import Request, Response, post

from gateway.describe import RerankOperation, RerankRequest
from gateway.faults import BodyFault
from gateway.read_body import check_head, read_body
from gateway.services import services_of
from intentloop.adapters.clock import now_ms
from intentloop.adapters.codec import encode
from intentloop.rerank import Card, rerank

_decode = msgspec.json.Decoder(RerankRequest).decode


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All cards that were sent; `intent` is empty when nothing was known of the shopper, and then nothing moved."""

    cards: tuple[Card, ...]
    intent: str
    keywords: tuple[str, ...]


@post("/v1/rerank", status_code=200, request_max_body_size=None, operation_class=RerankOperation)
async def rerank_feed(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Reorder a feed's unexposed cards by what its shopper is after now."""
    services = services_of(request)
    headers = request.headers
    gzipped = check_head(headers.get("content-length"), headers.get("content-encoding"), services.body_rule)
    body = await read_body(request.receive, gzipped, services.body_rule)
    try:
        feed = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BodyFault(400, f"the body is no feed: {error}") from None
    live = await services.live_intents.get(services.hash_user(feed.user_id))
    answer = RerankAnswer(
        cards=rerank(feed.cards, live, now_ms()),
        intent=live.intent if live else "",
        keywords=live.keywords if live else (),
    )
    return Response(encode(answer), media_type="application/json")
