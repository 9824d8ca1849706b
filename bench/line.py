"""What does each step of the line take, and what of it is ours? `python -m bench.line`; its last line is JSON.

Runs the whole line on the tiny model with little data, each step a process of its own, as in production, and prints
seconds (with starting Python and loading libraries) and peak memory. A step that has a plain counterpart is followed by
it (`bench.line_plain`): the same libraries on the same files, nothing checked, hashed or recorded. `ours` and `peer`
are the seconds of those steps together, `ratio` is ours / peer; `cpu_ratio` is the same in CPU seconds, which other
processes disturb less; `memory_ratio` compares the largest peaks. `--run DIRECTORY` takes the place of a temporary one
and is kept.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench import line_plain
from bench.stack import finish, say
from intentloop.adapters import signing
from intentloop.gate import GateRule
from trainer import dataset, publish, rule, run, step, tiny_corpus

TRAINER = Path(step.__file__).parent


class Took(msgspec.Struct, frozen=True):
    """One process: wall seconds from its start to its end, CPU seconds of it and its children, peak memory."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def main() -> None:
    """Run the line and its plain counterparts, print the JSON."""
    options = _options()
    os.environ[publish.PRIVATE_KEY], _ = signing.generate_keys()  # nobody will check it
    with tempfile.TemporaryDirectory() as temporary:
        current = prepare(options.run or Path(temporary) / "run", options.samples)
        ours, peer = {}, {}
        for name in run.STEPS:
            ours[name] = _ours(current, name)
            beside = ""
            if name in line_plain.STEPS:
                peer[name] = _plain(current, name, Path(temporary) / f"plain-{name}")
                beside = f", plain {peer[name].seconds:.1f} s {peer[name].peak_bytes / 1e6:.0f} MB"
            say(f"{name:10} {ours[name].seconds:6.1f} s {ours[name].peak_bytes / 1e6:6.0f} MB{beside}")
    finish(_figures(ours, peer, options.samples))


def prepare(directory: Path, samples: int) -> step.Run:
    """Make a run of the tiny model whose gate lets everything out, so that no step is left out."""
    usual, replace = rule.read(TRAINER / "tiny.yaml"), msgspec.structs.replace
    rules = replace(
        usual,
        tune=replace(usual.tune, num_train_epochs=1),
        split=replace(usual.split, dev_samples=30),
        prune=replace(usual.prune, heal_epochs=1),
        quant=replace(usual.quant, calibration_floor_tokens=1),
        gate=GateRule(min_accuracy=0, min_recall=0, max_recall_loss=1, max_loss=1, max_fault_ratio=1, min_samples=1),
        measure=replace(usual.measure, speed_lengths=(128,)),
    )
    (directory / "inputs").mkdir(parents=True, exist_ok=True)
    dataset.write(directory / "inputs" / "training.jsonl", tiny_corpus.samples(5, samples, 0.5))
    dataset.write(directory / "inputs" / "golden.jsonl", tiny_corpus.samples(6, 60, 0.5))
    spec = step.RunSpec(number=2, base=str(TRAINER / "tiny_qwen3"), base_name="tiny-qwen3", reason="bench")
    return step.start(directory, spec, rules)


def _ours(current: step.Run, name: str) -> Took:
    arguments, environment = run.command(name, current)
    clocks = _clocks()
    code = subprocess.run(arguments, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
    seconds, cpu_seconds = (after - before for after, before in zip(_clocks(), clocks, strict=True))
    run.check_ended(name, current, code)
    manifest = current.manifest(name)
    assert manifest is not None
    return Took(seconds, cpu_seconds, manifest.peak_bytes)


def _plain(current: step.Run, name: str, out: Path) -> Took:
    out.mkdir()
    _, environment = run.command(name, current)
    command = [sys.executable, "-m", "bench.line_plain", name, str(current.directory), str(out)]
    clocks = _clocks()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    seconds, cpu_seconds = (after - before for after, before in zip(_clocks(), clocks, strict=True))
    return Took(seconds, cpu_seconds, int(done.stdout.splitlines()[-1]))


def _clocks() -> tuple[float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), children.ru_utime + children.ru_stime


def _figures(ours: dict[str, Took], peer: dict[str, Took], samples: int) -> dict[str, Any]:
    mine, plain = (sum(took[name].seconds for name in peer) for took in (ours, peer))
    cpu = [sum(took[name].cpu_seconds for name in peer) for took in (ours, peer)]
    peaks = [max(took[name].peak_bytes for name in peer) for took in (ours, peer)]
    return {
        "bench": "line",
        "ours": mine,
        "peer": plain,
        "ratio": mine / plain,
        "cpu_ratio": cpu[0] / cpu[1],
        "memory_ratio": peaks[0] / peaks[1],
        "line_seconds": sum(took.seconds for took in ours.values()),
        "seconds": {name: round(took.seconds, 2) for name, took in ours.items()},
        "plain_seconds": {name: round(took.seconds, 2) for name, took in peer.items()},
        "peak_mb": {name: round(took.peak_bytes / 1e6) for name, took in ours.items()},
        "plain_peak_mb": {name: round(took.peak_bytes / 1e6) for name, took in peer.items()},
        "samples": samples,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=80, help="of training")
    parser.add_argument("--run", type=Path, help="where the run is to lie; it is kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
