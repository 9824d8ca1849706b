"""Train: the released base learns from the snapshot beside its own rounded weights, once for each rank of the rule."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intentloop.errors import ContractError
from trainer import check, publish, step
from trainer.adapter_release import base
from trainer.adapter_release.graph import Adapter
from trainer.rule import LineRule, TuneRule

NEEDS = ("freeze",)
NAME = "adapter-train"

CHECKED_SAMPLES = 8
MAX_DIVERGENCE = 0.01  # nats a token; the engine rounds activations, its weights are ours to 1e-4 of a logit


def train(run: step.Run, directory: Path) -> step.Findings:
    """Write `r<rank>/`, an adapter alone (safetensors), for every rank.

    Raises:
        ContractError: the base's files are not those that were released, or it was made from another base model.
    """
    from trainer import checkpoint, dataset, tune

    artefact = Path(run.spec.base_release)
    released = publish.read_manifest(artefact)
    check_files(artefact)
    words = checkpoint.tokenizer(run.base)
    dataset.check_template(words)
    read = {name: dataset.read(run.step("freeze") / f"{name}.jsonl") for name in ("train", "validation", "dev")}
    training, validation = (
        dataset.encode(words, read[name], run.rule.tune.cutoff_len) for name in ("train", "validation")
    )
    dropped = len(read["train"]) - len(training)
    metrics: step.Metrics = {"base": released.version, "samples": len(training), "dropped": dropped}
    checks = [
        check.at_most("samples that do not end with the end mark", dataset.without_end(words, training), 0),
        check.at_most("prompts that are not the base's own template", dataset.foreign(words, read["train"]), 0),
    ]
    for rank in run.rule.adapter.ranks:
        model = base.load(artefact, run.base, released.layers_dropped)
        checks.append(_sees_what_runs(model, artefact, read["dev"], run.rule))
        rule = ranked(run.rule.tune, rank)
        model = tune.attach(model, rule)
        course = tune.Course(work=directory / "checkpoints", epochs=rule.num_train_epochs, rule=rule, name=f"r{rank}")
        found = tune.train(model, (training, validation), course)
        model.save_pretrained(directory / f"r{rank}", safe_serialization=True)
        metrics |= {f"r{rank}_{name}": value for name, value in found.items()}
        guessing = math.log(len(words))
        checks.append(check.at_most(f"evaluation loss of rank {rank}, guessing", found["best_eval_loss"], guessing))
    return step.Findings(metrics, tuple(checks))


def check_files(artefact: Path) -> None:
    """Are these the files that phones downloaded?

    Raises:
        ContractError: one differs from the release's manifest.
    """
    for file in publish.read_manifest(artefact).files:
        found = step.sha256(artefact / file.name)
        if found != file.sha256:
            raise ContractError(
                f"{artefact / file.name} has SHA-256 {found}, its manifest says {file.sha256}; publish the base again"
            )


def ranked(rule: TuneRule, rank: int) -> TuneRule:
    """The same training with another rank; alpha keeps its ratio to it."""
    return msgspec.structs.replace(
        rule, lora_rank=rank, lora_alpha=max(1, round(rule.lora_alpha * rank / rule.lora_rank))
    )


def read_adapter(directory: Path) -> Adapter:
    """Read a saved adapter by the graph's names, its scale folded into B."""
    from safetensors.numpy import load_file

    settings = msgspec.json.decode((directory / "adapter_config.json").read_bytes())
    rank = settings["r"]
    scale = settings["lora_alpha"] / (rank**0.5 if settings.get("use_rslora") else rank)
    pairs: dict[str, dict[str, Any]] = {}
    for name, value in load_file(directory / "adapter_model.safetensors").items():
        layer, half, _ = name.removeprefix("base_model.model.").rsplit(".", 2)
        pairs.setdefault(base.operation_name(layer), {})[half] = value.astype(np.float32)
    return {name: (pair["lora_A"], pair["lora_B"] * np.float32(scale)) for name, pair in pairs.items()}


def _sees_what_runs(model: Any, artefact: Path, samples: list[Any], rule: LineRule) -> check.Check:
    from trainer.engine import Engine

    engine = Engine(artefact, rule.measure.threads, reuse=False)
    found = base.divergence(model, engine, samples[:CHECKED_SAMPLES])
    return check.at_most("KL of the device's base to the one trained on", found, MAX_DIVERGENCE)


if __name__ == "__main__":
    step.main(NAME, NEEDS, train)
