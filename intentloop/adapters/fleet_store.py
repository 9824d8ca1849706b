"""Where is a fleet's state kept? In Redis, moved together with the offsets of the labels that it has taken.

Also answers what a version learnt from (`learnt`), out of the training set. Not here: judging (`fleet_state.py`).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from intentloop.adapters.fact_reader import Record
from intentloop.adapters.keys import Keys
from intentloop.adapters.offset_store import OffsetStore
from intentloop.errors import FencedError
from intentloop.facts import SampleLabelled
from intentloop.fleet_state import FleetState

CHUNK = 500

# ARGV: 1 expected revision, 2 number of states, version and state of each, partition and offset of each
_SAVE = """
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 0 end
redis.call('INCR', KEYS[1])
local at = 3
for _ = 1, tonumber(ARGV[2]) do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]); at = at + 2 end
while at < #ARGV do redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1]); at = at + 2 end
return 1
"""

_decode_state = msgspec.json.Decoder(FleetState).decode
_decode_label = msgspec.json.Decoder(SampleLabelled).decode


class FleetStore:
    """What is remembered of each version's fleet.

    Args:
        redis: Connected client.
        keys: Names of keys.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis: Any = redis
        self._keys = keys
        self._offsets = OffsetStore(redis, keys.fleet_offsets)
        self._save: Any = redis.register_script(_SAVE)

    async def offsets(self, epoch: str) -> dict[int, int] | None:
        """Which label is next in each partition? None when the broker's log began anew."""
        return await self._offsets.load(epoch)

    async def states(self) -> dict[str, FleetState]:
        """What is remembered, by version?"""
        found = await self._redis.hgetall(self._keys.fleets)
        return {version.decode(): _decode_state(value) for version, value in found.items()}

    async def revision(self) -> int:
        """How often was anything stored? To be read before the states."""
        return int(await self._redis.get(self._keys.fleet_revision) or 0)

    async def save(
        self, states: Mapping[str, FleetState], epoch: str, records: Sequence[Record], revision: int
    ) -> None:
        """Keep states and the offsets behind them: both or neither.

        Raises:
            FencedError: somebody stored since `revision`; nothing was written.
        """
        if not states and not records:
            return
        keys = [self._keys.fleet_revision, self._keys.fleets, self._keys.fleet_offsets]
        arguments: list[object] = [revision, len(states)]
        for version, state in states.items():
            arguments += [version, msgspec.json.encode(state)]
        if records:
            arguments += ["epoch", epoch]
        for partition, offset in {record.partition: record.offset + 1 for record in records}.items():
            arguments += [partition, offset]
        if not await self._save(keys=keys, args=arguments):
            raise FencedError(f"fleets were stored by somebody else since revision {revision}; look again")

    async def drifted(self, version: str) -> bool:
        """Does a drift of this version's fleet hold now?"""
        found = await self._redis.hget(self._keys.fleets, version)
        return found is not None and bool(_decode_state(found).stated)

    async def learnt(self, version: str) -> AsyncIterator[SampleLabelled]:
        """Which labels did this version learn from, as far as the training set still has them?"""
        chunk: list[bytes] = []
        async for sample_id, release in self._redis.hscan_iter(self._keys.training_used, count=CHUNK):
            if release.decode() == version:
                chunk.append(sample_id)
            if len(chunk) == CHUNK:
                for label in await self._labels(chunk):
                    yield label
                chunk = []
        for label in await self._labels(chunk):
            yield label

    async def _labels(self, ids: Sequence[bytes]) -> list[SampleLabelled]:
        found = await self._redis.hmget(self._keys.training, ids) if ids else []
        return [_decode_label(value) for value in found if value is not None]
