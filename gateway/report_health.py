"""GET /health and /metrics: is this gateway well, and how much did it do? Without a token, for probes and scrapers."""

from typing import Any

from litestar import Request, Response, get
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gateway.services import services_of


@get("/health")
async def report_health(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    """Say whether Kafka and Redis can be reached: 200, or 503 with the reasons."""
    checks = await services_of(request).health()
    ill = any(checks.values())
    return Response({"status": "ill" if ill else "ok", "checks": checks}, status_code=503 if ill else 200)


@get("/metrics", include_in_schema=False)
async def report_metrics() -> Response[bytes]:
    """Say what happened since the start, in Prometheus' text format."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
