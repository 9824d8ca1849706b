"""What is a step of the line, and how does a killed run know where it stood?

A step is one function that reads earlier steps' directories and writes its own; it runs as a process of its own,
`python -m trainer.<step> RUN_DIRECTORY`. Its `manifest.json` is written last: where it exists and names the inputs that
are there now, the directory is complete; any other directory is half-written and thrown away. What a step can take up
again after a kill lies in `unfinished/` until then.
"""

import ctypes
import fcntl
import hashlib
import importlib.metadata
import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from intentloop.errors import ContractError
from intentloop.release import Kind
from trainer import check, golden_guard
from trainer.rule import LineRule

Metrics = dict[str, Any]  # plain JSON values

MANIFEST = "manifest.json"
UNFINISHED = "unfinished"
PACKAGES = ("torch", "transformers", "peft", "accelerate", "autoawq", "llmcompressor", "llmexport", "mnn", "numpy")

_TERM_ON_PARENT_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)

log = logging.getLogger("trainer")


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one run is asked for. `incumbent` is the current release's directory, empty for none.

    `number` goes into the version's name; `base` is a directory in Hugging Face's format. A run of kind `adapter`
    trains beside `base_release`, the directory of a full release.
    """

    number: int
    base: str
    base_name: str
    incumbent: str = ""
    previous: str = ""
    reason: str = ""
    created_at_ms: int = 0
    kind: Kind = "full"
    base_release: str = ""


class StepManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a finished step: hashes of what went in and came out (by name), and what it cost."""

    name: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    versions: dict[str, str]
    metrics: Metrics
    seconds: float
    peak_bytes: int
    checks: tuple[check.Check, ...] = ()


class Findings(msgspec.Struct, frozen=True):
    """What a step found out: metrics, and what must hold of its result."""

    metrics: Metrics
    checks: tuple[check.Check, ...]


class Run:
    """One run's directory: `spec.json`, `rule.json`, `inputs/`, then one directory a step.

    Args:
        directory: Made by `start`; named by the job, so that a reclaimed job finds it again.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.spec = msgspec.json.decode((self.directory / "spec.json").read_bytes(), type=RunSpec)
        self.rule = msgspec.json.decode((self.directory / "rule.json").read_bytes(), type=LineRule)

    @property
    def base(self) -> Path:
        """The base model's directory."""
        return Path(self.spec.base)

    def step(self, name: str) -> Path:
        """Where does this step's result lie?"""
        return self.directory / name

    def manifest(self, name: str) -> StepManifest | None:
        """What did this step record? None while it has not finished."""
        path = self.step(name) / MANIFEST
        return msgspec.json.decode(path.read_bytes(), type=StepManifest) if path.is_file() else None

    def metrics(self, name: str) -> Metrics:
        """What did a finished step measure?

        Raises:
            ContractError: the step has not finished.
        """
        found = self.manifest(name)
        if found is None:
            raise ContractError(f"step {name!r} of {self.directory} has no {MANIFEST}; run it first")
        return found.metrics


Work = Callable[[Run, Path], Metrics | Findings]


def start(directory: Path, spec: RunSpec, rule: LineRule) -> Run:
    """Write what a run is asked for, and what of its rule file has no effect; `inputs/` is there already.

    The same call again changes nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "rule.json", msgspec.json.encode(rule))
    if rule.notes:
        write_atomically(directory / "rule-notes.txt", "".join(f"{note}\n" for note in rule.notes).encode())
    write_atomically(directory / "spec.json", msgspec.json.encode(spec))  # last: with it the run is there
    return Run(directory)


def is_done(run: Run, name: str, needs: tuple[str, ...]) -> bool:
    """Is this step's result complete and made from the inputs that are there now?"""
    found = run.manifest(name)
    return found is not None and found.inputs == input_hashes(run, needs)


def input_hashes(run: Run, needs: tuple[str, ...]) -> dict[str, str]:
    """Which inputs does a step see? Hashes of the rule and of each needed step's manifest or input file, by name."""
    paths = {"rule.json": run.directory / "rule.json", "spec.json": run.directory / "spec.json"}
    for name in needs:
        step_manifest = run.step(name) / MANIFEST
        paths[name] = step_manifest if step_manifest.is_file() else run.directory / name
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        raise ContractError(f"{run.directory} lacks {missing[0]!r}; run the steps in order")
    return {name: sha256(path) for name, path in paths.items()}


