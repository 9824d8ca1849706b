"""Start the trainer: `python -m trainer`. Takes jobs of the queue `train` until it is stopped."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys

from intentloop.adapters import signing
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.health import HealthServer
from intentloop.adapters.jobs import JobQueue, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.registry import Registry
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import EXIT_BROKEN, EXIT_CONFIGURATION, ConfigurationError, IntentloopError
from trainer import publish, runner
from trainer.settings import TrainerSettings

log = logging.getLogger("trainer")


async def serve(settings: TrainerSettings) -> None:
    """Open the doors and work until cancelled."""
    section = settings.trainer
    redis = connect(settings.redis)
    try:
        await ready(redis)
        await check_noeviction(redis)
        keys = Keys(settings.redis.prefix)
        health = HealthServer(settings.health, lambda: {"trainer": ""})
        await health.start()
        try:
            async with FactProducer(settings.kafka) as facts:
                doors = runner.Doors(
                    JobQueue(
                        redis, keys, runner.QUEUE, QueueRule(lease_ms=section.lease_ms, max_tries=section.max_tries)
                    ),
                    TrainingStore(redis, keys),
                    Registry(redis, keys, settings.blobs.root),
                    facts,
                )
                await runner.serve(doors, section, f"{socket.gethostname()}-{os.getpid()}")
        finally:
            await health.stop()
    finally:
        await redis.aclose()


async def _until_stopped(settings: TrainerSettings) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serve(settings)


def main() -> None:
    """Read settings once, hand the private key on to the last step's environment, and serve."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = TrainerSettings()
    key = settings.release.private_key.get_secret_value()
    os.environ[publish.PRIVATE_KEY] = key
    try:
        signing.public_key(key)  # better now than after hours of training
        asyncio.run(_until_stopped(settings))
    except ConfigurationError as error:
        log.critical("the trainer cannot start: %s", error)
        sys.exit(EXIT_CONFIGURATION)
    except IntentloopError as error:
        log.critical("the trainer stops: %s", error)
        sys.exit(EXIT_BROKEN)


if __name__ == "__main__":
    main()
