"""Start a stream worker: `python -m streams`. Arguments go to Faust's own command line: `python -m streams agents`."""

import asyncio
import logging.config
import sys

import uvloop

from intentloop.errors import EXIT_BROKEN, EXIT_CONFIGURATION, ConfigurationError, IntentloopError
from streams.run_worker import LOGGING, build_app, prepare
from streams.settings import StreamsSettings

log = logging.getLogger("streams")


def main() -> None:
    """Read settings once, make the topics, hand over to Faust."""
    logging.config.dictConfig(LOGGING)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    settings = StreamsSettings()
    arguments = sys.argv[1:] or ["worker"]
    if arguments[0] == "worker":
        try:
            prepare(settings)
        except IntentloopError as error:
            log.critical("stream worker cannot start: %s", error)
            sys.exit(EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_BROKEN)
        arguments = ["--quiet", "worker", "--loglevel", "info", "--without-web", *arguments[1:]]
    sys.argv = [sys.argv[0], *arguments]
    build_app(settings).main()


if __name__ == "__main__":
    main()
