"""What is a released model? Its manifest, the registry's record of it, and which phone gets which version.

A phone can verify everything it downloads: the manifest is signed, and it names every file with size and hashes.
"""

import msgspec

from intentloop.ids import bucket


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a phone or an auditor must know of a release.

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
    signature: str = ""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs what now: `share` in [0, 1] of users get `version`, the others stay with `previous`."""

    version: str
    previous: str = ""
    share: float = 1.0


def signed_bytes(manifest: Manifest) -> bytes:
    """Which bytes does the signature cover? The manifest as sorted JSON with an empty signature."""
    return msgspec.json.encode(msgspec.structs.replace(manifest, signature=""), order="sorted")


def version_for(user_id: str, rollout: Rollout) -> str:
    """Which version does this user's phone run? Sticky and monotone: a growing share never takes a version away."""
    if not rollout.previous or bucket(user_id, rollout.version) < rollout.share:
        return rollout.version
    return rollout.previous
