"""Heal: a pruned model learns again what the cut took. LoRA on the same data, or imitation of the unpruned model.

With `healing: both` each number of layers is healed both ways, and the better one on the dev set in the device engine
is kept. Numbers of layers that are hopeless after healing leave here, before calibration and export are spent on them.
A healed model survives a kill of this step: it lies in `unfinished/` until the step's manifest is there.

Source: seeds/000: three epochs, since five fit the noise of the cut; distillation with α = 0.9, T = 1.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainer import check, prune, step

NAME = "heal"
NEEDS = ("freeze", "merge", "prune")
CHECKED_PROMPTS = 10
RECORD = "healed.json"


class Variant(msgspec.Struct, frozen=True):
    """One way of healing one pruned model: `lora`, `distil`, or `none` where nothing was cut."""

    count: int
    method: str

    @property
    def name(self) -> str:
        """Its directory's name."""
        return f"drop{self.count}-{self.method}"


class Record(msgspec.Struct, frozen=True):
    """What a healed model was made from, and its metrics; written last."""

    inputs: dict[str, str]
    metrics: step.Metrics


class Winners(msgspec.Struct, frozen=True):
    """Which variant is kept for each number of layers, and why the others left."""

    kept: tuple[Variant, ...]
    left: dict[str, str]
    accuracies: dict[str, float]


def heal(run: step.Run, directory: Path) -> step.Findings:
    """Write `drop<K>/`, a plain merged model, for every pruned one that is worth it; K = 0 has nothing to heal.

    Raises:
        ContractError: a merge does not survive saving, or nothing was evaluated.
    """
    from trainer import checkpoint

    tried = variants(prune.kept(run), run.rule.prune.healing)
    records = heal_all(run, tried)
    if not step.leads():  # one of several processes that trained together; the first goes on alone
        return step.Findings({}, ())
    found = keep_better(run, tried)
    for variant in found.kept:
        shutil.copytree(healed(run, variant), directory / f"drop{variant.count}", copy_function=os.link)
    metrics: step.Metrics = {
        "kept": [variant.count for variant in found.kept],
        "healing": {f"drop{variant.count}": variant.method for variant in found.kept},
        "left": found.left,
        "probe_accuracy": found.accuracies,
        "variants": {name: record.metrics for name, record in records.items()},
    }
    checks = []
    for variant in found.kept:
        change = records[variant.name].metrics["max_logit_change"]
        metrics[f"drop{variant.count}_max_logit_change"] = change
        name = f"drop{variant.count}: change of a logit by saving and loading"
        checks.append(check.at_most(name, change, checkpoint.MAX_LOGIT_CHANGE))
    return step.Findings(metrics, tuple(checks))


def variants(counts: Sequence[int], healing: str) -> list[Variant]:
    """Which ways of healing are tried?"""
    methods = ("lora", "distil") if healing == "both" else (healing,)
    return [Variant(count, method) for count in counts for method in (methods if count else ("none",))]


def healed(run: step.Run, variant: Variant) -> Path:
    """Where does a healed model lie until the step is done?"""
    return step.unfinished(run, NAME) / variant.name


def heal_all(run: step.Run, tried: Sequence[Variant]) -> dict[str, Record]:
    """Heal every variant that was not healed before from the same inputs."""
    from trainer import checkpoint, dataset

    words, rule = checkpoint.tokenizer(run.step("merge")), run.rule.tune
    read = {name: dataset.read(run.step("freeze") / f"{name}.jsonl") for name in ("train", "validation", "dev")}
    data = tuple(dataset.encode(words, read[name], rule.cutoff_len) for name in ("train", "validation"))
    prompts = [dataset.prompt_text(sample) for sample in read["dev"][:CHECKED_PROMPTS]]
    inputs = step.input_hashes(run, NEEDS)
    records = {}
    for variant in tried:
        directory = healed(run, variant)
        record = _read(directory / RECORD)
        if record is None or record.inputs != inputs:
            if step.leads():
                shutil.rmtree(directory, ignore_errors=True)
            record = Record(inputs, _heal(run, variant, data, prompts))
            if step.leads():
                step.write_atomically(directory / RECORD, msgspec.json.encode(record))
        records[variant.name] = record
    return records


def _heal(run: step.Run, variant: Variant, data: Any, prompts: list[str]) -> step.Metrics:
    from trainer import checkpoint, loss, tune

    source, directory = run.step("prune") / f"drop{variant.count}", healed(run, variant)
    model = checkpoint.load(source)
    metrics: step.Metrics = {}
    if variant.method != "none":
        rule = run.rule.prune
        teacher = None
        if variant.method == "distil":
            dropped = run.metrics("prune")[f"drop{variant.count}"]
            teacher = loss.teacher(checkpoint.load(run.step("merge")), rule, dropped)
        course = tune.Course(
            work=directory / "checkpoints",
            epochs=rule.heal_epochs,
            rule=run.rule.tune,
            name=variant.name,
            teacher=teacher,
        )
        tuned = tune.attach(model, run.rule.tune)
        metrics = tune.train(tuned, data, course)
        model = tuned.merge_and_unload()
    if step.leads():
        metrics["max_logit_change"] = checkpoint.save(model, source, directory, prompts)
    return metrics


def keep_better(run: step.Run, tried: Sequence[Variant]) -> Winners:
    """Which variant of each number of layers is the better one on a phone, and which numbers are hopeless?

    A variant alone needs no rival and is not asked. Otherwise all race over the dev set, rounded to nearest; what is
    surely behind the leader by more than another quantiser could win back leaves.
    """
    if len(tried) < 2:
        return Winners(tuple(tried), {}, {})
    from trainer import search_probe, search_race

    rule = run.rule
    probes = {variant.name: search_probe.plain(run, healed(run, variant)) for variant in tried}
    slack, total = rule.measure.choice_margin + rule.search.probe_slack, next(iter(probes.values())).samples

    def behind(right: Mapping[str, Sequence[bool]]) -> dict[str, str]:
        return search_race.behind(right, slack, rule.search.confidence_z)

    rounds = search_race.rounds(total, rule.search.shares)
    left = search_race.race(list(probes), rounds, lambda name, count: probes[name].right(count), behind)
    stayed = {name: probe.right(total) for name, probe in probes.items() if name not in left}
    left |= behind(stayed)
    found = better(tried, {name: right for name, right in stayed.items() if name not in left}, left)
    shutil.rmtree(run.directory / search_probe.PROBES)
    return found


def better(tried: Sequence[Variant], right: Mapping[str, Sequence[bool]], left: Mapping[str, str]) -> Winners:
    """Of those that stayed, which way of healing was right more often? The earlier tried one if both were as often."""
    accuracies = {name: sum(answers) / len(answers) for name, answers in right.items()}
    kept: dict[int, Variant] = {}
    reasons = dict(left)
    for variant in tried:
        if variant.name not in right:
            continue
        rival = kept.get(variant.count)
        if rival is None or accuracies[variant.name] > accuracies[rival.name]:
            kept[variant.count] = variant
    for variant in tried:
        winner = kept.get(variant.count)
        if winner is not None and variant.name in right and variant is not winner:
            mine, best = accuracies[variant.name], accuracies[winner.name]
            reasons[variant.name] = f"{mine:.3f} on dev in the engine, {winner.name} has {best:.3f}"
    return Winners(tuple(kept.values()), reasons, accuracies)


def _read(path: Path) -> Record | None:
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.is_file() else None


if __name__ == "__main__":
    step.main(NAME, NEEDS, heal)
