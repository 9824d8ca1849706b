"""Which retrains were asked for? An entry is written before the job and the fact, so a crash repeats nothing."""

from typing import Any

import msgspec
from redis.asyncio import Redis

from intentloop.adapters.keys import Keys
from intentloop.facts import RetrainRequested
from intentloop.retrain import Decision


class RetrainEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One request; `told` when the job is queued and the fact is sent."""

    request: RetrainRequested
    told: bool = False


class RetrainLog:
    """All requests of this deployment, by id.

    Args:
        redis: Connected client.
        keys: Names of keys.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis: Any = redis
        self._key, self._decision_key = keys.retrains, keys.decision

    async def entries(self) -> list[RetrainEntry]:
        """Which requests were made? Oldest first."""
        found = [msgspec.json.decode(value, type=RetrainEntry) for value in await self._redis.hvals(self._key)]
        return sorted(found, key=lambda entry: (entry.request.requested_at_ms, entry.request.id))

    async def remember(self, decision: Decision) -> None:
        """Keep the last decision for whoever asks why."""
        await self._redis.set(self._decision_key, msgspec.json.encode(decision))

    async def open(self, request: RetrainRequested) -> None:
        """Write a request down; one that is known stays as it is."""
        await self._redis.hsetnx(self._key, request.id, msgspec.json.encode(RetrainEntry(request=request)))

    async def close(self, request: RetrainRequested) -> None:
        """The job is queued and the fact is sent."""
        await self._redis.hset(self._key, request.id, msgspec.json.encode(RetrainEntry(request=request, told=True)))
