"""How much have teachers cost today? One number a day (UTC) in Redis, all processes together, failed tries included.

A command that Redis ran twice counts twice: a guard may stop too early, never too late. What labels cost in the books
is `TrainingStore.counts`.
"""

from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from intentloop.adapters.clock import now_ms
from intentloop.adapters.keys import Keys


class Spending:
    """Today's bill.

    Args:
        redis: Connected client.
        keys: Names of keys.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis: Any = redis
        self._key = keys.teacher_spending

    async def add(self, cost_yuan: float) -> None:
        """Put a cost on today's bill."""
        if cost_yuan > 0:
            await self._redis.hincrby(self._key, _day(), round(cost_yuan * 1_000_000))

    async def today_yuan(self) -> float:
        """What does the bill say?"""
        return int(await self._redis.hget(self._key, _day()) or 0) / 1_000_000


def _day() -> str:
    return datetime.fromtimestamp(now_ms() / 1000, UTC).strftime("%Y-%m-%d")
