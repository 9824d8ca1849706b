"""Where does the loop stand? One look at phones, streams, training set, queues and registry; it changes nothing."""

from pathlib import Path
from typing import Any

import msgspec

from demo.outbox import Sent, read_sent
from demo.phones_state import PhonesState, read_state
from intentloop.adapters.jobs import JobQueue, QueueCounts, QueueRule
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import TRANSIENT, connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.retrain_log import RetrainLog
from intentloop.adapters.settings import RedisSection
from intentloop.adapters.state_store import read_counts
from intentloop.adapters.training_store import TrainingStore
from intentloop.errors import UnavailableError
from intentloop.release import Manifest
from intentloop.training_set import TrainingCounts

# every distinct event of a phone ends in exactly one of these counts (intentloop/fold.py)
ENDS = ("applied", "inferences", "skipped", "late", "quarantined", "rejected")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was there to be seen. `releases` are manifests, oldest first; `decision` is the policy's last word,
    `retrain_reason` that of its last request."""

    phones: PhonesState
    sent: Sent
    counts: dict[str, int]
    training: TrainingCounts
    labelling: QueueCounts
    training_jobs: QueueCounts
    releases: tuple[Manifest, ...]
    current: str
    decision: dict[str, Any]
    retrain_reason: str

    @property
    def accounted(self) -> int:
        """How many distinct events have the streams brought to an end?"""
        return sum(self.counts.get(name, 0) for name in ENDS)


class Watch:
    """Looks at one deployment; survives a Redis that is starting again.

    Args:
        redis: Where Redis is.
        phones: Directory of the phones' process.
        blobs: Root of releases.
    """

    def __init__(self, redis: RedisSection, phones: Path, blobs: Path) -> None:
        self._redis = connect(redis)
        self._keys = Keys(redis.prefix)
        self._phones = phones
        self._store = TrainingStore(self._redis, self._keys)
        self._registry = Registry(self._redis, self._keys, blobs)
        self._requests = RetrainLog(self._redis, self._keys)
        self._queues = {name: JobQueue(self._redis, self._keys, name, QueueRule()) for name in ("label", "train")}

    async def look(self) -> Look:
        """See everything once.

        Raises:
            UnavailableError: Redis does not answer now.
        """
        try:
            return await self._look()
        except TRANSIENT as error:
            raise UnavailableError(f"Redis does not answer now: {error!r}") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()

    async def _look(self) -> Look:
        rollout = await self._registry.current()
        versions = await self._registry.versions()
        decision = await self._redis.get(self._keys.decision)
        requests = await self._requests.entries()
        counts = await read_counts(self._redis, self._keys)  # before what was sent: it must never seem to be ahead
        return Look(
            phones=read_state(self._phones),
            sent=read_sent(self._phones / "outbox.sqlite"),
            counts=counts,
            training=await self._store.counts(),
            labelling=await self._queues["label"].counts(),
            training_jobs=await self._queues["train"].counts(),
            releases=tuple([await self._registry.manifest(version) for version in versions]),
            current=rollout.version if rollout else "",
            decision=msgspec.json.decode(decision) if decision else {},
            retrain_reason=requests[-1].request.reason if requests else "",
        )
