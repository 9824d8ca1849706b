"""How are models loaded and saved without a silent change?

Weights are safetensors only. The tokenizer's files are copied byte for byte and never saved again, since a saved one
may differ. Every save is followed by a reload, and tells how far logits changed by it.
"""

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from intentloop.errors import ContractError

transformers_logging.disable_progress_bar()

MAX_LOGIT_CHANGE = 1e-3
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from local files."""
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def load(directory: Path, dtype: torch.dtype | str = torch.float32) -> PreTrainedModel:
    """Load a model for computing; refuses weights that are missing instead of filling them with dice."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    missing = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
    if missing:
        raise ContractError(f"{directory}: weights and configuration differ, first at {missing[0]!r}")
    return model.eval()


def save(model: PreTrainedModel, source: Path, directory: Path, prompts: list[str]) -> float:
    """Save a model in the precision of its source, with the source's tokenizer, and compare it after reloading.

    Args:
        source: The checkpoint that the model was made from.
        prompts: What to compare logits on.
    Returns:
        The largest absolute change of a logit between before saving and after reloading; a step states that it is
        `MAX_LOGIT_CHANGE` at most. Not a number if a logit is none.
    Raises:
        ContractError: a tied head is no longer its embedding.
    """
    if model.config.tie_word_embeddings and model.get_output_embeddings().weight is not _embedding(model):
        raise ContractError(f"{directory}: the configuration ties head and embedding, the weights are two; untie it")
    stored = AutoConfig.from_pretrained(source, local_files_only=True).dtype or torch.float16
    _convert(model, stored)
    model.config.dtype = stored
    model.save_pretrained(directory, safe_serialization=True)
    copy_tokenizer(source, directory)
    _convert(model, torch.float32)
    words = tokenizer(directory)
    again = load(directory)
    changes = [_difference(model.eval(), again, words, prompt) for prompt in prompts]
    return float(torch.tensor([0.0, *changes]).max())  # unlike Python's, this maximum keeps what is not a number


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the tokenizer's files as they are."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def _embedding(model: PreTrainedModel) -> torch.Tensor:
    weight: torch.Tensor = model.get_input_embeddings().weight
    return weight


@torch.no_grad()
def _difference(one: PreTrainedModel, two: PreTrainedModel, words: PreTrainedTokenizerBase, prompt: str) -> float:
    ids = words(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return float((one(input_ids=ids).logits - two(input_ids=ids).logits).abs().max())


def _convert(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Change the precision of the weights and of nothing else: rotary frequencies would lose digits for good."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
