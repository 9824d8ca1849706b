"""A small release on disk, as the trainer would hand it over."""

import hashlib
from pathlib import Path

from intentloop.release import Manifest, ReleaseFile


def build_release(directory: Path, version: str, files: dict[str, bytes]) -> Manifest:
    """Write the files and say what they are."""
    entries = []
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
        sha256, md5 = hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()
        entries.append(ReleaseFile(name=name, size_bytes=len(content), sha256=sha256, md5=md5))
    return Manifest(
        version=version,
        previous="",
        base_model="tiny",
        prompt_version="p1",
        engine="mnn-3.6.1",
        quantiser="rtn",
        layers_dropped=(),
        files=tuple(entries),
        artefact_bytes=sum(entry.size_bytes for entry in entries),
        min_free_bytes=1 << 30,
        measured=None,
        steps=(),
        lineage={},
        reason="test",
        created_at_ms=1_796_032_800_000,
    )
