"""What does llama.cpp make of a GGUF file? The same samples, answers and arithmetic as for MNN, on another engine.

`python -m trainer.gguf_measure FILE DATASET [--checkpoint DIR]` prints one JSON object: accuracy with its interval,
exact matches, faults, time to first token. With a checkpoint, whose tokens are the truth, a file that splits a prompt
otherwise is refused. Needs the extra `llama-cpp`, whose library comes as source, so a C++ compiler is needed, too.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intentloop import gate
from intentloop.errors import ConfigurationError, ContractError
from intentloop.gate import Outcome
from intentloop.release import Interval
from intentloop.training_set import TrainingSample
from trainer import dataset, device_run
from trainer.engine import Reply
from trainer.rule import MeasureRule

CONTEXT_TOKENS = 2048  # no prompt with its answer is longer (cutoff_len); all that Qwen3 can hold would take gigabytes


class GgufReport(msgspec.Struct, frozen=True, kw_only=True):
    """One GGUF file on one dataset, as llama.cpp answers it."""

    accuracy_all: Interval
    accuracy_weak: Interval
    exact_match: Interval
    faults: Interval
    ttft_p50_ms: float
    ttft_p95_ms: float
    file_bytes: int


def report(file: Path, samples: Sequence[TrainingSample], rule: MeasureRule, words: Any = None) -> GgufReport:
    """Let llama.cpp answer every sample, greedily.

    Args:
        words: The checkpoint's tokenizer; llama.cpp must split each prompt as it does.
    Raises:
        ConfigurationError: llama-cpp-python is not installed.
        ContractError: a prompt is split otherwise than the model has learnt.
    """
    outcomes, ttft_ms = [], []
    with contextlib.closing(load(file, rule)) as engine:
        for sample in samples:
            ids = engine.tokenize(dataset.prompt_text(sample).encode(), add_bos=False, special=True)
            if words is not None:
                check_tokens(ids, words, sample)
            reply = answer(engine, ids, rule.max_tokens)
            outcomes.append(device_run.outcome(sample, reply))
            ttft_ms.append(reply.ttft_ms)
    return summary(outcomes, ttft_ms, file)


def load(file: Path, rule: MeasureRule) -> Any:
    """Load a file as llama.cpp's users do, on the CPU.

    Raises:
        ConfigurationError: llama-cpp-python is not installed.
    """
    try:
        import llama_cpp
    except ImportError as error:
        raise ConfigurationError(
            "measuring GGUF needs an extra and a C++ compiler: pip install -c constraints.txt -e '.[llama-cpp]'"
        ) from error
    return llama_cpp.Llama(str(file), n_ctx=CONTEXT_TOKENS, n_threads=rule.threads, n_gpu_layers=0, verbose=False)


def check_tokens(ids: Sequence[int], words: Any, sample: TrainingSample) -> None:
    """Does llama.cpp split this prompt as the model's own tokenizer does?

    Raises:
        ContractError: it does not; the model would read what it never learnt.
    """
    truth = words(dataset.prompt_text(sample), add_special_tokens=False)["input_ids"]
    if list(ids) != list(truth):
        raise ContractError(
            f"{sample.id}: llama.cpp splits it into {len(ids)} tokens, the tokenizer into other {len(truth)}"
        )


def answer(engine: Any, ids: Sequence[int], max_tokens: int) -> Reply:
    """What does the model say? Greedy; stops at the end mark or after `max_tokens`, of which the mark is one."""
    started = time.perf_counter()
    first_ms, ended = 0.0, False
    output: list[int] = []
    engine.reset()
    for token in engine.generate(list(ids), temp=0.0, repeat_penalty=1.0):
        first_ms = first_ms or (time.perf_counter() - started) * 1000
        output.append(token)
        ended = token == engine.token_eos()
        if ended or len(output) == max_tokens:
            break
    total_ms = (time.perf_counter() - started) * 1000
    text = engine.detokenize(output[:-1] if ended else output).decode("utf-8", "replace")
    return Reply(text, len(ids), len(output), first_ms, total_ms, ended)


def summary(outcomes: Sequence[Outcome], ttft_ms: Sequence[float], file: Path) -> GgufReport:
    """Summarise as `device_run` does."""
    return GgufReport(
        accuracy_all=gate.accuracy(outcomes),
        accuracy_weak=gate.accuracy([found for found in outcomes if found.weak]),
        exact_match=gate.wilson(sum(found.exact for found in outcomes), len(outcomes)),
        faults=gate.wilson(sum(not found.said for found in outcomes), len(outcomes)),
        ttft_p50_ms=float(np.percentile(ttft_ms, 50)),
        ttft_p95_ms=float(np.percentile(ttft_ms, 95)),
        file_bytes=file.stat().st_size,
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--checkpoint", type=Path, help="its tokenizer is the truth")
    options = parser.parse_args()
    words = None
    if options.checkpoint:
        from trainer import checkpoint

        words = checkpoint.tokenizer(options.checkpoint)
    found = report(options.file, dataset.read(options.dataset), MeasureRule(), words)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
