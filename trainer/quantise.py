"""Quantise: prepare every candidate, so that the converter's rounding hurts each as little as its method can.

Rounding itself happens in the converter (`export.py`). Round-to-nearest and HQQ need nothing here; AWQ, by autoawq or
by llm-compressor, folds its scales into a plain checkpoint, calibrated on our own templated prompts with their answers.
Each candidate's model in full precision also leaves its scores for some dev answers, against which the rounded one is
measured.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from intentloop.errors import ContractError
from trainer import check, step
from trainer.rule import LineRule, Quantiser, QuantRule

NEEDS = ("freeze", "prune", "heal")
CANDIDATES = "candidates.json"
FOLDED = ("awq", "llmcompressor")  # these write a checkpoint of their own


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One artefact to make: which checkpoint (relative to the run), how rounded, and what it is compared with.

    `bits` are those of a layer's weights, `head_bits` those of the head. A `fallback` is measured only when no other
    candidate keeps the limits on faults and accuracy.
    """

    name: str
    checkpoint: str
    reference: str
    quantiser: Quantiser
    block: int
    dropped: tuple[int, ...]
    bits: int = 4
    head_bits: int = 8
    fallback: bool = False


def quantise(run: step.Run, directory: Path) -> step.Findings:
    """Write `candidates.json`, reference scores, and a folded checkpoint for each AWQ candidate.

    Raises:
        ContractError: a block does not divide a layer's inputs, or calibration is too small.
    """
    from trainer import checkpoint, dataset

    rule = run.rule
    words = checkpoint.tokenizer(run.step("merge"))
    read = {name: dataset.read(run.step("freeze") / f"{name}.jsonl") for name in ("calibration", "dev")}
    rows = [s.input_ids for s in dataset.encode(words, read["calibration"], rule.tune.cutoff_len)]
    given = sum(len(row) for row in rows)
    metrics: step.Metrics = {"calibration_tokens": given}
    checks = [check.at_least("calibration tokens", given, rule.quant.calibration_floor_tokens)]
    candidates = []
    for count in run.metrics("heal")["kept"]:
        source = run.step("heal") / f"drop{count}"
        model = checkpoint.load(source)
        write_reference(model, words, read["dev"][: rule.measure.kl_samples], directory / f"drop{count}.safetensors")
        for candidate in plan(run.metrics("prune")[f"drop{count}"], count, rule):
            check_blocks(model, candidate.block)
            candidates.append(candidate)
            folded = run.directory / candidate.checkpoint
            if candidate.quantiser in FOLDED and not folded.is_dir():  # heads share it
                used = fold(candidate, source, folded, (rows, rule.quant))
                metrics[f"{candidate.name}_tokens"] = used
                checks.append(check.at_least(f"{candidate.name}: calibration tokens used", used, given))
    (directory / CANDIDATES).write_bytes(msgspec.json.format(msgspec.json.encode(candidates)))
    return step.Findings(metrics, tuple(checks))


def fold(candidate: Candidate, source: Path, folded: Path, how: tuple[list[list[int]], QuantRule]) -> int:
    """Write the folded checkpoint of an AWQ candidate; how many calibration tokens were used?"""
    from trainer import awq_fold, llmcompressor_fold

    write = awq_fold.fold if candidate.quantiser == "awq" else llmcompressor_fold.fold
    return write(source, folded, *how, candidate.block)


def plan(dropped: Sequence[int], count: int, rule: LineRule) -> list[Candidate]:
    """Which candidates does one pruned model give? All of quantiser × block × head, then a plain fallback."""
    quant = rule.quant
    heads = quant.lm_quant_bits or (quant.lm_quant_bit,)
    pairs = [(quantiser, block) for quantiser in quant.quantisers for block in quant.quant_blocks]
    found = [_with_head(_candidate(dropped, count, pair, quant), head, heads) for pair in pairs for head in heads]
    if rule.quant.fallback_bit > rule.quant.quant_bit:
        plain = _candidate(dropped, count, ("rtn", rule.quant.quant_blocks[0]), rule.quant)
        bits = rule.quant.fallback_bit
        name = f"drop{count}-int{bits}"
        found.append(msgspec.structs.replace(plain, name=name, bits=bits, head_bits=bits, fallback=True))
    return found


def _with_head(candidate: Candidate, bits: int, heads: Sequence[int]) -> Candidate:
    name = candidate.name if len(heads) == 1 else f"{candidate.name}-head{bits}"
    return msgspec.structs.replace(candidate, name=name, head_bits=bits)


def _candidate(dropped: Sequence[int], count: int, pair: tuple[Quantiser, int], rule: QuantRule) -> Candidate:
    quantiser, block = pair
    folded = f"quantise/drop{count}-{quantiser}{block}"
    return Candidate(
        name=f"drop{count}-{quantiser}{block}",
        checkpoint=folded if quantiser in FOLDED else f"heal/drop{count}",
        reference=f"quantise/drop{count}.safetensors",
        quantiser=quantiser,
        block=block,
        dropped=tuple(dropped),
        bits=rule.quant_bit,
        head_bits=rule.lm_quant_bit,
    )


def read_candidates(run: step.Run) -> list[Candidate]:
    """Which candidates did this run make?"""
    return msgspec.json.decode((run.step("quantise") / CANDIDATES).read_bytes(), type=list[Candidate])


def check_blocks(model: Any, block: int) -> None:
    """Can every linear layer be cut into blocks of this many inputs?

    Raises:
        ContractError: one cannot; the converter would write silent garbage.
    """
    import torch

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and block and module.in_features % block:
            raise ContractError(
                f"{name} has {module.in_features} inputs, not a multiple of the quantisation block {block}; "
                "choose a block that divides it"
            )


def write_reference(model: Any, words: Any, samples: Sequence[Any], path: Path) -> None:
    """Write the log-probabilities of each answer token in its place: one (tokens, vocabulary) array a sample, fp16."""
    import torch
    from safetensors.torch import save_file

    from trainer import dataset

    rows = {}
    with torch.no_grad():
        for index, sample in enumerate(samples):
            said = words(dataset.answer_text(sample), add_special_tokens=False)["input_ids"]
            read = words(dataset.prompt_text(sample), add_special_tokens=False)["input_ids"]
            logits = model(input_ids=torch.tensor([read + said])).logits[0, len(read) - 1 : -1]
            rows[f"{index:04d}"] = logits.log_softmax(-1).half().contiguous()
    save_file(rows, path)


if __name__ == "__main__":
    step.main("quantise", NEEDS, quantise)
