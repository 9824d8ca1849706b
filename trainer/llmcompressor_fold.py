"""How does llm-compressor's AWQ make a model easier to round? As autoawq does, with another search for the scales.

Like `awq_fold.py` this only folds scales into a plain checkpoint; the device's converter rounds. llm-compressor takes
one sample a row at its own length, so nothing is repeated, padded or cut. It searches with and without regard to the
weights' sizes and keeps the better. Needs the extra `llmcompressor` (docs/dependencies.md).

On a CPU llm-compressor 0.14.0.1 pins what it caches for a GPU that is not there, and fails: `_calibrator` lets it not.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from intentloop.errors import ConfigurationError, ContractError
from trainer.awq_fold import check_floor, used_tokens
from trainer.rule import QuantRule


def fold(source: Path, directory: Path, rows: Sequence[Sequence[int]], rule: QuantRule, block: int) -> int:
    """Write `source` with llm-compressor's AWQ scales folded in.

    Args:
        rows: Tokens of whole calibration samples, prompt and answer.
        block: Inputs that share a scale when the converter rounds.
    Returns:
        How many calibration tokens the model read.
    Raises:
        ConfigurationError: llm-compressor is not installed.
        ContractError: fewer tokens than the rule's floor, or the model read rows that it was not given.
    """
    from trainer import checkpoint

    check_floor(rows, rule.calibration_floor_tokens)
    model = checkpoint.load(source)
    read: set[tuple[int, ...]] = set()  # each row is read twice, to measure and to pass on
    counting = model.get_input_embeddings().register_forward_pre_hook(
        lambda _, given: read.update(tuple(row) for row in given[0].tolist())
    )
    with _calibrator() as oneshot:
        oneshot(
            model=model,
            dataset=_loader(rows),
            recipe=_recipe(rule.quant_bit, block),
            num_calibration_samples=len(rows),
            shuffle_calibration_samples=False,
        )
    counting.remove()
    if foreign := read - {tuple(row) for row in rows}:
        raise ContractError(f"llm-compressor read {len(foreign)} rows that are no calibration sample, or cut")
    scaled, plain = model.state_dict(), checkpoint.load(source)
    plain.load_state_dict({name: scaled[name] for name in plain.state_dict()})
    checkpoint.save(plain, source, directory, [])
    return used_tokens(rows, rows, read)


@contextlib.contextmanager
def _calibrator() -> Iterator[Any]:
    """Give llm-compressor's entry, quiet and fit for a CPU."""
    import torch

    os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")
    with contextlib.redirect_stderr(io.StringIO()):  # where it shows a bar for each search
        try:
            from llmcompressor import oneshot
            from llmcompressor.pipelines.cache import IntermediatesCache
        except ImportError as error:
            raise ConfigurationError(
                "quantiser 'llmcompressor' needs llm-compressor: pip install -c constraints.txt -e '.[llmcompressor]', "
                "or take it out of quantisers"
            ) from error
        pin = IntermediatesCache._pin_intermediate
        if not torch.cuda.is_available():
            IntermediatesCache._pin_intermediate = lambda *given: None
        try:
            yield oneshot
        finally:
            IntermediatesCache._pin_intermediate = pin


def _loader(rows: Sequence[Sequence[int]]) -> Any:
    import torch

    def batch(one: list[list[int]]) -> dict[str, torch.Tensor]:
        ids = torch.tensor(one)  # (1, tokens)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    kept: Any = [list(row) for row in rows]
    return torch.utils.data.DataLoader(kept, batch_size=1, collate_fn=batch)


def _recipe(bits: int, block: int) -> list[Any]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=False, strategy="group", group_size=block)
    groups = {"linear": QuantizationScheme(targets=["Linear"], weights=weights)}
    return [AWQModifier(duo_scaling="both"), QuantizationModifier(ignore=["lm_head"], config_groups=groups)]
