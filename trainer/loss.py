"""What does a pruned model learn from besides the labels? From the unpruned: its answers, its states, its attention.

loss = (1 - α)·CE + α·KL·T² + β·(error of hidden states) + γ·(divergence of attention)

The first two are on supervised tokens, the others on all that are not padding. A block of the pruned model stands for
the block of the teacher that it was cut from, so what should agree is what enters it: the state before it and the
attention in it; at the end, the states after the final norm. β and γ are 0 by default: they cost the teacher's states,
and attention costs the fast kernel, which keeps no probabilities.

Source: seeds/000 for α and T (Minitron style); TinyBERT (arXiv 1909.10351) for states and attention.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from intentloop.errors import ContractError
from trainer.dataset import IGNORED
from trainer.rule import PruneRule


class Teacher(msgspec.Struct, frozen=True, kw_only=True):
    """Whom does a pruned model imitate, and in what? `kept` are the teacher's blocks that the pruned model has."""

    model: Any
    alpha: float
    temperature: float
    hidden: float = 0.0
    attention: float = 0.0
    kept: tuple[int, ...] = ()


def teacher(model: Any, rule: PruneRule, dropped: Sequence[int]) -> Teacher:
    """Make the unpruned `model` the teacher of one without the blocks `dropped`."""
    return Teacher(
        model=model,
        alpha=rule.distil_alpha,
        temperature=rule.distil_temperature,
        hidden=rule.distil_hidden,
        attention=rule.distil_attention,
        kept=tuple(index for index in range(model.config.num_hidden_layers) if index not in set(dropped)),
    )


def prepare(model: Any, teacher: Teacher) -> None:
    """Make both models tell what the loss reads.

    Raises:
        ContractError: the two have no common blocks to compare.
    """
    layers = model.config.num_hidden_layers
    if (teacher.hidden or teacher.attention) and len(teacher.kept) != layers:
        raise ContractError(f"{len(teacher.kept)} of the teacher's blocks for a model of {layers}; each needs its own")
    if teacher.attention:
        for one in (model, teacher.model):
            one.set_attn_implementation("eager")


def distilled(model: Any, inputs: Any, teacher: Teacher) -> tuple[torch.Tensor, Any]:
    """How far is `model` from its labels and its teacher? Mean over the batch's tokens, and the model's outputs.

    Args:
        inputs: `input_ids`, `attention_mask` and `labels`, each (batch, tokens).
    """
    asked = {}
    if teacher.hidden:
        asked["output_hidden_states"] = True
    if teacher.attention:
        asked["output_attentions"] = True
    outputs = model(**inputs, **asked)
    with torch.no_grad():
        seen = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        theirs = teacher.model.to(inputs["input_ids"].device)(**seen, **asked)
    told = inputs["labels"][:, 1:] != IGNORED
    divergence = logit_divergence(outputs.logits[:, :-1][told], theirs.logits[:, :-1][told], teacher.temperature)
    loss = (1 - teacher.alpha) * outputs.loss + teacher.alpha * divergence
    mask = inputs["attention_mask"].bool()
    if teacher.hidden:
        loss = loss + teacher.hidden * hidden_error(outputs.hidden_states, theirs.hidden_states, teacher.kept, mask)
    if teacher.attention:
        pairs = [(mine, theirs.attentions[index]) for mine, index in zip(outputs.attentions, teacher.kept, strict=True)]
        loss = loss + teacher.attention * attention_divergence(pairs, mask)
    return loss, outputs


def share(labels: torch.Tensor, items: Any, processes: int) -> Any:
    """How much does a batch's mean weigh in a step of several batches? By its share of the supervised tokens.

    Args:
        items: Supervised tokens of the whole step, all processes together; None when the batch is the step.
        processes: Their gradients will be averaged, so what is summed here must be as many times larger.
    """
    if items is None:
        return 1.0
    return (labels[:, 1:] != IGNORED).sum() / items * processes


def logit_divergence(mine: torch.Tensor, theirs: torch.Tensor, temperature: float) -> torch.Tensor:
    """How far are answers from the teacher's? Mean KL(theirs ‖ mine) of softened scores, times T², in nats.

    Args:
        mine: (supervised tokens, vocabulary), as `theirs`. T² keeps the gradient's size when T changes.
    """
    softened = [(scores.float() / temperature).log_softmax(-1) for scores in (mine, theirs)]
    divergence = torch.nn.functional.kl_div(softened[0], softened[1], log_target=True, reduction="batchmean")
    return divergence * temperature**2


def hidden_error(
    mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], kept: Sequence[int], mask: torch.Tensor
) -> torch.Tensor:
    """How far are the states that enter each block? Squared error as a share of the teacher's squares, mean of blocks.

    Args:
        mine: One state more than blocks, each (batch, tokens, hidden); the first is the embedding, which cannot differ.
        mask: (batch, tokens), false for padding.
    """
    pairs = [(mine[number], theirs[index]) for number, index in enumerate(kept) if number]
    errors = []
    for own, other in [*pairs, (mine[-1], theirs[-1])]:
        target = other[mask].float()
        errors.append((own[mask].float() - target).square().sum() / target.square().sum())
    return torch.stack(errors).mean()


def attention_divergence(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], mask: torch.Tensor) -> torch.Tensor:
    """How differently do blocks attend? Mean KL(theirs ‖ mine) over blocks, heads and tokens, in nats.

    Args:
        pairs: Mine and theirs for each block, (batch, heads, tokens, tokens), rows sum to 1.
        mask: (batch, tokens), false for padding.
    """
    means = []
    for mine, theirs in pairs:
        floor = torch.finfo(mine.dtype).tiny  # tokens still to come have probability 0 in both
        rows = torch.nn.functional.kl_div(mine.clamp_min(floor).log(), theirs, reduction="none").sum(-1)
        means.append(rows.transpose(1, 2)[mask].mean())  # (batch, heads, tokens) -> (batch, tokens, heads)
    return torch.stack(means).mean()
