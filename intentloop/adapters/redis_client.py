"""How do we reach Redis? One way to connect, to wait until it can answer, and to refuse one that forgets.

Every write of this system is a script or keyed by id, so a command that ran twice after a time-out changes nothing;
that is why retries may be on. A write error (OOM, MISCONF) is never retried here: it goes up to whoever must not
acknowledge.
"""

import asyncio
import time

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, ReadOnlyError, TimeoutError

from intentloop.adapters.settings import RedisSection
from intentloop.errors import ConfigurationError, UnavailableError

SOCKET_TIMEOUT_S = 10.0
RETRIES = 4
MAX_CONNECTIONS = 32  # a process; who comes when all are busy waits for one, where a plain pool would raise
TRANSIENT = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError)


def connect(section: RedisSection) -> Redis:
    """Open a client; nothing is sent before the first command. Replies are bytes.

    After a failover the old primary answers READONLY: the connection is dropped, the name is looked up again, and the
    command is tried again, at most `RETRIES` times.
    """
    pool = BlockingConnectionPool.from_url(
        section.url,
        max_connections=MAX_CONNECTIONS,
        timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), RETRIES),
        retry_on_error=[ReadOnlyError, BusyLoadingError],
        health_check_interval=30,
    )
    return Redis.from_pool(pool)


async def ready(redis: Redis, timeout_s: float = 60.0) -> None:
    """Wait until Redis answers; one that is loading its data is waited for, never taken as empty.

    Raises:
        UnavailableError: no answer within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await redis.ping()
            return
        except TRANSIENT as error:
            if time.monotonic() >= deadline:
                raise UnavailableError(f"Redis did not answer within {timeout_s:g} s: {error}") from error
        await asyncio.sleep(0.2)


async def check_noeviction(redis: Redis) -> None:
    """Refuse a Redis that would throw samples away when it is full.

    Raises:
        ConfigurationError: `maxmemory-policy` is anything but `noeviction`.
    """
    memory = await redis.info("memory")
    policy = str(memory.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis has maxmemory-policy {policy!r}, only 'noeviction' keeps the training set; "
            "set it (CONFIG SET maxmemory-policy noeviction and in redis.conf) or use another instance"
        )
