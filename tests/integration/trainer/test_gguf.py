"""GGUF of the tiny model, read back by gguf's own reader; where llama-cpp-python is, llama.cpp answers, too."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from intentloop.errors import ConfigurationError, ContractError
from tests.integration.trainer.conftest import BASE
from trainer import checkpoint, dataset, device_run, gguf_export, gguf_measure, rule, tiny_corpus
from trainer.engine import Reply

torch.set_num_threads(1)

SAMPLES = tiny_corpus.samples(21, 8, 0.3)
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama-cpp and a C++ compiler"
)

# llama.cpp's names of Qwen3's weights, from its documentation of the format
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.3.attn_norm.weight": "model.layers.3.input_layernorm.weight",
    "blk.3.attn_q.weight": "model.layers.3.self_attn.q_proj.weight",
    "blk.3.attn_q_norm.weight": "model.layers.3.self_attn.q_norm.weight",
    "blk.7.attn_output.weight": "model.layers.7.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    directory = tmp_path_factory.mktemp("gguf")
    paths = {bits: directory / f"tiny-{bits}.gguf" for bits in (4, 8, 16)}
    for bits, path in paths.items():
        gguf_export.export(BASE, path, bits)
    return paths


def _read(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def _values(tensor: Any) -> Any:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def test_half_precision_holds_the_very_weights(files: dict[int, Path]) -> None:
    stored, truth = _read(files[16]), load_file(BASE / "model.safetensors")
    assert len(stored) == len(truth)
    for name, ours in NAMES.items():
        np.testing.assert_array_equal(_values(stored[name]), truth[ours].float().numpy())


@pytest.mark.parametrize(("bits", "steps"), [(8, 127), (4, 8)])
def test_rounding_is_within_a_step_of_its_block(files: dict[int, Path], bits: int, steps: int) -> None:
    stored, truth = _read(files[bits]), load_file(BASE / "model.safetensors")
    for name in ("blk.3.attn_q.weight", "blk.0.ffn_down.weight"):
        weight = truth[NAMES[name]].float().numpy()
        blocks = weight.reshape(-1, 32)
        step = np.abs(blocks).max(-1, keepdims=True) / steps  # Q4_0 cuts the far end by up to one step
        assert (np.abs(_values(stored[name]).reshape(-1, 32) - blocks) <= step * 1.01).all()
    kinds = {tensor.name: tensor.tensor_type.name for tensor in stored.values()}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.3.attn_q_norm.weight"] == "F32"


def test_a_file_says_what_llama_cpp_must_know(files: dict[int, Path]) -> None:
    fields = gguf.GGUFReader(files[4]).fields
    config = json.loads((BASE / "config.json").read_text())
    told = {name.removeprefix("qwen3."): field.contents() for name, field in fields.items()}
    assert (told["general.architecture"], told["tokenizer.ggml.pre"]) == ("qwen3", "qwen2")
    for name, ours in {
        "block_count": "num_hidden_layers",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "feed_forward_length": "intermediate_size",
        "tokenizer.ggml.eos_token_id": "eos_token_id",
        "tokenizer.ggml.padding_token_id": "pad_token_id",
    }.items():
        assert told[name] == config[ours], name
    assert told["rope.freq_base"] == pytest.approx(config["rope_parameters"]["rope_theta"])
    words = checkpoint.tokenizer(BASE)
    assert told["tokenizer.ggml.tokens"] == words.convert_ids_to_tokens(list(range(2048)))


def test_fewer_bits_make_a_smaller_file(files: dict[int, Path]) -> None:
    assert files[4].stat().st_size < files[8].stat().st_size < files[16].stat().st_size


def test_what_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="5 bits are not offered"):
        gguf_export.export(BASE, tmp_path / "a.gguf", 5)
    shutil.copytree(BASE, tmp_path / "other")
    config = (BASE / "config.json").read_text().replace('"model_type": "qwen3"', '"model_type": "llama"')
    (tmp_path / "other" / "config.json").write_text(config)
    with pytest.raises(ContractError, match="only qwen3"):
        gguf_export.export(tmp_path / "other", tmp_path / "b.gguf", 4)
    with pytest.raises(ContractError, match="48 inputs"):
        gguf_export.precision("model.layers.0.mlp.up_proj.weight", np.zeros((8, 48), np.float32), "Q4_0")


def test_a_missing_writer_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigurationError, match=r"pip install -c constraints\.txt -e '\.\[gguf\]'"):
        gguf_export.export(BASE, tmp_path / "a.gguf", 4)


def test_a_missing_engine_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ConfigurationError, match=r"pip install -c constraints\.txt -e '\.\[llama-cpp\]'"):
        gguf_measure.load(tmp_path / "a.gguf", rule.MeasureRule())


@needs_llama_cpp
def test_llama_cpp_says_what_the_checkpoint_says(files: dict[int, Path]) -> None:
    words, model = checkpoint.tokenizer(BASE), checkpoint.load(BASE)
    outcomes = []
    for sample in SAMPLES:
        read = words(dataset.prompt_text(sample), return_tensors="pt", add_special_tokens=False)
        said = model.generate(**read, max_new_tokens=40, do_sample=False)[0, read["input_ids"].shape[1] :]
        text, ended = words.decode(said, skip_special_tokens=True), bool(said[-1] == words.eos_token_id)
        outcomes.append(device_run.outcome(sample, Reply(text, 0, len(said), 0.0, 0.0, ended)))
    found = gguf_measure.report(files[16], SAMPLES, rule.MeasureRule(), words)
    assert found.exact_match.value == sum(outcome.exact for outcome in outcomes) / len(outcomes)
    assert found.accuracy_all.value == sum(outcome.right for outcome in outcomes) / len(outcomes)
    assert found.file_bytes == files[16].stat().st_size


@needs_llama_cpp
def test_a_prompt_that_is_split_otherwise_is_refused(files: dict[int, Path]) -> None:
    def other(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1, 2, 3]}

    with pytest.raises(ContractError, match="the tokenizer into other 3"):
        gguf_measure.report(files[16], SAMPLES, rule.MeasureRule(), other)
