"""Which routes does the gateway have, and what does a failure look like? The application, put together."""

from collections.abc import Callable
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.types import ASGIApp

from gateway.authenticate import require_device_token
from gateway.bypass_framework import bypass_framework
from gateway.configure_device import configure_device
from gateway.faults import BodyFault, FaultAnswer, not_now, refused
from gateway.receive_telemetry import receive_telemetry
from gateway.report_health import report_health, report_metrics
from gateway.rerank_feed import rerank_feed
from gateway.serve_models import serve_file, serve_manifest
from gateway.services import Services
from gateway.settings import GatewaySettings
from intentloop.adapters import metrics
from intentloop.errors import UnavailableError

_DEVICE_ROUTES = (receive_telemetry, configure_device, serve_manifest, serve_file, rerank_feed)


def create_app(settings: GatewaySettings, on_broken: Callable[[str], None]) -> ASGIApp:
    """Put the application together; nothing is connected before its first request.

    Args:
        on_broken: Called once, from a thread, when the environment cannot work as configured.
    Raises:
        ConfigurationError: a setting that must be given is empty.
    """
    services = Services(settings, on_broken)
    return bypass_framework(create_routes(services), services)


def create_routes(services: Services) -> Litestar:
    """Which routes are there, and what do they answer when they fail?"""
    devices = Router("/", route_handlers=_DEVICE_ROUTES, guards=[require_device_token])
    return Litestar(
        [devices, report_health, report_metrics],
        lifespan=[services.open],
        exception_handlers={
            BodyFault: _refuse,
            HTTPException: _refuse_route,
            UnavailableError: _ask_again(services.settings.limits.retry_after_s),
        },
        openapi_config=OpenAPIConfig(title="Intentloop gateway", version="1", path="/schema"),
        logging_config=None,
        request_max_body_size=None,  # bounded by read_body, before and after inflating
    )


def _refuse(_: Request[Any, Any, Any], fault: BodyFault) -> Response[dict[str, Any]]:
    return _response(refused(fault))


def _refuse_route(_: Request[Any, Any, Any], error: HTTPException) -> Response[dict[str, Any]]:
    """What the framework itself refuses (no such route, a missing parameter) looks the same to a phone."""
    return _response(FaultAnswer(error.status_code, {"error": error.detail, "retry": error.status_code >= 500}, {}))


def _ask_again(retry_after_s: int) -> Callable[[Request[Any, Any, Any], UnavailableError], Response[dict[str, Any]]]:
    def answer(_: Request[Any, Any, Any], error: UnavailableError) -> Response[dict[str, Any]]:
        return _response(not_now(error, retry_after_s))

    return answer


def _response(answer: FaultAnswer) -> Response[dict[str, Any]]:
    metrics.GATEWAY_REFUSALS.labels(str(answer.status)).inc()
    return Response(dict(answer.body), status_code=answer.status, headers=answer.headers)
