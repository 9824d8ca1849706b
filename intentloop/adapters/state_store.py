"""Where does the streams' progress live? In Redis: watermarks, users' states and exact counters, moved together.

One script per source partition compares the watermark with the one that the caller started from and only then writes
everything; so a batch is applied once, whole, by the one owner of the partition, whatever dies in between.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha1
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError, ResponseError, WatchError

from intentloop.adapters.keys import Keys
from intentloop.errors import ConfigurationError, FencedError, UnavailableError
from intentloop.fleet_state import under_other, version_of
from intentloop.topics import TELEMETRY

NO_WATERMARK = -1  # nothing of the partition was applied yet; a log that came after others begins lower
MAX_COUNTERS = 1_024  # of a partition, before versions that nobody released share theirs
RELEASES_S = 1.0  # how long a list of releases holds when a version is not on it
ANSWER_S = 2.0  # health tells of a Redis that is silent for longer; commands wait for longer, and are tried again

_APPLY = """
local found = redis.call('GET', KEYS[1]) or '-1'
if found ~= ARGV[1] then return redis.error_reply('FENCED ' .. found) end
local states, counts = tonumber(ARGV[4]), tonumber(ARGV[5])
for i = 1, states do redis.call('SET', KEYS[2 + i], ARGV[6 + i], 'EX', ARGV[3]) end
local at = 6 + states
local fields = redis.call('HLEN', KEYS[2])
for i = at + 2, at + 3 * counts, 3 do
  local name = ARGV[i]
  if ARGV[i - 1] ~= '' and redis.call('HEXISTS', KEYS[2], name) == 0 then
    if fields >= tonumber(ARGV[6]) then name = ARGV[i - 1] end
    fields = fields + 1
  end
  redis.call('HINCRBY', KEYS[2], name, ARGV[i + 1])
end
redis.call('SET', KEYS[1], ARGV[2])
return states
"""
_APPLY_SHA = sha1(_APPLY.encode()).hexdigest()


class PartitionWrite(NamedTuple):
    """What one batch did to one source partition. `states` maps full keys to packed values."""

    partition: int
    expected: int
    watermark: int
    states: Mapping[str, bytes]
    counts: Mapping[str, int]


class StateStore:
    """Reads and moves the state of source partitions.

    Args:
        redis: A client that returns bytes.
        keys: Names of all keys.
        ttl_s: Life of a user's state after its last change; not shorter than the windows it holds.
        max_counters: How many counters a partition has before those of versions that nobody released get no name of
            their own any more: phones name versions, and a broken app may name a new one each time.
    """

    def __init__(self, redis: Redis, keys: Keys, ttl_s: int, max_counters: int = MAX_COUNTERS) -> None:
        self._redis, self._keys, self._ttl_s, self._max_counters = redis, keys, ttl_s, max_counters
        self._released: frozenset[str] = frozenset()
        self._released_at_s = -math.inf

    async def illness(self, applied: Mapping[int, int]) -> str:
        """Why can Redis not serve now? Empty when it does.

        Args:
            applied: Watermarks that Redis confirmed, by partition.
        Raises:
            FencedError: one of them lies further back now, so Redis lost what it had confirmed.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._redis.ping()
                found = await self.watermarks(list(applied))
        except TimeoutError:
            return f"Redis does not answer within {ANSWER_S:g} s"
        except (RedisError, OSError) as error:
            return f"Redis does not answer: {error}"
        for partition, watermark in applied.items():
            if found[partition] < watermark:
                _compare(partition, watermark, found[partition])
        return ""

    async def watermarks(self, partitions: Sequence[int]) -> dict[int, int]:
        """Up to which offset was each partition applied? `NO_WATERMARK` or less where nothing was."""
        if not partitions:
            return {}
        found = await self._mget([self._keys.watermark(partition) for partition in partitions])
        return {
            partition: NO_WATERMARK if value is None else int(value)
            for partition, value in zip(partitions, found, strict=True)
        }

    async def _mget(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(await self._redis.mget(keys))  # type: ignore[arg-type]  # the client answers bytes

    async def load(
        self, expected: Mapping[int, int], state_keys: Sequence[str], confirmed: Mapping[int, int] | None = None
    ) -> dict[str, bytes | None]:
        """Read states, and with them the watermarks, which must be the ones in memory.

        Args:
            expected: Watermark of each partition once what is being written now is written.
            state_keys: Whose states.
            confirmed: Watermarks before that; None where nothing is being written.

        Raises:
            FencedError: another worker owns a partition, or Redis lost what it had confirmed.
        """
        marks = [self._keys.watermark(partition) for partition in expected]
        found: list[bytes | None] = await self._mget([*marks, *state_keys])
        for (partition, watermark), value in zip(expected.items(), found, strict=False):
            mark = NO_WATERMARK if value is None else int(value)
            if confirmed is None or mark != confirmed[partition]:
                _compare(partition, watermark, mark)
        return dict(zip(state_keys, found[len(marks) :], strict=True))

    async def apply(self, writes: Iterable[PartitionWrite]) -> None:
        """Move each partition by its script: states with expiry, counters and watermark, all or nothing.

        Raises:
            FencedError: a watermark was not the expected one; nothing of that partition was written.
        """
        writes = list(writes)
        await self._learn_releases(writes)
        forgotten = await self._run(writes)
        if forgotten:
            await self._redis.script_load(_APPLY)
            if await self._run(forgotten):
                raise UnavailableError("Redis forgets scripts as fast as they are loaded; is something flushing them?")

    async def _learn_releases(self, writes: Sequence[PartitionWrite]) -> None:
        """A version that is not known may be a new release: it is registered before any phone can have it."""
        now_s = time.monotonic()
        if now_s - self._released_at_s < RELEASES_S or self._released.issuperset(_versions(writes)):
            return
        found: list[Any] = await self._redis.hkeys(self._keys.releases)
        self._released, self._released_at_s = frozenset(version.decode() for version in found), now_s

    async def _run(self, writes: Sequence[PartitionWrite]) -> list[PartitionWrite]:
        """Call the script for each; returns those for which Redis did not know it (restart, failover, flush)."""
        pipeline = self._redis.pipeline(transaction=False)
        for write in writes:
            keys, arguments = self._arguments(write)
            pipeline.evalsha(_APPLY_SHA, len(keys), *keys, *arguments)
        outcomes = await pipeline.execute(raise_on_error=False)
        for write, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, ResponseError) and "FENCED" in str(outcome):
                _compare(write.partition, write.expected, int(str(outcome).rsplit(" ", 1)[-1]))
            if isinstance(outcome, Exception) and not isinstance(outcome, NoScriptError):
                raise outcome
        return [write for write, outcome in zip(writes, outcomes, strict=True) if isinstance(outcome, NoScriptError)]

    def _arguments(self, write: PartitionWrite) -> tuple[list[str], list[Any]]:
        keys = [self._keys.watermark(write.partition), self._keys.counters(write.partition), *write.states]
        head = [write.expected, write.watermark, self._ttl_s, len(write.states), len(write.counts), self._max_counters]
        counts = [item for name, count in write.counts.items() for item in (self._instead(name), name, count)]
        return keys, [*head, *write.states.values(), *counts]

    def _instead(self, name: str) -> str:
        """Under which name is this counted when the partition has counters enough? Empty: under its own, always."""
        version, other = _versioned(name)
        return "" if version in self._released else other


