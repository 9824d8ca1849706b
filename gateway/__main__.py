"""`python -m gateway`: serve phones until SIGTERM; a configuration that cannot work ends it with code 78."""

import logging
import signal
import sys
from types import FrameType
from typing import NoReturn

import uvicorn

from gateway.app import create_app
from gateway.settings import GatewaySettings
from intentloop.adapters.memory import settle_memory
from intentloop.errors import EXIT_CONFIGURATION, ConfigurationError

log = logging.getLogger("gateway")


def main() -> int:
    """Serve; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s gateway %(levelname)s %(message)s", stream=sys.stderr)
    for name in ("aiokafka", "kafka", "uvicorn"):  # their retries are many lines a second; /health says it once
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _end)  # what uvicorn raises again after it has closed in order
    settings = GatewaySettings()
    broken: list[str] = []

    def on_broken(reason: str) -> None:
        log.error("cannot work as configured: %s", reason)
        broken.append(reason)
        server.should_exit = True

    try:
        app = create_app(settings, on_broken)
    except ConfigurationError as error:
        log.error("cannot work as configured: %s", error)
        return EXIT_CONFIGURATION
    config = uvicorn.Config(
        app,
        host=settings.http.host,
        port=settings.http.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,  # paths and queries hold users' ids
        log_config=None,
        proxy_headers=False,  # nothing here looks at the peer's address; a middleware less for each request
        server_header=False,
        limit_concurrency=settings.http.max_connections,  # bounds memory together with the caps of a body
        timeout_keep_alive=settings.http.keep_alive_s,
        timeout_graceful_shutdown=10,
    )
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    log.info("listening on %s:%d", settings.http.host, listener.getsockname()[1])
    settle_memory()
    server.run(sockets=[listener])
    return EXIT_CONFIGURATION if broken else 0


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
