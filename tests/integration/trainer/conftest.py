"""One small run of the whole line for all tests of a session, killed once on its way, and one first release."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from intentloop.adapters import signing
from intentloop.gate import GateRule
from trainer import dataset, publish, rule, step, tiny_corpus

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch is loaded: threads that spin make shared cores crawl

BASE = Path(publish.__file__).with_name("tiny_qwen3")
RULE = Path(publish.__file__).with_name("tiny.yaml")
LINE_TIMEOUT_S = 900


class Keys(msgspec.Struct, frozen=True):
    """A pair for tests."""

    private: str
    public: str


class KilledRun(msgspec.Struct, frozen=True):
    """A run that was killed in `adapt` and taken up again."""

    run: step.Run
    frozen_ns: int
    half_written: bool


@pytest.fixture(scope="session")
def release_keys() -> Keys:
    return Keys(*signing.generate_keys())


@pytest.fixture(scope="session")
def golden_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "golden.jsonl"
    dataset.write(path, tiny_corpus.samples(6, 120, 0.5))
    return path


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory, golden_file: Path, release_keys: Keys) -> Path:
    """Version 1 of the tiny base model, made as the runner makes it."""
    directory = tmp_path_factory.mktemp("first")
    arguments = ["--base", BASE, "--golden", golden_file, "--rule", RULE, "--out", directory]
    _call("trainer.first_release", [str(argument) for argument in arguments], release_keys).check_returncode()
    return directory / "release"


@pytest.fixture(scope="session")
def killed_run(
    tmp_path_factory: pytest.TempPathFactory, golden_file: Path, first: Path, release_keys: Keys
) -> KilledRun:
    """The whole line on 160 samples, killed with -9 in the middle of its second step."""
    directory = tmp_path_factory.mktemp("run")
    (directory / "inputs").mkdir()
    dataset.write(directory / "inputs" / "training.jsonl", tiny_corpus.samples(5, 160, 0.5))
    dataset.write(directory / "inputs" / "golden.jsonl", dataset.read(golden_file))
    run = step.start(directory, _spec(first), _small_rule())
    process = subprocess.Popen(_command("trainer.run", [str(directory)]), env=_environment(release_keys))
    deadline = time.monotonic() + 120
    while not run.step("adapt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    half_written = run.step("adapt").exists() and run.manifest("adapt") is None
    frozen_ns = (run.step("freeze") / step.MANIFEST).stat().st_mtime_ns
    _call("trainer.run", [str(directory)], release_keys).check_returncode()
    return KilledRun(run, frozen_ns, half_written)


def _small_rule() -> rule.LineRule:
    """The tiny model's rule with as little work as still goes through every step; its gate only asks for a gain."""
    usual = rule.read(RULE)
    replace = msgspec.structs.replace
    return replace(
        usual,
        tune=replace(usual.tune, num_train_epochs=4),
        split=replace(usual.split, dev_samples=20, calibration_samples=24),
        quant=replace(usual.quant, calibration_floor_tokens=1000),
        gate=GateRule(min_accuracy=0, min_recall=0, max_recall_loss=1, max_loss=1, min_fix_ratio=0, max_fault_ratio=1),
        measure=replace(usual.measure, kl_samples=6, speed_lengths=(128,), stability_runs=10),
    )


def _spec(first: Path) -> step.RunSpec:
    manifest = publish.read_manifest(first)
    return step.RunSpec(
        number=2,
        base=str(BASE),
        base_name="tiny-qwen3",
        incumbent=str(first),
        previous=manifest.version,
        reason="a test asked for it",
        created_at_ms=1_790_000_000_000,
    )


def _call(module: str, arguments: list[str], keys: Keys) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(_command(module, arguments), env=_environment(keys), timeout=LINE_TIMEOUT_S, check=False)


def _command(module: str, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _environment(keys: Keys) -> dict[str, str]:
    return {**os.environ, publish.PRIVATE_KEY: keys.private}
