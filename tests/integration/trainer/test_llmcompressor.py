"""AWQ by llm-compressor on a tiny model; the first test needs the extra `llmcompressor`."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from intentloop.errors import ConfigurationError
from tests.integration.trainer.conftest import BASE
from trainer import checkpoint, dataset, llmcompressor_fold, prune, rule, tiny_corpus

torch.set_num_threads(1)

QUANT = rule.QuantRule(calibration_floor_tokens=100)
INSTALLED = importlib.util.find_spec("llmcompressor") is not None


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    words, samples = checkpoint.tokenizer(BASE), tiny_corpus.samples(11, 5, 0.5)
    return [sample.input_ids for sample in dataset.encode(words, samples, 1024)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not INSTALLED, reason="needs the extra llmcompressor")
def test_every_token_is_read_and_scales_keep_what_the_model_says(rows: list[list[int]], tmp_path: Path) -> None:
    model = copy.deepcopy(checkpoint.load(BASE))  # M11, M12: rows of different length, none longer than it is
    prune.drop_layers(model, range(1, 7))
    checkpoint.save(model, BASE, tmp_path / "micro", [])
    used = llmcompressor_fold.fold(tmp_path / "micro", tmp_path / "folded", rows, QUANT, 64)
    assert used == sum(map(len, rows))
    source, folded = (checkpoint.load(tmp_path / name) for name in ("micro", "folded"))
    moved = [
        float((one - two).detach().abs().max())
        for one, two in zip(folded.model.layers.parameters(), source.model.layers.parameters(), strict=True)
    ]
    assert max(moved) > 1e-2
    with torch.no_grad():
        one, two = (each(input_ids=torch.tensor([rows[0]])).logits for each in (source, folded))
    assert (one - two).abs().max() < 0.05  # two roundings to fp16
    assert torch.equal(source.lm_head.weight, folded.lm_head.weight)


def test_a_missing_library_is_told_with_how_to_install_it(
    rows: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llmcompressor", None)
    with pytest.raises(ConfigurationError, match=r"\.\[llmcompressor\]"):
        llmcompressor_fold.fold(BASE, tmp_path, rows, QUANT, 64)