def unfinished(run: Run, name: str) -> Path:
    """Where does a step keep what it can take up again after a kill? Gone once its manifest is there, and no sooner."""
    return run.directory / UNFINISHED / name


def perform(run: Run, name: str, needs: tuple[str, ...], work: Work) -> Path:
    """Do one step: throw away what is half-written, work, and write the manifest last if what must hold does.

    A lock on the run keeps a step that outlived its killed parent and its successor apart: the later one waits.

    Returns:
        The step's directory.
    Raises:
        ContractError: a check of the step does not hold.
    """
    with (run.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_done(run, name, needs):
            return run.step(name)
        return _perform(run, name, needs, work)


def _perform(run: Run, name: str, needs: tuple[str, ...], work: Work) -> Path:
    directory = run.step(name)
    inputs = input_hashes(run, needs)
    shutil.rmtree(directory, ignore_errors=True)
    for path in (run.directory / UNFINISHED).glob("*"):
        if path.name != name:  # the kill of an earlier step came just after its manifest
            shutil.rmtree(path)
    directory.mkdir(parents=True)
    log.info("%s: started", name)
    started = time.monotonic()
    found = work(run, directory)
    metrics, checks = (found.metrics, found.checks) if isinstance(found, Findings) else (found, ())
    check.require(checks, f"step {name} of {run.directory}")
    manifest = StepManifest(
        name=name,
        inputs=inputs,
        outputs=file_hashes(directory),
        versions={package: _version(package) for package in PACKAGES},
        metrics=metrics,
        seconds=round(time.monotonic() - started, 3),
        peak_bytes=peak_bytes(),
        checks=checks,
    )
    write_atomically(directory / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    shutil.rmtree(run.directory / UNFINISHED, ignore_errors=True)
    log.info("%s: done in %.1f s", name, manifest.seconds)
    return directory


def main(name: str, needs: tuple[str, ...], work: Work) -> None:
    """Run one step of the run directory that the command line names; its lines go to `logs/<step>.log`, too.

    Started by `accelerate launch`, the first process performs the step and the others only lend a hand.
    """
    prepare_process()
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m trainer.{name} RUN_DIRECTORY")
    run = Run(Path(sys.argv[1]))
    golden_guard.forbid(run.directory, name)
    if leads():
        log_to(run.directory / "logs" / f"{name}.log")
        perform(run, name, needs, work)
    elif not is_done(run, name, needs):
        work(run, run.step(name))


def leads() -> bool:
    """Is this the process that writes? Of several on one step only the first does."""
    return os.environ.get("RANK", "0") == "0"


def log_to(path: Path) -> None:
    """Send this process's lines to standard error and, after what is there, to a file."""
    path.parent.mkdir(exist_ok=True)
    handlers: list[logging.Handler] = [_ToStandardError(), logging.FileHandler(path, encoding="utf-8")]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=handlers)


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is now: a bar that is shown puts itself in its place, so that lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.setStream(sys.stderr)
        super().emit(record)


def prepare_process() -> None:
    """Set this process up for a step; to be called before numeric libraries are imported.

    No library looks for a network. Waiting threads sleep: on shared cores, threads that spin make training ten times
    slower. On Linux the step ends when the process that started it does.
    """
    os.environ.update(
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
        DO_NOT_TRACK="1",
        OMP_WAIT_POLICY="PASSIVE",
    )
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # bars are for people, a log file is not one
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_TERM_ON_PARENT_DEATH, signal.SIGTERM)


def file_hashes(directory: Path) -> dict[str, str]:
    """Which files lie under `directory`, and what is in them? SHA-256 by relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256(path) for path in files}


def sha256(path: Path) -> str:
    """What is in this file? Hex digits of SHA-256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none of it."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_bytes(content)
    partial.replace(path)


def peak_bytes() -> int:
    """How much memory has this process needed at most? Resident bytes.

    Linux says so of the program itself; `getrusage` there starts from what the parent had when it forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
