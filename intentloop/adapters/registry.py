"""Which releases exist, and which one do phones run? Files on disk, then one transaction in Redis: the entry is last.

A release counts when its Redis entry exists; by then its files are complete and verified. Publishing again after a
`kill -9` at any point ends in the same state as once. Not here: who decides to publish (`trainer/`), signatures
(`signing.py`), or how phones download (`gateway/`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, WatchError

from intentloop.adapters import blobs
from intentloop.adapters.keys import Keys
from intentloop.errors import ContractError, UnavailableError
from intentloop.release import Manifest, Rollout

_TIMEOUT_S = 5.0
_TRIES = 20  # of the transaction, when another publisher is at work at the same moment


class Registry:
    """The registry of one deployment.

    Args:
        redis: A client of `redis_client.connect`.
        keys: Names the two keys: the rollout, and a hash version → manifest.
        root: `BlobSection.root`; releases lie under `root/releases/<version>/`.
    """

    def __init__(self, redis: Redis, keys: Keys, root: Path) -> None:
        self._redis, self._keys = redis, keys
        self._releases = root / "releases"

    async def current(self) -> Rollout | None:
        """Who runs what now? None before the first release."""
        async with _answering():
            stored = await self._redis.get(self._keys.release)
        return None if stored is None else msgspec.json.decode(stored, type=Rollout)

    async def versions(self) -> list[str]:
        """Which versions were released? Oldest first."""
        async with _answering():
            stored = await self._redis.hvals(self._keys.releases)
        manifests = [msgspec.json.decode(value, type=Manifest) for value in stored]
        return [manifest.version for manifest in sorted(manifests, key=lambda each: (each.created_at_ms, each.version))]

    async def manifest(self, version: str) -> Manifest:
        """What is this release?

        Raises:
            ContractError: it is not registered.
        """
        async with _answering():
            stored = await self._redis.hget(self._keys.releases, version)
        if stored is None:
            raise ContractError(f"no release {ascii(version)[:140]} is registered; `versions` lists those that are")
        return msgspec.json.decode(stored, type=Manifest)

    async def directory(self, version: str) -> Path:
        """Where do the files of this release lie?

        Raises:
            ContractError: it is not registered.
        """
        await self.manifest(version)
        return self._releases / blobs.check_version(version)

    async def ailment(self) -> str:
        """Why does the registry not answer? Empty if it does."""
        try:
            async with _answering():
                await self._redis.ping()
        except UnavailableError as error:
            return str(error)
        return ""

    async def publish(self, manifest: Manifest, directory: Path) -> None:
        """Make `manifest` the current release with the files of `directory`; the one before becomes `previous`.

        1. Copy the files beside, verify size and SHA-256, write the manifest, rename: `blobs.store_release`.
        2. Register and switch the rollout in one transaction. A version that is registered already changes nothing, so
           that a publisher that was killed and runs again never takes phones back to an older release.

        Raises:
            ContractError: a file differs from the manifest, or the version exists with another manifest.
        """
        await asyncio.to_thread(blobs.store_release, manifest, directory, self._releases)
        for _ in range(_TRIES):
            try:
                return await self._register(manifest)
            except WatchError:
                continue
        raise UnavailableError(f"release {manifest.version}: other publishers were faster {_TRIES} times; try again")

    async def _register(self, manifest: Manifest) -> None:
        async with _answering(), self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(self._keys.releases, self._keys.release)
            known = await pipe.hget(self._keys.releases, manifest.version)
            if known is not None:
                _check_same(known, manifest)
                return
            before = await pipe.get(self._keys.release)
            previous = msgspec.json.decode(before, type=Rollout).version if before else ""
            rollout = Rollout(version=manifest.version, previous=previous)
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hset(self._keys.releases, manifest.version, blobs.encoded(manifest).decode())
            pipe.set(self._keys.release, msgspec.json.encode(rollout))
            await pipe.execute()


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Turn what Redis' client raises into our own error; a lost race goes up to be run again."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            yield
    except WatchError:
        raise
    except (RedisError, OSError, TimeoutError) as error:
        raise UnavailableError(f"the registry in Redis does not answer: {error or 'time-out'}") from error


def _check_same(known: bytes | str, manifest: Manifest) -> None:
    if msgspec.json.decode(known, type=Manifest) != manifest:
        raise ContractError(
            f"release {manifest.version} is registered with another manifest; give the new one a new version"
        )
