"""Which files of runs stay on disk, and is there room for another run? A real model leaves gigabytes at every step.

The rule, applied after each run:
1. The newest `keep_runs` runs stay; older directories go, finished or not. Verdicts of the gate stay for ever.
2. Of those that stay, the newest is whole, and so is any that has no verdict yet: its job may come back.
3. The others lose their weights but not the release that was made of them: manifests, logs, losses, pictures, samples
   and measurements stay.
"""

import logging
import shutil
from pathlib import Path

from intentloop.errors import UnavailableError
from trainer.quantise import FOLDED
from trainer.rule import LineRule

log = logging.getLogger("trainer")

VERDICTS = "verdicts"
WEIGHTS = (".safetensors", ".mnn", ".weight", ".mtok", ".gguf", ".bin")  # the last holds an untied base's embedding
RELEASE = "release"
ROOM = 1.2  # for what is small beside weights


def forget(work: Path, keep_runs: int) -> None:
    """Apply the rule to all runs in `work`."""
    runs = sorted((path.parent for path in work.glob("*/spec.json")), key=_begun)
    for directory in runs[:-keep_runs]:
        shutil.rmtree(directory, ignore_errors=True)
        log.info("run %s is gone, %d newer ones stay", directory.name, keep_runs)
    for directory in runs[-keep_runs:-1]:
        if (work / VERDICTS / f"{directory.name}.json").is_file():
            drop_weights(directory)


def drop_weights(run: Path) -> None:
    """Delete a run's weights, except in releases."""
    for path in run.rglob("*"):
        if path.suffix in WEIGHTS and RELEASE not in path.relative_to(run).parts:
            path.unlink(missing_ok=True)


def require_room(work: Path, base: Path, rule: LineRule) -> None:
    """Can a run be done on this disk?

    Raises:
        UnavailableError: less is free than its files will need; the job waits until somebody made room.
    """
    needed, free = needed_bytes(base, rule), shutil.disk_usage(work).free
    if free < needed:
        raise UnavailableError(
            f"a run needs {needed / 1e9:.1f} GB beside its inputs, {work} has {free / 1e9:.1f} GB; "
            "free some, lower INTENTLOOP_TRAINER__KEEP_RUNS, or list fewer layers_to_drop and quantisers"
        )


def needed_bytes(base: Path, rule: LineRule) -> int:
    """How much will a run write at most?

    In copies of the base: merged once; then for each number of layers pruned, healed, folded for each block by
    each quantiser that folds, and one artefact a candidate, as if all of it had the head's precision.
    """
    weights = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    quant = rule.quant
    candidates = len(quant.quantisers) * len(quant.quant_blocks) * max(1, len(quant.lm_quant_bits)) + 1
    folded = len(quant.quant_blocks) * sum(quantiser in FOLDED for quantiser in quant.quantisers)
    healed = 2 if rule.prune.healing == "both" else 1
    each = 1 + healed + folded + candidates * quant.lm_quant_bit / 16
    return round(ROOM * weights * (1 + len(rule.prune.layers_to_drop) * each))


def _begun(run: Path) -> int:
    return (run / "spec.json").stat().st_mtime_ns
