"""What do the handlers reach the world with? Opened before the first request, closed after the last."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from litestar import Litestar
from litestar.connection import ASGIConnection

from gateway.read_body import BodyRule
from gateway.settings import GatewaySettings
from intentloop.adapters.keys import Keys
from intentloop.adapters.live_intents import LiveIntents
from intentloop.adapters.redis_client import check_noeviction, connect, ready
from intentloop.adapters.registry import Registry
from intentloop.adapters.telemetry_producer import Position, TelemetryProducer
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import ConfigurationError, UnavailableError
from intentloop.intake import IntakeRule
from intentloop.privacy import user_hash
from intentloop.topics import TELEMETRY, Topic

log = logging.getLogger("gateway")

_TOPICS_PAUSE_S = 2.0
_HEALTH_VALID_S = 1.0
_FOR_EVER_S = float("inf")


class Services:
    """Everything that a request may need. One a process.

    Args:
        settings: The process's settings; the user key must not be empty.
        on_broken: Called from a thread, once, when the environment cannot work as configured.
    """

    def __init__(self, settings: GatewaySettings, on_broken: Callable[[str], None]) -> None:
        key = settings.privacy.user_key.get_secret_value()
        if not key:
            raise ConfigurationError("the user key is empty; set INTENTLOOP_PRIVACY__USER_KEY to a long random text")
        limits = settings.limits
        self.settings = settings
        self.hash_user: Callable[[str], str] = partial(user_hash, key=key.encode())
        self.token = settings.auth.device_token.get_secret_value().encode()
        self.body_rule = BodyRule(limits.max_body_bytes, limits.max_inflated_bytes, limits.read_timeout_s)
        self.intake_rule = IntakeRule()
        self.producer = TelemetryProducer(settings.kafka, limits.kafka_timeout_s)
        self._redis = connect(settings.redis)
        keys = Keys(settings.redis.prefix)
        self.registry = Registry(self._redis, keys, settings.blobs.root)
        self.live_intents = LiveIntents(self._redis, keys)
        self._on_broken = on_broken
        self._topics_ready = threading.Event()
        self._stopping = threading.Event()
        self._health: tuple[float, dict[str, str]] = (0.0, {})
        self._health_lock = asyncio.Lock()

    @asynccontextmanager
    async def open(self, app: Litestar) -> AsyncIterator[None]:
        """Run for the life of the application."""
        if not self.token:
            log.warning(
                "NO DEVICE TOKEN: everybody may send telemetry and fetch models (INTENTLOOP_AUTH__DEVICE_TOKEN)"
            )
        app.state.services = self
        self.producer.start()
        threading.Thread(target=self._prepare_topics, name="topics", daemon=True).start()
        self._following = asyncio.create_task(self._follow_intents())
        try:
            yield
        finally:
            self._stopping.set()
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            await self.producer.stop()
            await self._redis.aclose()
            log.info("stopped")

    async def store(self, topic: Topic, key: str, value: bytes) -> Position:
        """Put one encoded fact into Kafka; returns when it is confirmed.

        Raises:
            UnavailableError: not confirmed in time, or the topics are not there yet.
        """
        if not self._topics_ready.is_set():
            raise UnavailableError("the topics are not ready yet")
        return await self.producer.send(topic, key, value)

    async def health(self) -> dict[str, str]:
        """Which dependency is ill, and why? Empty reasons are fine. At most a second old."""
        async with self._health_lock:  # many askers, one look
            if time.monotonic() - self._health[0] > _HEALTH_VALID_S:
                kafka, redis = await asyncio.gather(
                    asyncio.to_thread(self.producer.ailment, TELEMETRY), self.registry.ailment()
                )
                kafka = kafka or ("" if self._topics_ready.is_set() else "the topics are not ready yet")
                intents = "no longer followed, see the log" if self._following.done() else ""
                self._health = (time.monotonic(), {"kafka": kafka, "redis": redis, "live_intents": intents})
        return self._health[1]

    async def _follow_intents(self) -> None:
        try:
            await ready(self._redis, timeout_s=_FOR_EVER_S)
            await check_noeviction(self._redis)
            while not self._topics_ready.is_set():
                await asyncio.sleep(0.2)
            await self.live_intents.follow(self.settings.kafka)
        except ConfigurationError as error:
            self._on_broken(str(error))
        except Exception:
            log.exception("live intents are no longer followed; feeds keep their order")
            raise

    def _prepare_topics(self) -> None:
        """In a thread, until it worked once: a gateway that starts before its broker answers 503 meanwhile."""
        told = ""
        while not self._stopping.is_set():
            try:
                ensure_topics(self.settings.kafka)
                self._topics_ready.set()
                log.info("topics are ready at %s", self.settings.kafka.bootstrap)
                return
            except ConfigurationError as error:
                self._on_broken(str(error))
                return
            except Exception as error:  # whatever the admin client says of a broker that is not there yet
                if (reason := f"{type(error).__name__}: {error}") != told:
                    log.warning("topics cannot be prepared yet, trying on: %s", reason)
                told = reason
                self._stopping.wait(_TOPICS_PAUSE_S)


def services_of(connection: "ASGIConnection[Any, Any, Any, Any]") -> Services:
    """Which services serve this request?"""
    services: Services = connection.app.state.services
    return services
