"""Start the workers: `python -m workers`."""

import asyncio
import logging
import sys

from intentloop.adapters.redis_client import TRANSIENT
from intentloop.errors import EXIT_BROKEN, EXIT_CONFIGURATION, ConfigurationError, IntentloopError
from workers.run_worker import run
from workers.settings import WorkersSettings


def main() -> None:
    """Read the settings once and work until told to stop."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpx2", "httpcore2", "openai", "kafka", "aiokafka"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    log = logging.getLogger("workers")
    try:
        asyncio.run(run(WorkersSettings()))
    except ConfigurationError as error:
        log.critical("workers cannot start: %s", error)
        sys.exit(EXIT_CONFIGURATION)
    except (IntentloopError, *TRANSIENT) as error:
        log.critical("workers ended: %s: %s", type(error).__name__, error)
        sys.exit(EXIT_BROKEN)


if __name__ == "__main__":
    main()
