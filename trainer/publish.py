"""Publish: the released artefact with its signed manifest, ready for the registry.

`release/` holds the files that a phone downloads and `manifest.json`, which names each with size and hashes. Putting it
into the registry is the runner's work, since only that makes it visible.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from intentloop import prompt
from intentloop.adapters import signing
from intentloop.release import Manifest, ReleaseFile, StepRecord
from trainer import check, judge, measure, step
from trainer.engine import REUSE, engine_version
from trainer.quantise import Candidate

NEEDS = ("freeze", "merge", "prune", "heal", "quantise", "export", "measure", "gate")
RECORDED = ("freeze", "adapt", "merge", "influence", "prune", "heal", "quantise", "export", "measure", "gate")
PRIVATE_KEY = "INTENTLOOP_RELEASE__PRIVATE_KEY"


def publish(run: step.Run, directory: Path) -> step.Findings:
    """Write `release/` with its manifest last. The private key comes from the environment and is written nowhere."""
    choice = measure.read_choice(run)
    report = judge.read_report(run.step("gate") / "candidate.json")
    records = tuple(record(run, name) for name in RECORDED)
    origin = lineage(run)
    manifest = Manifest(
        version=version(run.spec.number, origin),
        previous=run.spec.previous,
        base_model=run.spec.base_name,
        prompt_version=prompt.VERSION,
        engine=engine_version(),
        quantiser=_quantiser(choice.candidate),
        layers_dropped=choice.candidate.dropped,
        files=(),
        artefact_bytes=0,
        min_free_bytes=run.rule.min_free_bytes,
        measured=report.measured,
        steps=records,
        lineage=origin,
        reason=f"{run.spec.reason}; {'; '.join(judge.read_decision(run).reasons)}",
        created_at_ms=run.spec.created_at_ms,
    )
    artefact = run.step("export") / choice.candidate.name
    done = pack(artefact, directory / "release", manifest, report.prefix.is_safe)
    return step.Findings(
        {"version": done.version, "artefact_bytes": done.artefact_bytes}, promises(directory / "release")
    )


def promises(release: Path) -> tuple[check.Check, ...]:
    """What must hold of a release: a phone can verify all that it downloads. Read from disk, as the phone would."""
    manifest, key = read_manifest(release), signing.public_key(os.environ.get(PRIVATE_KEY, ""))
    present = {path.name for path in release.iterdir()} - {step.MANIFEST}
    unlike = [file.name for file in manifest.files if _file(release / file.name) != file]
    return (
        check.at_most("files unlike their size, SHA-256 or MD5", len(unlike), 0),
        check.at_most(
            "files that the manifest does not name", len(present - {file.name for file in manifest.files}), 0
        ),
        check.at_most("signatures that do not verify", int(not signing.verify(manifest, key)), 0),
    )


def pack(artefact: Path, directory: Path, manifest: Manifest, reuse: bool | None = None) -> Manifest:
    """Copy the artefact, complete and sign the manifest, and write it last.

    Args:
        reuse: May phones keep the system prompt between answers? None leaves the artefact's configuration as it is.
    Raises:
        ConfigurationError: there is no private key in the environment; no phone takes an unsigned release.
    """
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in artefact.iterdir() if path.is_file() and path.name != step.MANIFEST)
    for name in names:
        shutil.copyfile(artefact / name, directory / name)
    if reuse is not None:
        _configure(directory / "config.json", reuse)
    files = tuple(_file(directory / name) for name in names)
    complete = msgspec.structs.replace(
        manifest, files=files, artefact_bytes=sum(file.size_bytes for file in files), signature=""
    )
    signed = signing.sign(complete, os.environ.get(PRIVATE_KEY, ""))
    step.write_atomically(directory / step.MANIFEST, msgspec.json.format(msgspec.json.encode(signed)))
    return signed


def read_manifest(directory: Path) -> Manifest:
    """Read a release's manifest."""
    return msgspec.json.decode((directory / step.MANIFEST).read_bytes(), type=Manifest)


def manifest_sha256(content: bytes) -> str:
    """Which manifest is this? SHA-256 of its bytes as the registry keeps them."""
    return hashlib.sha256(content).hexdigest()


def version(number: int, lineage: dict[str, str]) -> str:
    """Which name has this release? `v2-` and 8 hex digits of what it was made from; the same inputs, the same name."""
    return f"v{number}-{hashlib.sha256(msgspec.json.encode(lineage, order='sorted')).hexdigest()[:8]}"


def base_sha256(directory: Path) -> str:
    """Which base model is this? One hash over its configuration and weights."""
    files: Sequence[Path] = sorted((*directory.glob("*.safetensors"), directory / "config.json"))
    return hashlib.sha256("".join(step.sha256(path) for path in files).encode()).hexdigest()


def _quantiser(chosen: Candidate) -> str:
    return f"{chosen.quantiser} w{chosen.bits} block {chosen.block} head w{chosen.head_bits}"


def lineage(run: step.Run) -> dict[str, str]:
    """What was a release made from? Hashes by name."""
    names = {"snapshot": "train", "validation": "validation", "golden": "golden", "calibration": "calibration"}
    hashes = {key: step.sha256(run.step("freeze") / f"{name}.jsonl") for key, name in names.items()}
    return {
        **hashes,
        "base": base_sha256(run.base),
        "rule": step.sha256(run.directory / "rule.json"),
        "prompt": prompt.digest(""),
        "previous": run.spec.previous,
    }


def record(run: step.Run, name: str) -> StepRecord:
    """What did a finished step cost?"""
    found = run.manifest(name)
    assert found is not None
    return StepRecord(name=name, seconds=found.seconds, peak_bytes=found.peak_bytes)


def _configure(path: Path, reuse: bool) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), REUSE: reuse}, indent=1) + "\n")


def _file(path: Path) -> ReleaseFile:
    with path.open("rb") as stream:
        md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return ReleaseFile(name=path.name, size_bytes=path.stat().st_size, sha256=step.sha256(path), md5=md5)


if __name__ == "__main__":
    step.main("publish", NEEDS, publish)
