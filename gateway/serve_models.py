"""GET /v1/models/…: the files of a release, whole or in ranges, so that a broken download goes on where it stopped.

Only registered versions and names that their manifest lists can be asked for; no path is built from anything else.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.response import Stream

from gateway.faults import BodyFault
from gateway.services import services_of
from intentloop.adapters import blobs
from intentloop.errors import ContractError, UnavailableError
from intentloop.release import Manifest, ReleaseFile

_CHUNK_BYTES = 262_144
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


class Span(msgspec.Struct, frozen=True):
    """Bytes from `start` up to but not including `stop`."""

    start: int
    stop: int


@get("/v1/models/{version:str}/manifest.json")
async def serve_manifest(request: Request[Any, Any, Any], version: str) -> Response[bytes]:
    """Tell all that a phone must know of a release, signed."""
    manifest = await _registered(request, version)
    return Response(blobs.encoded(manifest), media_type="application/json", headers={"cache-control": _FOR_EVER})


@get("/v1/models/{version:str}/files/{name:path}")
async def serve_file(request: Request[Any, Any, Any], version: str, name: str) -> Response[Any]:
    """Send one file of a release, or the range that is asked for."""
    manifest = await _registered(request, version)
    entry = next((entry for entry in manifest.files if entry.name == name.removeprefix("/")), None)
    if entry is None:
        raise BodyFault(404, f"release {version} has no file of this name; its manifest lists {len(manifest.files)}")
    etag = f'"{entry.sha256}"'
    headers = {"etag": etag, "accept-ranges": "bytes", "cache-control": _FOR_EVER}
    if etag in {each.strip() for each in request.headers.get("if-none-match", "").split(",")}:
        return Response(None, status_code=304, headers=headers)
    path = await services_of(request).registry.directory(version) / blobs.check_name(entry.name)
    if not path.is_file() or path.stat().st_size != entry.size_bytes:
        raise UnavailableError(f"{entry.name} of release {version} is not whole on this gateway's volume")
    return _send(path, entry, _span(request, entry, etag), headers)


_FOR_EVER = "public, max-age=31536000, immutable"  # a version never changes


async def _registered(request: Request[Any, Any, Any], version: str) -> Manifest:
    try:
        return await services_of(request).registry.manifest(blobs.check_version(version))
    except ContractError as error:
        raise BodyFault(404, str(error)) from None


def _span(request: Request[Any, Any, Any], entry: ReleaseFile, etag: str) -> Span | None:
    """Which bytes are asked for? None for all: no range, several ranges, or a range of another content (`If-Range`)."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", etag) != etag or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if first == "":
        span = Span(max(0, entry.size_bytes - int(last)), entry.size_bytes)
    else:
        span = Span(int(first), min(entry.size_bytes, int(last) + 1) if last else entry.size_bytes)
    if span.start >= span.stop:
        raise BodyFault(416, f"{found[0]} is outside of {entry.name}, which has {entry.size_bytes} bytes")
    return span


def _send(path: Path, entry: ReleaseFile, span: Span | None, headers: dict[str, str]) -> Stream:
    part = span or Span(0, entry.size_bytes)
    headers["content-length"] = str(part.stop - part.start)
    if span is not None:
        headers["content-range"] = f"bytes {span.start}-{span.stop - 1}/{entry.size_bytes}"
    status = 200 if span is None else 206
    return Stream(_read(path, part), status_code=status, headers=headers, media_type="application/octet-stream")


async def _read(path: Path, part: Span) -> AsyncIterator[bytes]:
    handle = await asyncio.to_thread(os.open, path, os.O_RDONLY)
    try:
        position = part.start
        while position < part.stop:
            chunk = await asyncio.to_thread(os.pread, handle, min(_CHUNK_BYTES, part.stop - position), position)
            if not chunk:
                raise OSError(f"{path.name} ends at byte {position} instead of {part.stop}; publish the release again")
            position += len(chunk)
            yield chunk
    finally:
        os.close(handle)
