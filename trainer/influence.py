"""Influence: how much does each block change what passes through it? BI = 1 − E[cos(h_in, h_out)].

Measured over every token of the calibration prompts with their answers, by hooks and a running mean: no block's states
are kept, so memory does not grow with depth. The last block is measured before the final norm, unlike the list of
hidden states that transformers returns.

Source: ShortGPT (arXiv 2403.03853), formula 1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import step

if TYPE_CHECKING:
    import torch

NEEDS = ("freeze", "merge")


def influence(run: step.Run, directory: Path) -> step.Metrics:
    """Measure every block of the merged model; the result is in the manifest's metrics, nothing else is written."""
    from trainer import checkpoint, dataset

    model, words = checkpoint.load(run.step("merge")), checkpoint.tokenizer(run.step("merge"))
    samples = dataset.encode(words, dataset.read(run.step("freeze") / "calibration.jsonl"), run.rule.tune.cutoff_len)
    rows = [sample.input_ids for sample in samples]
    return {"block_influence": block_influence(model, rows), "tokens": sum(len(row) for row in rows)}


def block_influence(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """How much does each block of `model` change its input, averaged over all tokens of all rows?"""
    import torch

    layers = model.model.layers
    sums = torch.zeros(len(layers), dtype=torch.float64)
    hooks = [
        layer.register_forward_hook(_observer(sums, index), with_kwargs=True) for index, layer in enumerate(layers)
    ]
    try:
        with torch.no_grad():
            for row in rows:
                model.model(input_ids=torch.tensor([row]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return (sums / sum(len(row) for row in rows)).tolist()


def _observer(sums: "torch.Tensor", index: int) -> Any:
    import torch

    def observe(layer: Any, inputs: Any, keywords: Any, output: Any) -> None:
        before = inputs[0] if inputs else keywords["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output  # (1, tokens, hidden)
        cosine = torch.nn.functional.cosine_similarity(before.float(), after.float(), dim=-1)
        sums[index] += (1 - cosine).double().sum()

    return observe


if __name__ == "__main__":
    step.main("influence", NEEDS, influence)
