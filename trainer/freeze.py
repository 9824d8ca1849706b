"""Freeze: which data does this run see? A snapshot cut into train, validation, dev and calibration, and the golden set.

Nothing later reads the live training set. Golden users and golden sequences never reach any of the other files.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from intentloop import prompt
from intentloop.errors import ContractError
from intentloop.retrain import INTENTS
from intentloop.training_set import TrainingSample
from trainer import calibration_set, check, dataset, step
from trainer.rule import SplitRule

NEEDS = ("inputs/training.jsonl", "inputs/golden.jsonl")
MIN_TRAIN = 20  # fewer samples than this are no training set


def freeze(run: step.Run, directory: Path) -> step.Findings:
    """Cut the snapshot and write `train|validation|dev|calibration|golden.jsonl`, templates beside them.

    Raises:
        ContractError: too few samples are left after golden users and sequences are taken out.
    """
    training = dataset.read(run.directory / "inputs/training.jsonl")
    golden = dataset.read(run.directory / "inputs/golden.jsonl")
    parts = split(training, golden, run.rule.split, run.rule.tune.seed)
    for name, samples in parts.items():
        dataset.write(directory / f"{name}.jsonl", samples)
    (directory / "prompt.txt").write_text(prompt.render("{sequence}"), encoding="utf-8")
    metrics: step.Metrics = {"training_given": len(training), "golden_given": len(golden)}
    for name, samples in parts.items():
        metrics[name] = len(samples)
        metrics[f"{name}_classes"] = dict(Counter(sample.intent for sample in samples))
    metrics["calibration_hard"] = sum(sample.hard for sample in parts["calibration"])
    metrics["snapshot_sha256"] = hashlib.sha256("\n".join(sorted(s.id for s in training)).encode()).hexdigest()
    return step.Findings(metrics, promises(parts))


def promises(parts: Mapping[str, Sequence[TrainingSample]]) -> tuple[check.Check, ...]:
    """What must hold of a cut: no user and no sequence in two of its parts, every class taught and calibrated with."""
    apart = [parts[name] for name in ("train", "validation", "dev", "golden")]
    taught, calibrating = (Counter[str](sample.intent for sample in parts[name]) for name in ("train", "calibration"))
    return (
        check.at_most("users in two parts", _shared([{sample.user_id for sample in part} for part in apart]), 0),
        check.at_most("sequences in two parts", _shared([{sample.digest for sample in part} for part in apart]), 0),
        check.at_least("training samples of the rarest class", min(taught[intent] for intent in INTENTS), 1),
        check.at_least("calibration samples of the rarest class", min(calibrating[intent] for intent in INTENTS), 1),
    )


def _shared(parts: Sequence[set[str]]) -> int:
    """How many of their members are in more than one set?"""
    return sum(count > 1 for count in Counter(member for part in parts for member in part).values())


def split(
    training: Sequence[TrainingSample], golden: Sequence[TrainingSample], rule: SplitRule, seed: int
) -> dict[str, list[TrainingSample]]:
    """Cut without overlap: no user and no digest is in two of train, validation, dev and golden."""
    judges = sorted(_distinct(golden), key=lambda sample: sample.id)[: rule.golden_samples]
    users, digests = {sample.user_id for sample in golden}, {sample.digest for sample in golden}
    usable = [sample for sample in _distinct(training) if sample.user_id not in users and sample.digest not in digests]
    if len(usable) < MIN_TRAIN:
        raise ContractError(f"{len(usable)} training samples beside the golden set, at least {MIN_TRAIN} are needed")
    dev_count = min(rule.dev_samples, round(rule.dev_ratio * len(usable)))
    dev, rest = _take_users(usable, max(1, dev_count), seed)
    val_count = rule.val_size if rule.val_size >= 1 else rule.val_size * len(rest)
    validation, train = _take_users(rest, max(1, round(val_count)), seed + 1)
    calibration = calibration_set.pick(train, rule.calibration_samples, seed + 2)
    return {"train": train, "validation": validation, "dev": dev, "calibration": calibration, "golden": judges}


def _distinct(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    return list({sample.digest: sample for sample in sorted(samples, key=lambda sample: sample.id)}.values())


def _take_users(
    samples: Sequence[TrainingSample], count: int, seed: int
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Take whole users in random order until `count` samples are taken; the others are the rest."""
    users = sorted({sample.user_id for sample in samples})
    Random(seed).shuffle(users)
    sizes = Counter(sample.user_id for sample in samples)
    taken: set[str] = set()
    got = 0
    for user in users[:-1]:
        if got >= count:
            break
        taken.add(user)
        got += sizes[user]
    return (
        [sample for sample in samples if sample.user_id in taken],
        [sample for sample in samples if sample.user_id not in taken],
    )


if __name__ == "__main__":
    step.main("freeze", NEEDS, freeze)