def _versions(writes: Sequence[PartitionWrite]) -> set[str]:
    named = (_versioned(name)[0] for write in writes for name in write.counts)
    return {version for version in named if version is not None}


@lru_cache(maxsize=4_096)
def _versioned(name: str) -> tuple[str | None, str]:
    """Of which version is this counter, and what is it called without? Remembered: batches count the same things."""
    return version_of(name), under_other(name)


def _compare(partition: int, expected: int, found: int) -> None:
    if found != expected:
        raise FencedError(
            f"watermark of partition {partition} is {found}, expected {expected}: another worker owns the partition, "
            "or Redis lost confirmed writes; this process stops and starts again from what Redis says"
        )


async def read_counts(redis: Redis, keys: Keys) -> dict[str, int]:
    """How often did each thing happen, exactly, over all source partitions?"""
    pipeline = redis.pipeline(transaction=False)
    for partition in range(TELEMETRY.partitions):
        pipeline.hgetall(keys.counters(partition))
    totals: dict[str, int] = {}
    for found in await pipeline.execute():
        for name, count in found.items():
            text = name.decode() if isinstance(name, bytes) else name
            totals[text] = totals.get(text, 0) + int(count)
    return totals


async def enter_epoch(redis: Redis, keys: Keys, epoch: str, reset: bool) -> int:
    """Does Redis' progress belong to this broker? Remembers a first broker; returns how often it was reset.

    `logs` counts the logs before this one, and tells the marks of partitions of which nothing was applied apart.

    Args:
        epoch: Identity of the broker's log; offsets mean something only within one.
        reset: Give up the old watermarks instead of stopping; users' states and counters stay.
    Raises:
        ConfigurationError: the watermarks were made on another broker.
    """
    while True:
        async with redis.pipeline(transaction=True) as transaction:
            await transaction.watch(keys.broker_epoch)
            try:
                return await _enter_epoch(transaction, keys, epoch, reset)
            except WatchError:  # another worker entered at the same time: what it decided holds
                continue


async def _enter_epoch(transaction: Pipeline, keys: Keys, epoch: str, reset: bool) -> int:
    """Decide once for all workers: a second reset would take away what the first worker has applied since."""
    known: dict[Any, Any] = await transaction.hgetall(keys.broker_epoch)
    before, resets = known.get(b"epoch", b"").decode(), int(known.get(b"resets", 0))
    marks = [keys.watermark(partition) for partition in range(TELEMETRY.partitions)]
    applied = sum(value is not None and int(value) > NO_WATERMARK for value in await transaction.mget(marks))
    if before == epoch:
        return resets
    if before and applied and not reset:
        raise ConfigurationError(
            f"Redis holds watermarks of {applied} partitions made on broker {before!r}, but this broker is {epoch!r}: "
            "its offsets start anew, so waiting would be for ever. Point Redis or Kafka back to its pair, use a fresh "
            "Redis prefix, or set INTENTLOOP_STREAMS__RESET_ON_NEW_BROKER=true to begin at offset 0 and keep the states"
        )
    transaction.multi()  # type: ignore[no-untyped-call]
    resets += bool(before and applied)
    logs = int(known.get(b"logs", 0)) + bool(before)
    if before:  # a worker that still holds a batch of a log before expects another watermark, whatever it has applied
        transaction.mset(dict.fromkeys(marks, NO_WATERMARK - logs))
    transaction.hset(keys.broker_epoch, mapping={"epoch": epoch, "resets": resets, "logs": logs})
    await transaction.execute()
    return resets
