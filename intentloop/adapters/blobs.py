"""How do a release's files get into place? Copied beside, verified, named by one atomic rename; all or nothing.

Blocking; callers use a thread. A reader sees either no directory or a complete one, whatever was killed when. The
manifest is written last and verified first. Not here: which release counts (`registry.py`).
"""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

import msgspec

from intentloop.errors import ContractError
from intentloop.release import Manifest

CHUNK_BYTES = 1 << 20
MANIFEST = "manifest.json"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


def check_version(version: str) -> str:
    """May this version name a directory?

    Raises:
        ContractError: it is empty, too long, or holds anything but letters, digits and `._+-`.
    """
    if not _VERSION.fullmatch(version) or ".." in version:
        raise ContractError(f"version {ascii(version)[:140]} must be 1-128 of A-Z a-z 0-9 . _ + - without '..'")
    return version


def check_name(name: str) -> str:
    """May this name a file inside a release?

    Raises:
        ContractError: absolute, upwards, hidden, not in its normal form, or the manifest's own name.
    """
    parts = name.split("/")
    normal = str(PurePosixPath(name)) == name and not any(part.startswith(".") for part in parts)
    if not normal or any(character in name for character in "\\\x00") or name.startswith("/") or name == MANIFEST:
        raise ContractError(f"file name {ascii(name)[:140]} is not a plain relative path; rename the file")
    return name


def store_release(manifest: Manifest, source: Path, releases: Path) -> Path:
    """Put a verified copy of `source` under `releases/<version>`; doing it twice is the same as once.

    Raises:
        ContractError: a file differs from the manifest, or the version is stored with another manifest.
    """
    target = releases / check_version(manifest.version)
    releases.mkdir(parents=True, exist_ok=True)
    for left_over in releases.glob(f".{manifest.version}.*.tmp"):  # of a publisher that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    if (target / MANIFEST).exists() and _holds(target, manifest):
        return target
    beside = Path(tempfile.mkdtemp(prefix=f".{manifest.version}.", suffix=".tmp", dir=releases))
    try:
        for entry in manifest.files:
            _copy(source / check_name(entry.name), beside / entry.name)
        verify(manifest, beside)
        _write(beside / MANIFEST, encoded(manifest))
        _replace(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def encoded(manifest: Manifest) -> bytes:
    """Which bytes is a manifest on disk and on the wire?"""
    return msgspec.json.encode(manifest, order="sorted")


def verify(manifest: Manifest, directory: Path) -> None:
    """Are all files there, with the sizes and SHA-256 that the manifest promises?

    Raises:
        ContractError: the first one that is not, with both values.
    """
    for entry in manifest.files:
        path = directory / check_name(entry.name)
        if not path.is_file() or path.is_symlink():
            raise ContractError(f"release {manifest.version}: file {entry.name} is missing in {directory.name}")
        size, digest = path.stat().st_size, sha256(path)
        if (size, digest) != (entry.size_bytes, entry.sha256):
            raise ContractError(
                f"release {manifest.version}: file {entry.name} has {size} bytes with sha256 {digest}, "
                f"the manifest says {entry.size_bytes} and {entry.sha256}; build it again"
            )


def sha256(path: Path) -> str:
    """Which content has this file? 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _holds(target: Path, manifest: Manifest) -> bool:
    stored = (target / MANIFEST).read_bytes()
    if stored != encoded(manifest):
        raise ContractError(
            f"release {manifest.version} is stored with another manifest; give the new one a new version"
        )
    try:
        verify(manifest, target)
    except ContractError:
        return False  # damaged since: copied again below
    return True


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or not source.is_file():
        raise ContractError(f"file {source.name} named by the manifest is not a plain file in {source.parent.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, CHUNK_BYTES)
        written.flush()
        os.fsync(written.fileno())


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(beside: Path, target: Path) -> None:
    beside.chmod(0o755)  # mkdtemp makes it private; the gateway may be another user
    if target.exists():  # damaged: a rename over a directory that is not empty fails
        os.replace(target, Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)) / "old")
    os.replace(beside, target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
