"""Which weights does a phone's base really compute with? Read out of the released artefact itself.

An adapter learns beside these numbers, not beside the ones from before rounding: what training sees is what runs. The
scheme is the converter's: codes of 4 or 8 bits, big end first, and for each block of inputs its zero and its scale
(only a scale when symmetric). The head's weights are the embedding's, too, when the base ties them.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intentloop.errors import ContractError
from trainer.adapter_release import graph as graphs

Matrix = NDArray[np.float32]

WEIGHTS = "llm.mnn.weight"
EMBEDDINGS = "embeddings_bf16.bin"

_LINEAR = re.compile(r"/layers\.(\d+)/(\w+)/(\w+)/Linear")
_NORM = re.compile(r"/blocks\.(\d+)/([\w/]+_layernorm|self_attn/[qk]_norm)/.*")
_HEAD, _FINAL_NORM = "/lm/lm_head/Linear", "hidden_states"


def load(artefact: Path, source: Path, dropped: Sequence[int]) -> Any:
    """Rebuild the model of `artefact` for computing, every weight from its files.

    Args:
        source: The checkpoint that the artefact was made from; gives shape and tokenizer, no number.
        dropped: Which of its layers were left out.
    Raises:
        ContractError: the artefact is of another model.
    """
    import torch

    from trainer import checkpoint, prune

    model = checkpoint.load(source)
    prune.drop_layers(model, dropped)
    found = weights(artefact)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    have = {name: value.shape for name, value in found.items()}
    if wanted != have:
        first = min(name for name in wanted.keys() | have.keys() if wanted.get(name) != have.get(name))
        raise ContractError(
            f"{first} is {have.get(first)} in {artefact} and {wanted.get(first)} in {source} without layers "
            f"{list(dropped)}; the release was made from another base"
        )
    model.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()})
    return model


def weights(artefact: Path) -> dict[str, Matrix]:
    """What does each weight of the artefact stand for? By the checkpoint's names, dequantised."""
    blob = np.memmap(artefact / WEIGHTS, dtype=np.uint8, mode="r")
    found: dict[str, Matrix] = {}
    for op in graphs.read(artefact)["oplists"]:
        if op["type"] == "Convolution":
            found[checkpoint_name(op["name"])] = dequantise(blob, op["main"])
        elif op["type"] == "LayerNorm":
            start, length = op["main"]["external"][:2]
            found[checkpoint_name(op["name"])] = blob[start : start + length].view("<f4").copy()
    found["model.embed_tokens.weight"] = _embedding(artefact, found["lm_head.weight"])
    return found


def checkpoint_name(operation: str) -> str:
    """Which weight of the checkpoint does an operation of the graph hold?

    Raises:
        ContractError: the operation has a name that is none of a model's layers.
    """
    if operation == _HEAD:
        return "lm_head.weight"
    if operation == _FINAL_NORM:
        return "model.norm.weight"
    if linear := _LINEAR.fullmatch(operation):
        return f"model.layers.{linear[1]}.{linear[2]}.{linear[3]}.weight"
    if norm := _NORM.fullmatch(operation):
        return f"model.layers.{norm[1]}.{norm[2].replace('/', '.')}.weight"
    raise ContractError(f"operation {operation!r} holds weights of a kind that is not known here")


def operation_name(weight: str) -> str:
    """Which operation of the graph holds a linear layer of the checkpoint? `model.layers.3.mlp.up_proj` and so on."""
    _, _, layer, group, name = weight.split(".")[:5]
    return f"/layers.{layer}/{group}/{name}/Linear"


def dequantise(blob: NDArray[np.uint8], main: dict[str, Any]) -> Matrix:
    """Which numbers do the codes of one layer stand for? (outputs, inputs): code × scale + zero, block by block.

    Args:
        blob: The whole weight file.
        main: The layer's part of the graph: `external` places it, `quanParameter` says how it is coded.
    """
    outputs, inputs = main["common"]["outputCount"], main["common"]["inputCount"]
    start, length, alpha_length = main["external"][:3]
    quantised = main["quanParameter"]
    if quantised["type"] != 1:  # plain halves
        halves: Matrix = blob[start : start + length].view("<f2").astype(np.float32)
        return halves.reshape(outputs, inputs)
    bits = quantised["aMaxOrBits"]
    packed = blob[start + length - outputs * inputs * bits // 8 : start + length]
    alpha = blob[start + length : start + length + alpha_length].view("<f4")
    half = 1 << (bits - 1)
    levels = _unpack(packed, bits).astype(np.float32) - half
    if quantised["readType"]:
        pairs = alpha.reshape(outputs, -1, 2)  # (outputs, blocks, [zero, scale])
        zeros, scales = pairs[..., :1], pairs[..., 1:]
    else:
        zeros, scales = np.zeros(1, np.float32), alpha.reshape(outputs, -1, 1)
    blocks = levels.reshape(outputs, scales.shape[1], -1)  # (outputs, blocks, inputs of a block)
    result: Matrix = (blocks * scales + zeros).astype(np.float32).reshape(outputs, inputs)
    return result


def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    if bits == 4:
        return np.stack([packed >> 4, packed & 15], axis=-1).ravel()
    raise ContractError(f"weights of {bits} bits are not read here, only 4 and 8; make adapters of another base")


def _embedding(artefact: Path, head: Matrix) -> Matrix:
    """The input embedding: the head's own weights when they are tied, else a file of its own (bf16)."""
    settings = json.loads((artefact / "llm_config.json").read_bytes())
    if settings.get("tie_embeddings"):
        return head
    halves = np.fromfile(artefact / EMBEDDINGS, dtype="<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(-1, settings["hidden_size"])


def divergence(model: Any, engine: Any, samples: Sequence[Any]) -> float:
    """How far is the engine's base from this model? Mean KL per answer token in nats, device precision and all."""
    import torch

    from trainer import dataset

    total, tokens = 0.0, 0
    for sample in samples:
        prompt, answer = dataset.prompt_text(sample), dataset.answer_text(sample)
        read, said = engine.tokens(prompt), engine.tokens(answer)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([read + said])).logits[0, len(read) - 1 : -1]
        mine = logits.double().log_softmax(-1)
        theirs = torch.from_numpy(engine.forced_logits(prompt, answer)[:, : mine.shape[1]]).double().log_softmax(-1)
        total += float((mine.exp() * (mine - theirs)).sum())
        tokens += len(said)
    return total / max(1, tokens)
