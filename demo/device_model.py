"""Which model runs on a phone? Fetches a release, trusts nothing it cannot verify, and answers with the real engine.

All phones of one process share what they download and one engine for each version; each engine answers one at a time in
a thread. What fails to verify is thrown away and fetched again later. An adapter is one small file that runs beside the
full release it names: a phone that lacks that one fetches it first. Not here: who runs which version (the gateway).
"""

import asyncio
import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from demo.phone import Said
from demo.uplink import Uplink
from intentloop.adapters import blobs, signing
from intentloop.errors import IntentloopError
from intentloop.release import Manifest, ReleaseFile, check_base
from trainer.engine import Engine


class DownloadError(IntentloopError):
    """A release cannot be installed on this phone; the message says what did not fit."""


class DeviceModels:
    """Releases on this machine's simulated storage, and their engines.

    Args:
        directory: Where releases are kept.
        public_key: Which signer a phone trusts; base64.
        free_bytes: Storage a phone claims to have; 0 asks the disk.
        threads: Of each engine.
    """

    def __init__(self, directory: Path, public_key: str, free_bytes: int, threads: int = 1) -> None:
        self._directory = directory
        self._public_key = public_key
        self._free_bytes = free_bytes
        self._threads = threads
        self._engines: dict[str, Engine] = {}
        self._fetching: dict[str, asyncio.Lock] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.fetched_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def is_ready(self, version: str) -> bool:
        """Can a phone run this version now?"""
        return version in self._engines

    async def install(self, version: str, uplink: Uplink) -> None:
        """Fetch, verify and load a version, once for all phones; waits when another phone is at it.

        Raises:
            DownloadError: signature, hash, size or storage does not fit.
            ContractError: a name in the manifest would leave the release's folder.
            UnavailableError: the gateway cannot give it now.
        """
        async with self._fetching.setdefault(version, asyncio.Lock()):
            if version in self._engines:
                return
            manifest = _verified(await uplink.manifest(version), version, self._public_key)
            directory = await self._store(manifest, uplink)
            if manifest.base is not None:
                directory = await self._beside_its_base(manifest, directory, uplink)
            loop = asyncio.get_running_loop()
            self._engines[version] = await loop.run_in_executor(self._thread, Engine, directory, self._threads)

    async def answer(self, version: str, prompt: str) -> Said:
        """What does this version say to these bytes?"""
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self._thread, self._engines[version].answer, prompt)
        return Said(
            version=version,
            answer=reply.text,
            ttft_ms=round(reply.ttft_ms, 3),
            total_ms=round(reply.total_ms, 3),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
        )

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _beside_its_base(self, adapter: Manifest, directory: Path, uplink: Uplink) -> Path:
        """Put an adapter and the base it names together; no other full release will do."""
        assert adapter.base is not None
        version = blobs.check_version(adapter.base.version)
        base = _verified(await uplink.manifest(version), version, self._public_key)
        check_base(adapter, base)
        return await asyncio.to_thread(_together, await self._store(base, uplink), directory)

    async def _store(self, manifest: Manifest, uplink: Uplink) -> Path:
        """Where do the files of this release lie on the phone? Fetches them unless they are there."""
        directory = self._directory / blobs.check_version(manifest.version)
        async with self._fetching.setdefault(f"files of {manifest.version}", asyncio.Lock()):
            if not _is_installed(directory, manifest):
                await self._download(directory, manifest, uplink)
        return directory

    async def _download(self, directory: Path, manifest: Manifest, uplink: Uplink) -> None:
        free_bytes = self._free_bytes or shutil.disk_usage(self._directory).free
        if free_bytes < manifest.min_free_bytes:
            raise DownloadError(
                f"release {manifest.version} needs {manifest.min_free_bytes} free bytes, this phone has {free_bytes}; "
                "it stays with the model it has"
            )
        draft = directory.with_name(f"{directory.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in manifest.files:
            target = draft / blobs.check_name(file.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_matching(await uplink.file(manifest.version, file.name), file))
            self.fetched_bytes += file.size_bytes
        (draft / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        shutil.rmtree(directory, ignore_errors=True)
        draft.rename(directory)


def _verified(manifest: Manifest, version: str, public_key: str) -> Manifest:
    """The manifest, when it is the one asked for and the trusted signer signed it."""
    if manifest.version != version:
        raise DownloadError(f"asked for release {version}, got the manifest of {manifest.version}")
    if not signing.verify(manifest, public_key):
        raise DownloadError(f"manifest of {version} is not signed by the key this phone trusts")
    return manifest


def _matching(content: bytes, file: ReleaseFile) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if len(content) != file.size_bytes or found != file.sha256:
        raise DownloadError(
            f"{file.name} has {len(content)} bytes and SHA-256 {found}, "
            f"the manifest says {file.size_bytes} and {file.sha256}"
        )
    return content


def _together(base: Path, adapter: Path) -> Path:
    """One directory with both, as the engine loads them; links, so that the base lies on the disk once."""
    both = adapter.with_name(f"{adapter.name}.on-its-base")
    shutil.rmtree(both, ignore_errors=True)
    both.mkdir()
    for source in (base, adapter):
        for path in source.iterdir():
            if path.name != "manifest.json":
                (both / path.name).hardlink_to(path)
    return both


def _is_installed(directory: Path, manifest: Manifest) -> bool:
    """Is this very release here already, as after a restart? The manifest is written last, the folder renamed after."""
    try:
        return (directory / "manifest.json").read_bytes() == msgspec.json.encode(manifest)
    except FileNotFoundError:
        return False
