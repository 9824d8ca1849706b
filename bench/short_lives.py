"""A stream worker whose states live for `BENCH_LIFE_S` seconds, so that half an hour sees many lives of users.

The product allows a day at least; nothing else differs.
"""

import asyncio
import logging.config
import os
import sys

import uvloop

from streams.run_worker import LOGGING, build_app, prepare
from streams.settings import StreamsSettings


def main() -> None:
    """Be the worker."""
    logging.config.dictConfig(LOGGING)
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    settings = StreamsSettings()
    short = settings.streams.model_copy(update={"state_ttl_s": int(os.environ["BENCH_LIFE_S"]), "state_lag_s": 0})
    settings = settings.model_copy(update={"streams": short})
    prepare(settings)
    sys.argv = [sys.argv[0], "--quiet", "worker", "--loglevel", "info", "--without-web"]
    build_app(settings).main()


if __name__ == "__main__":
    main()
