"""How small can a Qwen-style tokenizer be? The normaliser, splitter, byte alphabet and control tokens of Qwen3 with
2,022 learnt pieces of our own text, so that the tiny base model passes through every tool that the real one passes.

Source: `tokenizer.json` and `tokenizer_config.json` of Qwen/Qwen3-0.6B (Apache-2.0); the pieces are trained here.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 2048  # a multiple of 64, control tokens included

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ORDINARY = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)


def build(texts: Iterable[str], directory: Path) -> None:
    """Train the pieces on `texts` and write `tokenizer.json` and `tokenizer_config.json`, chat template included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel(  # type: ignore[call-arg]  # its stub is short of what it takes
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(ORDINARY),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([_added(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([_added(text, special=False) for text in ORDINARY])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(_config(tokenizer), ensure_ascii=False, indent=1)
    (directory / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def _added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(tokenizer.token_to_id(text)): {"content": text, **flags, "special": text in SPECIAL}
        for text in (*SPECIAL, *ORDINARY)
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "chat_template": Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8").rstrip("\n"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
