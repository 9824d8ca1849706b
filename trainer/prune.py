"""Prune: leave out the blocks that change least. One model for each number of blocks in the rule's list.

The first and the last block stay. Every list with one entry a layer is cut by the same indices and the layers are
numbered anew, or caches break and missing layers are filled with dice at the next load (faults M01, M02).

Source: ShortGPT (arXiv 2403.03853); protection of both ends from seeds/000.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intentloop.errors import ContractError
from trainer import check, step

NEEDS = ("freeze", "merge", "influence")
CHECKED_PROMPTS = 4
LAYER_LISTS = ("layer_types",)  # of a configuration: one entry a layer


def prune(run: step.Run, directory: Path) -> step.Findings:
    """Write `drop<K>/` for every K of the rule, each checked with and without cache and reloaded.

    Of several, those whose artefact would be too large or too slow for the gate leave before they are healed.

    Raises:
        ContractError: more layers than there are, or a pruned model that contradicts itself.
    """
    from trainer import checkpoint, dataset

    scores = run.metrics("influence")["scores"]
    samples = dataset.read(run.step("freeze") / "dev.jsonl")[:CHECKED_PROMPTS]
    prompts = [dataset.prompt_text(sample) for sample in samples]
    metrics: step.Metrics = {}
    checks = []
    for count in run.rule.prune.layers_to_drop:
        name, dropped = f"drop{count}", choose(scores, count)
        model = checkpoint.load(run.step("merge"))
        total = model.config.num_hidden_layers
        drop_layers(model, dropped)
        check_cache(model, checkpoint.tokenizer(run.step("merge")), prompts)
        change = checkpoint.save(model, run.step("merge"), directory / name, prompts)
        odd = uneven(checkpoint.load(directory / name), total - count)
        metrics[name] = list(dropped)
        metrics[f"{name}_max_logit_change"] = change
        checks += [
            check.at_most(f"{name}: lists and numbers that do not fit its layers", len(odd), 0),
            check.at_most(f"{name}: change of a logit by saving and loading", change, checkpoint.MAX_LOGIT_CHANGE),
        ]
    metrics["left"] = over_budget(run, directory)
    for name in metrics["left"]:
        shutil.rmtree(directory / name)
    return step.Findings(metrics, tuple(checks))


def over_budget(run: step.Run, directory: Path) -> dict[str, str]:
    """Which numbers of layers would be too large or too slow for a phone, however they heal? Reason by name.

    Neither depends on the weights' values. A single number has no rival to make room for, the gate judges it.
    """
    from trainer import search_probe, search_race

    names = [f"drop{count}" for count in run.rule.prune.layers_to_drop]
    if len(names) < 2:
        return {}
    probes = {name: search_probe.smallest(run, directory / name) for name in names}
    sizes = {name: probe.artefact_bytes for name, probe in probes.items()}
    left = search_race.too_large(sizes, run.rule.gate.max_artefact_bytes)
    times = {name: probe.look().long_ttft_ms or 0.0 for name, probe in probes.items() if name not in left}
    left |= search_race.too_slow(times, run.rule.gate.max_ttft_p95_ms)
    shutil.rmtree(run.directory / search_probe.PROBES)
    return left


def kept(run: step.Run) -> list[int]:
    """Which numbers of dropped layers are still in the search after pruning?"""
    left = run.metrics("prune")["left"]
    return [count for count in run.rule.prune.layers_to_drop if f"drop{count}" not in left]


def uneven(model: Any, layers: int) -> list[str]:
    """What of a model does not fit this number of layers? Names of its lists and numbers (faults M01, M02)."""
    config = model.config
    lists = {name: len(value) for name, value in vars(config).items() if name in LAYER_LISTS and value is not None}
    found = [name for name, length in lists.items() if length != layers]
    found += ["num_hidden_layers"] if config.num_hidden_layers != layers else []
    numbers = [layer.self_attn.layer_idx for layer in model.model.layers]
    return found + (["layer_idx"] if numbers != list(range(layers)) else [])


def choose(scores: Sequence[float], count: int) -> tuple[int, ...]:
    """Which `count` blocks change least? In ascending order of their number.

    Raises:
        ContractError: more blocks than lie between the first and the last.
    """
    inner = range(1, len(scores) - 1)
    if count > len(inner):
        raise ContractError(f"cannot drop {count} of {len(scores)} layers, the first and the last stay")
    return tuple(sorted(sorted(inner, key=lambda index: (scores[index], index))[:count]))


def drop_layers(model: Any, dropped: Sequence[int]) -> None:
    """Take layers out of a model, in place, with everything in its configuration that counts layers."""
    import torch

    config = model.config
    total = config.num_hidden_layers
    kept = [index for index in range(total) if index not in set(dropped)]
    model.model.layers = torch.nn.ModuleList([model.model.layers[index] for index in kept])
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = number
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == total:
            setattr(config, name, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
    if getattr(config, "max_window_layers", None) is not None:
        config.max_window_layers = min(config.max_window_layers, len(kept))


def check_cache(model: Any, words: Any, prompts: Sequence[str], new_tokens: int = 8) -> None:
    """Does the model say the same with and without its cache?

    Raises:
        ContractError: it does not (fault M01).
    """
    for text in prompts:
        ids = words(text, return_tensors="pt", add_special_tokens=False)
        try:
            told = [
                model.generate(**ids, max_new_tokens=new_tokens, do_sample=False, use_cache=cached).tolist()
                for cached in (True, False)
            ]
        except (IndexError, RuntimeError) as error:
            raise ContractError(f"the pruned model's cache does not fit its layers: {error}") from error
        if told[0] != told[1]:
            raise ContractError("the pruned model answers differently with and without cache; check layer_idx")


if __name__ == "__main__":
    step.main("prune", NEEDS, prune)
