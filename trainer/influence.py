"""Influence: how much does each block matter? The lowest are the first to be left out.

The rule names the criterion, and all of them answer the same way: one number a block, in the order of the blocks. By
default it is block influence, BI = 1 − E[cos(h_in, h_out)], over every token of the calibration prompts with their
answers. `block_influence` takes it by hooks and a running sum, so no block's states are kept and memory does not grow
with depth. The last block is measured before the final norm, unlike the list of hidden states that transformers
returns. The others are for comparison and are in `influence_criteria.py`.

Source: ShortGPT (arXiv 2403.03853), formula 1.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intentloop.errors import ContractError
from trainer import check, step

if TYPE_CHECKING:
    import torch

    from trainer.dataset import Encoded
    from trainer.rule import InfluenceCriterion

NEEDS = ("freeze", "merge")

Change = Callable[["torch.Tensor"], "torch.Tensor"]  # cosines (1, tokens) -> how much each token was changed


def influence(run: step.Run, directory: Path) -> step.Findings:
    """Measure every block of the merged model; the result is in the manifest's metrics, nothing else is written."""
    from trainer import checkpoint, dataset

    model, words = checkpoint.load(run.step("merge")), checkpoint.tokenizer(run.step("merge"))
    samples = dataset.encode(words, dataset.read(run.step("freeze") / "calibration.jsonl"), run.rule.tune.cutoff_len)
    criterion = run.rule.prune.influence_criterion
    scores = score_blocks(model, samples, criterion)
    tokens = sum(len(sample.input_ids) for sample in samples)
    promised = promises(scores, model.config.num_hidden_layers, tokens)
    return step.Findings({"criterion": criterion, "scores": scores, "tokens": tokens}, promised)


def promises(scores: Sequence[float], blocks: int, tokens: int) -> tuple[check.Check, ...]:
    """What must hold of scores: a number for each of the model's blocks, found on something."""
    return (
        check.at_least("blocks with a score", len(scores), blocks),
        check.at_most("scores that are not numbers", sum(not math.isfinite(score) for score in scores), 0),
        check.at_least("calibration tokens", tokens, 1),
    )


def score_blocks(model: Any, samples: Sequence["Encoded"], criterion: "InfluenceCriterion") -> list[float]:
    """How much does each block of `model` matter, by this criterion? The lowest matters least."""
    from trainer import influence_criteria

    rows = [sample.input_ids for sample in samples]
    if criterion == "block":
        return block_influence(model, rows)
    if criterion == "angular":
        return mean_change(model, rows, influence_criteria.angle)
    if criterion == "perplexity":
        return influence_criteria.losses_without(model, samples)
    return influence_criteria.taylor(model, samples)


def block_influence(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """How much does each block of `model` change its input's direction, averaged over all tokens of all rows?"""
    return mean_change(model, rows, lambda cosines: 1 - cosines)


def mean_change(model: Any, rows: Sequence[Sequence[int]], change: Change) -> list[float]:
    """What is the mean of `change` over all tokens of all rows, for each block? One forward pass.

    Raises:
        ContractError: a block saw fewer or more tokens than there are.
    """
    import torch

    layers, tokens = model.model.layers, sum(len(row) for row in rows)
    sums = torch.zeros(len(layers), 2, dtype=torch.float64)  # (blocks, change and tokens)
    hooks = [
        layer.register_forward_hook(_observer(sums[index], change), with_kwargs=True)
        for index, layer in enumerate(layers)
    ]
    try:
        with torch.no_grad():
            for row in rows:
                model.model(input_ids=torch.tensor([row]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    for index, seen in enumerate(sums[:, 1].tolist()):
        if seen != tokens:
            raise ContractError(
                f"block {index} saw {seen:.0f} of {tokens} calibration tokens; every one must count once"
            )
    return (sums[:, 0] / tokens).tolist()


def _observer(sums: "torch.Tensor", change: Change) -> Any:
    import torch

    def observe(layer: Any, inputs: Any, keywords: Any, output: Any) -> None:
        before = inputs[0] if inputs else keywords["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output  # (1, tokens, hidden)
        cosines = torch.nn.functional.cosine_similarity(before.float(), after.float(), dim=-1)
        sums[0] += change(cosines).double().sum().cpu()
        sums[1] += cosines.numel()

    return observe


if __name__ == "__main__":
    step.main("influence", NEEDS, influence)
