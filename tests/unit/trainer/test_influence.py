"""Every criterion of influence on models so small that its values are found by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from intentloop.errors import ContractError
from trainer import influence
from trainer.dataset import IGNORED, Encoded


class Block(torch.nn.Module):
    """hidden · matrixᵀ, plus hidden itself when `residual`."""

    def __init__(self, matrix: list[list[float]], residual: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(matrix))
        self.residual = residual

    def forward(self, hidden_states: torch.Tensor, position: int = 0) -> torch.Tensor:
        told = hidden_states @ self.weight.T
        return told + hidden_states if self.residual else told


class Body(torch.nn.Module):
    """Token 0 is (1, 0), token 1 is (0, 1)."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(blocks)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        hidden = torch.eye(2)[input_ids]
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, position=number) if number % 2 else layer(hidden_states=hidden, position=number)
        return hidden


class Toy(torch.nn.Module):
    """Its logits are its last hidden state."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.model = Body(list(blocks))

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(input_ids, use_cache))


def turn(degrees: float) -> Block:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return Block([[cos, -sin], [sin, cos]])


def unsupervised(*rows: list[int]) -> list[Encoded]:
    return [Encoded(row, [IGNORED] * len(row)) for row in rows]


TURNING = Toy(Block([[2.0, 0.0], [0.0, 2.0]]), turn(90), turn(60))


def test_a_block_matters_by_the_cosine_between_what_enters_and_leaves() -> None:
    found = influence.score_blocks(TURNING, unsupervised([0, 1], [1]), "block")
    assert found == pytest.approx([0, 1, 0.5], abs=1e-6)  # 1 - cos of 0°, 90°, 60°


def test_the_angle_is_counted_in_half_turns() -> None:
    found = influence.score_blocks(TURNING, unsupervised([0, 1], [1]), "angular")
    assert found == pytest.approx([0, 1 / 2, 1 / 3], abs=1e-3)  # acos is steep at 1, so fp32 keeps few digits there


def test_every_token_weighs_the_same_whatever_the_length_of_its_row() -> None:
    mirror = Toy(Block([[1.0, 0.0], [0.0, -1.0]]))  # keeps token 0, turns token 1 around
    rows = unsupervised([0, 0, 0], [1])
    assert influence.score_blocks(mirror, rows, "block") == pytest.approx([2 / 4])
    assert influence.score_blocks(mirror, rows, "angular") == pytest.approx([1 / 4], abs=1e-3)


def test_a_block_that_does_not_see_every_token_is_noticed() -> None:
    class Lazy(Body):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
            return (
                super().forward(input_ids, use_cache)
                if input_ids.numel() > 1
                else self.layers[0](torch.eye(2)[input_ids])
            )

    model = Toy()
    model.model = Lazy([turn(30), turn(30)])
    with pytest.raises(ContractError, match="block 1 saw 2 of 3"):
        influence.score_blocks(model, unsupervised([0], [0, 1]), "block")


# Two residual blocks multiply the first component by 1 + 1 and 1 + 3, so the logits after token 0 are (8, 0), and the
# loss of the right answer 0 is log(1 + e^-8).
GROWING = (Block([[1.0, 0.0], [0.0, 5.0]], residual=True), Block([[3.0, 0.0], [0.0, 7.0]], residual=True))
ANSWERED = [Encoded([0, 0], [IGNORED, 0])]


def test_the_loss_without_a_block_is_that_of_the_others_alone() -> None:
    model = Toy(*GROWING)
    rises = influence.score_blocks(model, ANSWERED, "perplexity")
    whole = math.log1p(math.exp(-8))
    assert rises == pytest.approx([math.log1p(math.exp(-4)) - whole, math.log1p(math.exp(-2)) - whole], rel=1e-4)
    assert list(model.model.layers) == list(GROWING)


def test_a_block_that_spoils_the_answer_has_a_negative_rise() -> None:
    spoiling = Toy(Block([[-0.5, 0.0], [0.0, 0.0]], residual=True), Block([[3.0, 0.0], [0.0, 0.0]], residual=True))
    rises = influence.score_blocks(spoiling, ANSWERED, "perplexity")
    assert rises[0] == pytest.approx(math.log1p(math.exp(-4)) - math.log1p(math.exp(-2)), rel=1e-4)
    assert rises[0] < 0 < rises[1]


def test_taylor_is_weight_times_gradient_and_leaves_no_gradient_behind() -> None:
    model = Toy(*GROWING)
    model.model.layers[0].weight.requires_grad_(False)
    # d loss / d logit = -σ(-8); logit = (1 + a)(1 + b) with a = 1, b = 3; the second component is 0 throughout
    slope = 1 / (1 + math.exp(8))
    assert influence.score_blocks(model, ANSWERED, "taylor") == pytest.approx([1 * 4 * slope, 3 * 2 * slope], rel=1e-4)
    assert [weight.requires_grad for weight in model.parameters()] == [False, True]
    assert all(weight.grad is None for weight in model.parameters())


def test_taylor_takes_the_mean_over_all_answer_tokens() -> None:
    model = Toy(*GROWING)
    one = influence.score_blocks(model, ANSWERED, "taylor")
    three = influence.score_blocks(model, [*ANSWERED, Encoded([0, 0, 0], [IGNORED, 0, 0])], "taylor")
    assert three == pytest.approx(one, rel=1e-4)
