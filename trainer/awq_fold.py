"""How does AWQ make a model easier to round? It scales channels that matter up and their inputs down.

autoawq searches the scales; here they are only folded into a plain checkpoint, and the device's converter rounds. Its
own data loader joins samples and drops what is longer than a block, so each calibration row is one whole sample,
repeated up to the longest one's length: every token is used, and none of another sample is near it (faults M11, M12).

On a CPU autoawq 0.2.9 keeps the weights to go back to as views of those it scales, so each search starts from scaled
weights and leaves them scaled: `_copying` gives it copies.
"""

import contextlib
import io
from collections.abc import Iterable, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from intentloop.errors import ContractError
from trainer.rule import QuantRule


def fold(source: Path, directory: Path, rows: Sequence[Sequence[int]], rule: QuantRule, block: int) -> int:
    """Write `source` with AWQ scales folded in.

    Args:
        rows: Tokens of whole calibration samples, prompt and answer.
        block: Inputs that share a scale when the converter rounds.
    Returns:
        How many calibration tokens the model read, repeats not counted.
    Raises:
        ContractError: fewer tokens than the rule's floor, or rows that were read did not go through all layers.
    """
    import torch

    from trainer import checkpoint

    with contextlib.redirect_stderr(io.StringIO()):  # autoawq says that it is archived, which the design knows
        from awq import AutoAWQForCausalLM
        from awq.quantize.quantizer import AwqQuantizer

    equal = calibration_rows(rows, rule.calibration_floor_tokens)
    model = AutoAWQForCausalLM.from_pretrained(
        str(source), torch_dtype=torch.float32, device_map="cpu", safetensors=True, local_files_only=True
    )
    read: list[tuple[int, ...]] = []
    counting = model.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, given: read.extend(tuple(row) for row in given[0].tolist())
    )
    model.quantize(
        None,
        quant_config={"zero_point": True, "q_group_size": block, "w_bit": rule.quant_bit, "version": "GEMM"},
        calib_data=equal,
        export_compatible=True,
        apply_clip=rule.awq_clip,
        max_calib_samples=len(equal),
        max_calib_seq_len=len(equal[0]),
        n_parallel_calib_samples=16,
        quantizer_cls=_copying(AwqQuantizer),
    )
    counting.remove()
    through = tuple(model.quantizer.inps.shape[:2])
    if through != (len(read), len(equal[0])):
        raise ContractError(f"autoawq calibrated on {through} (rows, tokens), read were {(len(read), len(equal[0]))}")
    checkpoint.save(model.model, source, directory, [])
    return used_tokens(rows, equal, read)


def used_tokens(rows: Sequence[Sequence[int]], given: Sequence[Sequence[int]], read: Iterable[tuple[int, ...]]) -> int:
    """How many tokens hold the samples that a model read? `given` is what each of `rows` was given as."""
    known = set(read)
    return sum(len(row) for row, as_given in zip(rows, given, strict=True) if tuple(as_given) in known)


def calibration_rows(rows: Sequence[Sequence[int]], floor_tokens: int) -> list[list[int]]:
    """Bring samples to one length by repeating each; refuse a set that is too small before minutes are spent.

    Raises:
        ContractError: the samples hold fewer than `floor_tokens` tokens.
    """
    check_floor(rows, floor_tokens)
    longest = max(len(row) for row in rows)
    return [list(islice(chain.from_iterable(repeat(row)), longest)) for row in rows]


def check_floor(rows: Sequence[Sequence[int]], floor_tokens: int) -> None:
    """Are there enough tokens to calibrate with?

    Raises:
        ContractError: the samples hold fewer than `floor_tokens` tokens.
    """
    tokens = sum(len(row) for row in rows)
    if tokens < floor_tokens or not rows:
        raise ContractError(
            f"{len(rows)} calibration samples hold {tokens} tokens: 0 blocks of use, at least {floor_tokens} tokens "
            "are needed; label more samples or lower calibration_floor_tokens"
        )


def _copying(quantizer: Any) -> Any:
    """A quantizer whose search for scales goes back to copies of the weights, not to views of what it changes."""

    class CopyingQuantizer(quantizer):  # type: ignore[misc]
        def _compute_best_scale(self, x: Any, w_mean: Any, x_mean: Any, inspected: Any, *more: Any) -> Any:
            views = inspected.state_dict
            inspected.state_dict = lambda: {name: value.clone() for name, value in views().items()}
            try:
                return super()._compute_best_scale(x, w_mean, x_mean, inspected, *more)
            finally:
                del inspected.state_dict

    return CopyingQuantizer
