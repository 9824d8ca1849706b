"""Which other ways are there to say how much a block matters? For comparison with block influence.

By direction: the angle between what enters and leaves a block. By loss: how much worse the answers become without the
block, which costs one pass a block, and a first-order guess at the same, which costs one pass forth and back. All are
taken on the calibration samples; loss is the mean over their answers' tokens, in nats.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from trainer.dataset import IGNORED, Encoded


def angle(cosines: torch.Tensor) -> torch.Tensor:
    """How far is each token turned? In half turns, 0 to 1.

    Source: Gromov et al. (arXiv 2403.17887), angular distance over one block.
    """
    return cosines.clamp(-1, 1).arccos() / math.pi


@torch.no_grad()
def losses_without(model: Any, samples: Sequence[Encoded]) -> list[float]:
    """How much does the mean loss rise when a block is left out? Below 0 where the answers become better.

    The order is that of the perplexities, which are the exponentials of these losses.

    Source: Shortened LLaMA (arXiv 2402.02834), perplexity criterion.
    """
    layers = model.model.layers
    whole = mean_loss(model, samples)
    rises = []
    for index, layer in enumerate(layers):
        layers[index] = _Passing()
        try:
            rises.append(mean_loss(model, samples) - whole)
        finally:
            layers[index] = layer
    return rises


def taylor(model: Any, samples: Sequence[Encoded]) -> list[float]:
    """How much would the loss change if a block's weights were zero, by first order? Sum of |weight · gradient|.

    Source: Shortened LLaMA (arXiv 2402.02834), Taylor criterion; the gradient is that of all samples together.
    """
    weights = [list(layer.parameters()) for layer in model.model.layers]
    learns = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        for weight in learns:
            weight.requires_grad_(False)
        for weight in (weight for block in weights for weight in block):
            weight.requires_grad_(True)
        model.zero_grad(set_to_none=True)
        tokens = _supervised(samples)
        for sample in samples:
            torch.autograd.backward(_loss(model, sample) / tokens)
        return [sum(_salience(weight) for weight in block) for block in weights]
    finally:
        model.zero_grad(set_to_none=True)
        for weight, learnt in learns.items():
            weight.requires_grad_(learnt)


def mean_loss(model: Any, samples: Sequence[Encoded]) -> float:
    """How badly does the model guess the answers? Mean over their tokens, in nats."""
    return sum(_loss(model, sample).item() for sample in samples) / _supervised(samples)


def _supervised(samples: Sequence[Encoded]) -> int:
    return sum(label != IGNORED for sample in samples for label in sample.labels[1:])


def _loss(model: Any, sample: Encoded) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([sample.input_ids]), use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(
        logits.float(), torch.tensor(sample.labels[1:]), ignore_index=IGNORED, reduction="sum"
    )


def _salience(weight: torch.Tensor) -> float:
    return 0.0 if weight.grad is None else float((weight.grad * weight.detach()).abs().sum())


class _Passing(torch.nn.Module):
    """A block that does nothing."""

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
        """Give back what came."""
        return hidden_states
