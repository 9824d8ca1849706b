"""Prune: leave out the blocks that change least. One model for each number of blocks in the rule's list.

The first and the last block stay. Every list with one entry a layer is cut by the same indices and the layers are
numbered anew, or caches break and missing layers are filled with dice at the next load (faults M01, M02).

Source: ShortGPT (arXiv 2403.03853); protection of both ends from seeds/000.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intentloop.errors import ContractError
from trainer import step

NEEDS = ("freeze", "merge", "influence")
CHECKED_PROMPTS = 4


def prune(run: step.Run, directory: Path) -> step.Metrics:
    """Write `drop<K>/` for every K of the rule, each checked with and without cache and reloaded."""
    from trainer import checkpoint, dataset

    scores = run.metrics("influence")["scores"]
    samples = dataset.read(run.step("freeze") / "dev.jsonl")[:CHECKED_PROMPTS]
    prompts = [dataset.prompt_text(sample) for sample in samples]
    metrics: step.Metrics = {}
    for count in run.rule.prune.layers_to_drop:
        dropped = choose(scores, count)
        model = checkpoint.load(run.step("merge"))
        drop_layers(model, dropped)
        check_cache(model, checkpoint.tokenizer(run.step("merge")), prompts)
        change = checkpoint.save(model, run.step("merge"), directory / f"drop{count}", prompts)
        metrics[f"drop{count}"] = list(dropped)
        metrics[f"drop{count}_max_logit_change"] = change
    return metrics


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
