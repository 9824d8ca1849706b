"""Who alone does a thing that two must not do at once? A lease in Redis: taken, renewed by its owner, lost by silence.

It saves double work; nothing may depend on it for being right, since a paused owner learns of its loss too late.
"""

from typing import Any

from redis.asyncio import Redis

_HOLD = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class Lease:
    """One named lease.

    Args:
        redis: Connected client.
        key: `Keys.lease(name)`.
        owner: Unique among the living.
        ttl_ms: How long its owner may be silent.
    """

    def __init__(self, redis: Redis, key: str, owner: str, ttl_ms: int) -> None:
        self._key, self._owner, self._ttl_ms = key, owner, ttl_ms
        self._hold: Any = redis.register_script(_HOLD)
        self._release: Any = redis.register_script(_RELEASE)

    async def hold(self) -> bool:
        """Take or renew the lease; false while another has it."""
        return bool(await self._hold(keys=[self._key], args=[self._owner, self._ttl_ms]))

    async def release(self) -> None:
        """Let the next one in at once."""
        await self._release(keys=[self._key], args=[self._owner])
