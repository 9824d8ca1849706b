"""What is a released model? Its manifest, the registry's record of it, and which phone gets which version.

A phone can verify everything it downloads: the manifest is signed, and it names every file with size and hashes.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from intentloop.errors import ContractError
from intentloop.ids import bucket

Kind = Literal["full", "adapter"]


class ReleaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the artefact; MD5 is for CDNs and old download managers, SHA-256 is what a phone verifies."""

    name: str
    size_bytes: int
    sha256: str
    md5: str


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A measured ratio in [0, 1] with its 95 % confidence interval and the number of samples behind it."""

    value: float
    low: float
    high: float
    samples: int


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How long one step of the model line took and how much memory it needed."""

    name: str
    seconds: float
    peak_bytes: int


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What the device engine said about one artefact: on which data (`dataset_sha256`), with which engine.

    Speeds are tokens per second, times milliseconds. `faults` is the share of answers that could not be parsed.
    """

    dataset_sha256: str
    engine: str
    accuracy_all: Interval
    accuracy_weak: Interval
    exact_match: Interval
    faults: Interval
    recall: dict[str, Interval]
    ttft_p50_ms: float
    ttft_p95_ms: float
    prefill_tokens_s: float
    decode_tokens_s: float
    load_ms: float
    peak_rss_bytes: int
    artefact_bytes: int


class BaseArtefact(msgspec.Struct, frozen=True, kw_only=True):
    """Which full release must lie on a phone for an adapter to run? Its version, and the hash of all its files."""

    version: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a phone or an auditor must know of a release.

    A `full` release is whole. An `adapter` is one small file that runs beside the files of `base`, which it does not
    change; the adapter before it on the same base is not needed any more.

    `signature` is Ed25519 over `signed_bytes`, base64. `lineage` maps what went in (snapshot, base, rule of each step)
    to its hash. `min_free_bytes` is the storage a phone must have free before it downloads.
    """

    version: str
    previous: str
    base_model: str
    prompt_version: str
    engine: str
    quantiser: str
    layers_dropped: tuple[int, ...]
    files: tuple[ReleaseFile, ...]
    artefact_bytes: int
    min_free_bytes: int
    measured: Measurement | None
    steps: tuple[StepRecord, ...]
    lineage: dict[str, str]
    reason: str
    created_at_ms: int
    kind: Kind = "full"
    base: BaseArtefact | None = None
    signature: str = ""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs what now: `share` in [0, 1] of users get `version`, the others stay with `previous`."""

    version: str
    previous: str = ""
    share: float = 1.0


def signed_bytes(manifest: Manifest) -> bytes:
    """Which bytes does the signature cover? The manifest as sorted JSON with an empty signature."""
    return msgspec.json.encode(msgspec.structs.replace(manifest, signature=""), order="sorted")


def artefact_sha256(files: Sequence[ReleaseFile]) -> str:
    """Which artefact is this? One hash over the names and hashes of its files, in the order of names."""
    listed = sorted((file.name, file.sha256) for file in files)
    return hashlib.sha256(msgspec.json.encode(listed)).hexdigest()


def check_base(adapter: Manifest, base: Manifest) -> None:
    """Is `base` the very release that this adapter was trained beside?

    Raises:
        ContractError: it is another one, or the manifest names none; an adapter on other weights answers nonsense.
    """
    if adapter.kind != "adapter" or adapter.base is None:
        raise ContractError(f"release {adapter.version} is of kind {adapter.kind!r} and names no base to check")
    found = artefact_sha256(base.files)
    if base.kind != "full" or (base.version, found) != (adapter.base.version, adapter.base.sha256):
        raise ContractError(
            f"release {adapter.version} needs the full release {adapter.base.version} with SHA-256 "
            f"{adapter.base.sha256}, found {base.version} ({base.kind}) with {found}; fetch the base that it names"
        )


def version_for(user_id: str, rollout: Rollout) -> str:
    """Which version does this user's phone run? Sticky and monotone: a growing share never takes a version away."""
    if not rollout.previous or bucket(user_id, rollout.version) < rollout.share:
        return rollout.version
    return rollout.previous
