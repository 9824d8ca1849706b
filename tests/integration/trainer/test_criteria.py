"""Criteria of influence on a real architecture, against other ways to the same number."""

import copy
from typing import Any

import pytest
import torch

from tests.integration.trainer.conftest import BASE
from trainer import checkpoint, dataset, influence, prune, tiny_corpus

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base() -> Any:
    return checkpoint.load(BASE)


@pytest.fixture(scope="module")
def samples() -> list[dataset.Encoded]:
    return dataset.encode(checkpoint.tokenizer(BASE), tiny_corpus.samples(11, 4, 0.5), 1024)


@torch.no_grad()
def _loss(model: Any, samples: list[dataset.Encoded]) -> float:
    total, tokens = 0.0, 0
    for sample in samples:
        told = sum(label != dataset.IGNORED for label in sample.labels)
        found = model(input_ids=torch.tensor([sample.input_ids]), labels=torch.tensor([sample.labels]))
        total, tokens = total + float(found.loss) * told, tokens + told
    return total / tokens


def test_leaving_a_block_out_costs_what_the_pruned_model_loses(base: Any, samples: list[dataset.Encoded]) -> None:
    rises = influence.score_blocks(base, samples, "perplexity")
    for index in (0, 3, 7):
        pruned = copy.deepcopy(base)
        prune.drop_layers(pruned, (index,))
        assert rises[index] == pytest.approx(_loss(pruned, samples) - _loss(base, samples), rel=1e-3, abs=1e-4)


def test_taylor_is_the_gradient_that_training_would_see(base: Any, samples: list[dataset.Encoded]) -> None:
    model = copy.deepcopy(base)
    told = [sum(label != dataset.IGNORED for label in sample.labels) for sample in samples]
    for sample, tokens in zip(samples, told, strict=True):
        found = model(input_ids=torch.tensor([sample.input_ids]), labels=torch.tensor([sample.labels]))
        torch.autograd.backward(found.loss * tokens / sum(told))
    expected = [
        sum(float((weight.detach() * weight.grad).abs().sum()) for weight in layer.parameters())
        for layer in model.model.layers
    ]
    assert influence.score_blocks(base, samples, "taylor") == pytest.approx(expected, rel=1e-3)
