"""The distillation loss and its gradient against hand arithmetic and scipy."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from intentloop.errors import ContractError
from trainer import loss, rule
from trainer.dataset import IGNORED


def test_divergence_of_a_coin_from_three_to_one_is_that_of_the_textbook() -> None:
    found = loss.logit_divergence(torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]]), 1.0)
    assert found.item() == pytest.approx(0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_divergence_is_the_mean_relative_entropy_of_softened_scores(temperature: float) -> None:
    mine, theirs = np.random.default_rng(3).normal(size=(2, 4, 7))
    softened = [softmax(scores / temperature, axis=-1) for scores in (theirs, mine)]
    expected = rel_entr(*softened).sum(-1).mean() * temperature**2
    found = loss.logit_divergence(torch.tensor(mine), torch.tensor(theirs), temperature)
    assert found.item() == pytest.approx(expected, rel=1e-5)


class Told:
    """A model that always says the same."""

    def __init__(self, logits: torch.Tensor, **more: Any) -> None:
        self.logits, self.more, self.asked = logits, more, dict[str, Any]()

    def __call__(self, **asked: Any) -> SimpleNamespace:
        self.asked = asked
        answer = None
        if "labels" in asked:
            shifted = asked["labels"][:, 1:].flatten()
            answer = torch.nn.functional.cross_entropy(self.logits[:, :-1].flatten(0, 1), shifted, ignore_index=IGNORED)
        return SimpleNamespace(logits=self.logits, loss=answer, **self.more)

    def to(self, device: Any) -> "Told":
        return self


def inputs(labels: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, torch.Tensor]:
    told = torch.tensor(labels)
    return {
        "input_ids": torch.zeros_like(told),
        "attention_mask": torch.ones_like(told) if mask is None else torch.tensor(mask),
        "labels": told,
    }


@pytest.mark.parametrize(("alpha", "temperature"), [(0.9, 1.0), (0.3, 2.0), (0.0, 1.0), (1.0, 4.0)])
def test_the_gradient_pulls_towards_label_and_teacher_by_their_shares(alpha: float, temperature: float) -> None:
    generator = torch.Generator().manual_seed(5)
    mine = torch.randn(2, 3, 4, generator=generator, requires_grad=True)
    theirs = torch.randn(2, 3, 4, generator=generator)
    labels = [[IGNORED, IGNORED, 2], [IGNORED, 1, 0]]  # places 1 of row 0, and 0 and 1 of row 1 are asked
    teacher = loss.Teacher(model=Told(theirs), alpha=alpha, temperature=temperature)
    found, _ = loss.distilled(Told(mine), inputs(labels), teacher)
    torch.autograd.backward(found)
    expected = np.zeros((2, 3, 4))
    for row, place, label in ((0, 1, 2), (1, 0, 1), (1, 1, 0)):
        own, other = mine.detach()[row, place].numpy(), theirs[row, place].numpy()
        by_label = softmax(own) - np.eye(4)[label]
        by_teacher = temperature * (softmax(own / temperature) - softmax(other / temperature))
        expected[row, place] = ((1 - alpha) * by_label + alpha * by_teacher) / 3
    assert mine.grad is not None
    np.testing.assert_allclose(mine.grad.numpy(), expected, atol=1e-6)


def test_states_that_enter_a_kept_block_are_compared_and_padding_is_not() -> None:
    def states(*values: float) -> list[torch.Tensor]:
        return [torch.tensor([[[value, 0.0], [9.0 * index, 1.0]]]) for index, value in enumerate(values)]

    mine, theirs = states(1, 3, 5), states(1, 100, 4, 10)  # blocks 0 and 2 of three; block 1 is cut
    mask = torch.tensor([[True, False]])
    found = loss.hidden_error(mine, theirs, (0, 2), mask)
    assert found.item() == pytest.approx(((3 - 4) ** 2 / 4**2 + (5 - 10) ** 2 / 10**2) / 2)


def test_attention_is_compared_row_by_row() -> None:
    mine = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.9, 0.1]]]])  # one row, two heads, two tokens
    theirs = torch.tensor([[[[1.0, 0.0], [0.75, 0.25]], [[1.0, 0.0], [0.9, 0.1]]]])
    moved = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    both = loss.attention_divergence([(mine, theirs)], torch.tensor([[True, True]]))
    assert both.item() == pytest.approx(moved / 4, rel=1e-5)
    last = loss.attention_divergence([(mine, theirs), (theirs, theirs)], torch.tensor([[False, True]]))
    assert last.item() == pytest.approx((moved / 2 + 0) / 2, rel=1e-5)


def test_states_and_attention_enter_with_their_weights() -> None:
    logits = torch.zeros(1, 2, 3)
    half, whole = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    student = Told(logits, hidden_states=[torch.ones(1, 2, 1), torch.ones(1, 2, 1)], attentions=[half])
    other = Told(logits, hidden_states=[torch.ones(1, 2, 1), 2 * torch.ones(1, 2, 1)], attentions=[whole])
    teacher = loss.Teacher(model=other, alpha=0.5, temperature=1.0, hidden=3.0, attention=7.0, kept=(0,))
    found, _ = loss.distilled(student, inputs([[IGNORED, 1]]), teacher)
    expected = 0.5 * math.log(3) + 3 * (1 - 2) ** 2 / 2**2 + 7 * math.log(2)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_nothing_is_asked_for_that_has_no_weight() -> None:
    student, other = Told(torch.zeros(1, 2, 3)), Told(torch.zeros(1, 2, 3))
    loss.distilled(student, inputs([[IGNORED, 1]]), loss.Teacher(model=other, alpha=0.9, temperature=1.0))
    assert set(student.asked) == {"input_ids", "attention_mask", "labels"}
    assert set(other.asked) == {"input_ids", "attention_mask"}


def test_batches_of_a_step_weigh_by_their_supervised_tokens() -> None:
    short, long = torch.tensor([[IGNORED, 1]]), torch.tensor([[IGNORED, 1, 2, 3], [IGNORED, IGNORED, 4, 5]])
    assert [float(loss.share(labels, 6, 1)) for labels in (short, long)] == pytest.approx([1 / 6, 5 / 6])
    assert float(loss.share(short, 6, 2)) == pytest.approx(2 / 6)  # the mean of two processes halves it again
    assert loss.share(short, None, 2) == 1.0


def test_a_teacher_knows_which_of_its_blocks_were_kept() -> None:
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=5))
    prune = rule.PruneRule(distil_hidden=0.5, distil_alpha=0.7, distil_temperature=2.0)
    found = loss.teacher(model, prune, (1, 3))
    assert (found.kept, found.hidden, found.attention) == ((0, 2, 4), 0.5, 0.0)
    assert (found.alpha, found.temperature) == (0.7, 2.0)


def test_a_model_with_another_number_of_blocks_than_its_teacher_kept_is_refused() -> None:
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=3))
    with pytest.raises(ContractError, match="2 of the teacher's blocks for a model of 3"):
        loss.prepare(model, loss.Teacher(model=model, alpha=1, temperature=1, hidden=0.1, kept=(0, 2)))
