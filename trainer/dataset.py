"""How do labelled samples become tokens? One place, so that training, calibration and measuring cannot differ.

The prompt is never supervised, the answer with its end mark always is. A sample that is too long loses its oldest
behaviours, never its answer.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from intentloop import prompt
from intentloop.errors import ContractError
from intentloop.training_set import TrainingSample

IGNORED = -100  # label of a token that is not supervised
MAX_DROPPED_RATIO = 0.01  # more samples without a supervised token than this stop the run

Tokenizer = Any  # a Hugging Face tokenizer; this module must not import transformers


class Encoded(msgspec.Struct, frozen=True):
    """One sample as tokens; `labels` is `IGNORED` over the prompt. Both have the same length."""

    input_ids: list[int]
    labels: list[int]


def read(path: Path) -> list[TrainingSample]:
    """Read samples, one JSON object a line."""
    decoder = msgspec.json.Decoder(TrainingSample)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def write(path: Path, samples: Iterable[TrainingSample]) -> None:
    """Write samples, one JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))


def prompt_text(sample: TrainingSample) -> str:
    """Which bytes does the model read for this sample? The same as on the phone."""
    return prompt.render(prompt.sequence_text(sample.read))


def answer_text(sample: TrainingSample) -> str:
    """What should the model say? Ends with the end mark, the last token that is supervised."""
    return prompt.answer_text(sample.intent, sample.keywords) + prompt.END


def encode(tokenizer: Tokenizer, samples: Sequence[TrainingSample], cutoff_tokens: int) -> list[Encoded]:
    """Turn samples into tokens with completion-only labels.

    Raises:
        ContractError: more than 1 % of the samples keep no supervised token within `cutoff_tokens`.
    """
    encoded = [_encode(tokenizer, sample, cutoff_tokens) for sample in samples]
    kept = [sample for sample in encoded if sample is not None]
    dropped = len(samples) - len(kept)
    if dropped > MAX_DROPPED_RATIO * len(samples):
        raise ContractError(
            f"{dropped} of {len(samples)} samples have no supervised token within {cutoff_tokens} tokens; "
            "raise cutoff_len or compress behaviours harder"
        )
    return kept


def check_template(tokenizer: Tokenizer) -> None:
    """Does the tokenizer's own chat template render the bytes that we render, with thinking off?

    Raises:
        ContractError: it does not; a model trained so would be asked otherwise on the phone.
    """
    sequence = "【行为序列】商详页(帐篷,¥199)"
    messages = [{"role": "system", "content": prompt.SYSTEM}, {"role": "user", "content": sequence}]
    theirs = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    if theirs != prompt.render(sequence):
        raise ContractError("the base model's chat template renders other bytes than intentloop.prompt; check both")
    end = tokenizer(prompt.END, add_special_tokens=False)["input_ids"]
    if len(end) != 1 or end[0] == tokenizer.pad_token_id:
        raise ContractError(f"{prompt.END} must be one token and not the padding, it is {end}")


def foreign(tokenizer: Tokenizer, samples: Sequence[TrainingSample]) -> int:
    """How many prompts are not byte for byte the tokenizer's own, thinking off (fault M08)? 0.12 ms each."""
    return sum(_by_template(tokenizer, sample) != prompt_text(sample) for sample in samples)


def without_end(tokenizer: Tokenizer, encoded: Sequence[Encoded]) -> int:
    """How many samples do not teach where to stop: their last supervised token is not the end mark (fault M09)?"""
    (end,) = tokenizer(prompt.END, add_special_tokens=False)["input_ids"]
    return sum(not sample.labels or sample.labels[-1] != end for sample in encoded)


def _by_template(tokenizer: Tokenizer, sample: TrainingSample) -> str:
    sequence = prompt.sequence_text(sample.read)
    messages = [{"role": "system", "content": prompt.SYSTEM}, {"role": "user", "content": sequence}]
    rendered: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return rendered


def _encode(tokenizer: Tokenizer, sample: TrainingSample, cutoff_tokens: int) -> Encoded | None:
    said = tokenizer(answer_text(sample), add_special_tokens=False)["input_ids"]
    items = sample.read
    while True:
        text = prompt.render(prompt.sequence_text(items))
        read = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(read) + len(said) <= cutoff_tokens:
            return Encoded(read + said, [IGNORED] * len(read) + said)
        if not items:
            return None
        items = items[1:]
