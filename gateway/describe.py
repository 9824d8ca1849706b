"""How does OpenAPI describe what a phone posts and gets? From the same frozen types that the body is decoded into.

The handler reads its body itself (bounded, before it is decoded), so Litestar cannot see the types; this tells it.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody

from gateway.sort_batch import PhoneBatch
from intentloop.events import MAX_EVENTS, Behaviour, Inference, InferenceSkipped
from intentloop.rerank import Card

_PREFIX = "#/$defs/"


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A feed: whose it is, and its cards in the recommender's order."""

    user_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    cards: Annotated[tuple[Card, ...], msgspec.Meta(max_length=500)]


@dataclass
class TelemetryOperation(Operation):
    """POST /v1/telemetry with its body described."""

    def __post_init__(self) -> None:
        schema: Any = _batch_schema()  # a plain dictionary is written out as it is
        self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


@dataclass
class RerankOperation(Operation):
    """POST /v1/rerank with its body described."""

    def __post_init__(self) -> None:
        (root,), parts = msgspec.json.schema_components((RerankRequest,), ref_template=f"{_PREFIX}{{name}}")
        schema: Any = _inlined(root, parts)
        self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=schema)}, required=True)


def _batch_schema() -> dict[str, Any]:
    """JSON schema of a batch; nothing in it refers to anything outside."""
    types = (PhoneBatch, Behaviour, Inference, InferenceSkipped)
    roots, parts = msgspec.json.schema_components(types, ref_template=f"{_PREFIX}{{name}}")
    batch, *events = (_inlined(root, parts) for root in roots)
    batch["properties"]["events"] = {"type": "array", "maxItems": MAX_EVENTS, "items": {"anyOf": events}}
    return dict(batch)


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, parts) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _inlined(parts[reference.removeprefix(_PREFIX)], parts)
    return {key: _inlined(value, parts) for key, value in node.items()}
