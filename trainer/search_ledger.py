"""Was this artefact measured before? What is known of it lies beside the run's steps, so no killed search asks twice.

An entry is named by all that its values depend on: the artefact's bytes, the dev samples, the reference scores, the
engine's version, the rule and how answers are judged. So it can be read whenever it is found, and a half-measured
candidate goes on.
"""

import hashlib
from pathlib import Path

import msgspec

from intentloop.gate import Outcome
from trainer import step


class Answered(msgspec.Struct, frozen=True):
    """One dev sample's outcome and what it took."""

    outcome: Outcome
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    total_ms: float


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured of one artefact; `answers` are those of the first dev samples, in their order."""

    long_ttft_ms: float | None = None
    divergence: float | None = None
    answers: tuple[Answered, ...] = ()


class Ledger:
    """The entries of one run.

    Args:
        directory: Outside the steps' directories, since an unfinished step's is thrown away.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, key: str) -> Entry:
        """What is known under this key? An empty entry if nothing."""
        path = self._directory / f"{key}.json"
        return msgspec.json.decode(path.read_bytes(), type=Entry) if path.is_file() else Entry()

    def write(self, key: str, entry: Entry) -> None:
        """Keep what is known now."""
        self._directory.mkdir(parents=True, exist_ok=True)
        step.write_atomically(self._directory / f"{key}.json", msgspec.json.encode(entry))


def key(artefact: Path, files: tuple[Path, ...], rules: bytes) -> str:
    """Under which name is this measurement kept? `files` are what it reads besides the artefact."""
    parts = {"artefact": step.file_hashes(artefact), "files": [step.sha256(path) for path in files]}
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted") + rules).hexdigest()[:32]
