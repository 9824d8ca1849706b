"""Training a micro model: the same seed gives the same weights, and two processes give those of one."""

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from intentloop.errors import ContractError
from trainer import adapt, checkpoint, curve, dataset, heal, prune, rule, run, step, tiny_corpus, tune

from .conftest import BASE

torch.set_num_threads(1)  # the models are tiny

SAMPLES = tiny_corpus.samples(11, 24, 0.5)
TUNE = rule.TuneRule(
    learning_rate=2e-2,
    num_train_epochs=3,
    gradient_accumulation_steps=1,
    eval_steps=2,
    adam_epsilon=1e-3,  # so large that a step follows the gradient; by its sign alone, rounding would decide
)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the tiny model."""
    model = checkpoint.load(BASE)
    prune.drop_layers(model, range(1, 7))
    directory = tmp_path_factory.mktemp("micro")
    checkpoint.save(model, BASE, directory, [dataset.prompt_text(SAMPLES[0])])
    return directory


def prepared(directory: Path, base: Path, processes: int) -> step.Run:
    """A run whose snapshot is frozen already: 16 samples to train on, so that one global batch holds them all."""
    (directory / "inputs").mkdir(parents=True)
    for name in ("training", "golden"):
        (directory / "inputs" / f"{name}.jsonl").touch()
    rules = rule.LineRule(
        num_processes=processes, tune=msgspec.structs.replace(TUNE, per_device_train_batch_size=16 // processes)
    )
    made = step.start(directory, step.RunSpec(number=2, base=str(base), base_name="micro"), rules)

    def freeze(one: step.Run, into: Path) -> step.Metrics:
        for name, part in (("train", SAMPLES[:16]), ("validation", SAMPLES[16:])):
            dataset.write(into / f"{name}.jsonl", part)
        return {}

    step.perform(made, "freeze", run.needs("freeze"), freeze)
    return made


def weights(made: step.Run) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(made.step("adapt") / "adapter_model.safetensors")
    return found


@pytest.fixture(scope="module")
def alone(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> step.Run:
    made = prepared(tmp_path_factory.mktemp("alone"), micro, 1)
    step.perform(made, "adapt", adapt.NEEDS, adapt.adapt)
    return made


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    alone: step.Run, micro: Path, tmp_path: Path
) -> None:
    def again(seed: int) -> step.Run:
        made = prepared(tmp_path / f"seed{seed}", micro, 1)
        tuned = msgspec.structs.replace(made.rule.tune, seed=seed)
        made = step.start(made.directory, made.spec, msgspec.structs.replace(made.rule, tune=tuned))
        torch.rand(7)  # whatever happened before in the process must not matter
        step.perform(made, "adapt", adapt.NEEDS, adapt.adapt)
        return made

    digests = [step.sha256(made.step("adapt") / "adapter_model.safetensors") for made in (alone, again(1), again(2))]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def healed(directory: Path, base: Path, method: rule.Healing, seed: int) -> str:
    """Leave out the second of two layers and heal the first; what are its weights? SHA-256."""
    made = prepared(directory, base, 1)
    rules = msgspec.structs.replace(
        made.rule,
        tune=msgspec.structs.replace(made.rule.tune, seed=seed),
        prune=rule.PruneRule(layers_to_drop=(1,), healing=method, heal_epochs=1),
    )
    made = step.start(directory, made.spec, rules)
    dataset.write(made.step("freeze") / "dev.jsonl", SAMPLES[16:17])

    def copied(one: step.Run, into: Path) -> step.Metrics:
        shutil.copytree(base, into, dirs_exist_ok=True)
        return {}

    def pruned(one: step.Run, into: Path) -> step.Metrics:
        model = checkpoint.load(base)
        prune.drop_layers(model, [1])
        checkpoint.save(model, base, into / "drop1", [])
        return {"drop1": [1], "left": {}}

    step.perform(made, "merge", ("freeze",), copied)
    step.perform(made, "prune", ("merge",), pruned)
    torch.rand(seed + len(directory.name))  # whatever happened before in the process must not matter
    step.perform(made, "heal", heal.NEEDS, heal.heal)
    assert made.metrics("heal")["healing"] == {"drop1": method}
    return step.sha256(made.step("heal") / "drop1" / "model.safetensors")


@pytest.mark.parametrize("method", ["lora", "distil"])
def test_the_same_seed_heals_to_the_same_weights_and_another_to_others(
    method: rule.Healing, micro: Path, tmp_path: Path
) -> None:
    one, again, other = (
        healed(tmp_path / name, micro, method, seed) for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    assert one == again
    assert one != other


def test_two_processes_learn_what_one_learns_from_the_same_global_batch(
    alone: step.Run, micro: Path, tmp_path: Path
) -> None:
    made = prepared(tmp_path / "together", micro, 2)
    arguments, environment = run.command("adapt", made)
    assert arguments[2] == "trainer.launch"
    subprocess.run(arguments, env=environment, check=True, timeout=240)
    metrics = made.metrics("adapt")
    assert (metrics["processes"], metrics["steps"]) == (2, alone.metrics("adapt")["steps"])
    together, expected = weights(made), weights(alone)
    assert together.keys() == expected.keys()
    apart = max(float((together[name] - tensor).abs().max()) for name, tensor in expected.items())
    assert apart < 1e-5
    moved = max(float(tensor.abs().max()) for name, tensor in expected.items() if "lora_B" in name)
    assert moved > 1e-2  # B begins at zero: something was learnt, so equality says something


def test_losses_are_kept_by_step_and_drawn(alone: step.Run) -> None:
    directory = alone.step("adapt")
    kept = curve.read(directory / "training-losses.jsonl")
    evaluated = [entry["eval_loss"] for entry in kept if "eval_loss" in entry]
    metrics = alone.metrics("adapt")
    assert (len(evaluated), min(evaluated)) == (metrics["evaluations"], metrics["best_eval_loss"])
    assert [entry["step"] for entry in kept if "eval_loss" in entry] == [2, 3]  # every second, and the last
    assert ElementTree.parse(directory / "training-losses.svg").getroot().tag.endswith("svg")
    assert not (directory / "checkpoints").exists()


def test_what_was_trained_on_is_recorded(alone: step.Run) -> None:
    metrics = alone.metrics("adapt")
    assert {metrics["device"], metrics["precision"]} == {"cpu", "fp32"}  # asked for bf16, which is for GPUs
    assert (metrics["processes"], metrics["threads"]) == (1, 1)


def test_an_adapter_that_guesses_worse_than_dice_stops_the_line(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepared(tmp_path, micro, 1)
    worse: Any = {"evaluations": 1, "best_eval_loss": 8.0}  # dice over 2,048 tokens: 7.62 nats
    monkeypatch.setattr(tune, "train", lambda *arguments: worse)
    with pytest.raises(ContractError, match=r"best evaluation loss.* is 8, must be at most 7\.62"):
        step.perform(made, "adapt", adapt.NEEDS, adapt.adapt)


def test_samples_that_do_not_teach_where_to_stop_are_counted() -> None:
    words = checkpoint.tokenizer(BASE)  # M09
    encoded = dataset.encode(words, SAMPLES[:3], 1024)
    assert dataset.without_end(words, encoded) == 0
    cut = [dataset.Encoded(each.input_ids[:-1], each.labels[:-1]) for each in encoded[:2]]
    assert dataset.without_end(words, [*cut, encoded[2]]) == 2
    masked = dataset.Encoded(encoded[0].input_ids, [*encoded[0].labels[:-1], dataset.IGNORED])
    assert dataset.without_end(words, [masked]) == 1


def test_prompts_of_another_template_are_counted() -> None:
    words = checkpoint.tokenizer(BASE)  # M08
    assert dataset.foreign(words, SAMPLES) == 0
    other = copy.deepcopy(words)
    other.chat_template = words.chat_template.replace("<think>\\n\\n</think>\\n\\n", "")
    assert dataset.foreign(other, SAMPLES * 10) == 240  # all that there are
