"""How far has a topic been carried? Offsets of a reader without a consumer group, in Redis with their log's epoch.

They are moved only after the effects of the records are stored, so a crash repeats and never skips.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from intentloop.adapters.fact_reader import Record


class OffsetStore:
    """Next offsets of one reader, by partition.

    Args:
        redis: Connected client.
        key: Of this reader, from `Keys`.
    """

    def __init__(self, redis: Redis, key: str) -> None:
        self._redis: Any = redis
        self._key = key

    async def load(self, epoch: str) -> dict[int, int] | None:
        """Where does each partition go on? None when what is stored belongs to another log: a reset broker counts anew.

        The void offsets are forgotten.
        """
        stored = {name.decode(): value.decode() for name, value in (await self._redis.hgetall(self._key)).items()}
        if stored.pop("epoch", epoch) != epoch:
            await self._redis.delete(self._key)
            return None
        return {int(partition): int(offset) for partition, offset in stored.items()}

    async def save(self, epoch: str, records: Sequence[Record]) -> None:
        """These records, in their order, are carried."""
        if not records:
            return
        offsets: Mapping[str, object] = {"epoch": epoch} | {
            str(record.partition): record.offset + 1 for record in records
        }
        await self._redis.hset(self._key, mapping=offsets)
