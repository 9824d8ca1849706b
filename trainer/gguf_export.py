"""GGUF export: a checkpoint becomes one file for people who run llama.cpp.

`python -m trainer.gguf_export CHECKPOINT FILE [--bits 4|8|16]`; needs the extra `gguf`. Not a step of the line: phones
run MNN. Weights go through llama.cpp's own names and quantisers (Q4_0 and Q8_0, blocks of 32 inputs); embedding and
head keep 8 bits, norms full precision. Names, sizes and tokens of Qwen3 are mapped here; another architecture is
refused. Whether a file is any good is asked of llama.cpp itself, by `trainer/gguf_measure.py`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intentloop.errors import ConfigurationError, ContractError

BLOCK = 32  # inputs that share a scale, fixed by Q4_0 and Q8_0
EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")
SPLITTER = "qwen2"  # llama.cpp's name of the regular expression that Qwen2 and Qwen3 split text by


def export(checkpoint: Path, target: Path, bits: int) -> None:
    """Write `checkpoint` as a GGUF file whose weights have this many bits.

    Raises:
        ConfigurationError: the extra `gguf` is not installed.
        ContractError: not a Qwen3, bits that are not offered, or a layer that cannot be cut into blocks.
    """
    gguf = library()
    config = json.loads((checkpoint / "config.json").read_bytes())
    if config["model_type"] != "qwen3":
        raise ContractError(f"{checkpoint} is a {config['model_type']!r}, only qwen3 is mapped to GGUF here")
    kinds = {4: "Q4_0", 8: "Q8_0", 16: "F16"}
    if bits not in kinds:
        raise ContractError(f"{bits} bits are not offered, choose one of {sorted(kinds)}")
    writer = gguf.GGUFWriter(target, "qwen3")
    add_sizes(writer, config)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kinds[bits]}"])
    add_tokens(writer, checkpoint, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, weight in weights(checkpoint, config["tie_word_embeddings"]):
        kind = gguf.GGMLQuantizationType[precision(name, weight, kinds[bits])]
        stored = gguf.quants.quantize(weight, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def library() -> Any:
    """Give llama.cpp's own `gguf` package.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise ConfigurationError("GGUF needs its extra: pip install -c constraints.txt -e '.[gguf]'") from error
    return gguf


def add_sizes(writer: Any, config: dict[str, Any]) -> None:
    """Say how large everything in the model is."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokens(writer: Any, checkpoint: Path, config: dict[str, Any]) -> None:
    """Write pieces, merges, control tokens and the chat template; places without a piece are marked unused."""
    gguf = library()
    told = json.loads((checkpoint / "tokenizer.json").read_bytes())
    pieces = {number: piece for piece, number in told["model"]["vocab"].items()}
    kinds = dict.fromkeys(pieces, gguf.TokenType.NORMAL)
    for added in told["added_tokens"]:
        pieces[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    places = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLITTER)
    writer.add_token_list([pieces.get(place, f"[PAD{place}]") for place in places])
    writer.add_token_types([kinds.get(place, gguf.TokenType.UNUSED) for place in places])
    gguf.SpecialVocab(checkpoint, load_merges=True).add_to_gguf(writer, quiet=True)


def weights(checkpoint: Path, tied: bool) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Give every weight by its name, fp32; a tied head is its embedding and is not written twice."""
    from safetensors import safe_open

    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  # not a dictionary
                if not (tied and name == "lm_head.weight"):
                    yield name, stored.get_tensor(name).float().numpy()


def precision(name: str, weight: NDArray[np.float32], kind: str) -> str:
    """How is a weight stored, if matrices are stored as `kind`?

    Raises:
        ContractError: its inputs are no multiple of a block.
    """
    if weight.ndim < 2:
        return "F32"
    if kind != "F16" and weight.shape[-1] % BLOCK:
        raise ContractError(f"{name} has {weight.shape[-1]} inputs, no multiple of GGUF's block {BLOCK}; use 16 bits")
    return "Q8_0" if kind == "Q4_0" and name in EMBEDDINGS else kind


def main() -> None:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bits", type=int, default=4)
    options = parser.parse_args()
    export(options.checkpoint, options.file, options.bits)
    sys.stderr.write(f"{options.file}: {options.file.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
