"""What does block influence by hooks cost? `python -m bench.influence`; the last line is one JSON object.

Three ways over the same rows of a randomly initialised Qwen3 of real size (28 blocks, hidden 1024, small vocabulary):
`plain` is one forward pass that measures nothing, `ours` is `trainer.influence.block_influence`, `keep_all` asks the
model for all hidden states and compares neighbours. `ratio` is time of ours / plain; `cpu_ratio` is the same in CPU
time, which other processes disturb less. Memory is each way's peak above the loaded model, in a process of its own;
`memory_ratio` is ours / plain, `process_ratio` the same with the model in it. Values of ours and keep_all must be
equal within 1e-6, or the bench fails.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil

from bench.stack import finish, say
from trainer import influence, step

EQUAL = 1e-6


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The model and what it reads."""

    layers: int
    hidden: int
    rows: int
    tokens: int


class Memory(msgspec.Struct, frozen=True):
    """Resident bytes: the loaded model with its libraries, and the peak of one pass over all rows."""

    loaded: int
    peak: int


def main() -> None:
    """Measure, print the JSON."""
    step.prepare_process()
    options, shape = _options()
    model, rows = _model(shape), _rows(shape)
    values = {name: way(model, rows) for name, way in WAYS.items()}  # also the warm-up
    difference = max(abs(one - other) for one, other in zip(values["ours"], values["keep_all"], strict=True))
    if difference > EQUAL:
        raise SystemExit(f"values of ours and keep_all differ by {difference:.2g}, at most {EQUAL} is right")
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        for name, way in WAYS.items():
            started, used = time.perf_counter(), time.process_time()
            way(model, rows)
            seconds[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - used)
        say(f"round {number + 1}: " + ", ".join(f"{name} {took[-1]:.2f} s" for name, took in seconds.items()))
    del model
    memory = {name: in_own_process(name, shape) for name in WAYS}
    cpu_ratio = median(cpu["ours"]) / median(cpu["plain"])
    finish(_figures(shape, seconds, memory) | {"cpu_ratio": cpu_ratio, "max_difference": f"{difference:.1e}"})


def plain(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """One pass over all rows that measures nothing."""
    import torch

    with torch.no_grad():
        for row in rows:
            model.model(input_ids=torch.tensor([row]), use_cache=False)
    return []


def keep_all(model: Any, rows: Sequence[Sequence[int]]) -> list[float]:
    """Block influence from the list of all hidden states; without the final norm, which is not a block."""
    import torch

    norm, model.model.norm = model.model.norm, torch.nn.Identity()
    sums = torch.zeros(len(model.model.layers), dtype=torch.float64)
    with torch.no_grad():
        for row in rows:
            states = model.model(
                input_ids=torch.tensor([row]), use_cache=False, output_hidden_states=True
            ).hidden_states
            for index in range(len(sums)):
                cosines = torch.nn.functional.cosine_similarity(states[index], states[index + 1], dim=-1)
                sums[index] += (1 - cosines).double().sum()
    model.model.norm = norm
    return (sums / sum(map(len, rows))).tolist()


WAYS: dict[str, Callable[[Any, Sequence[Sequence[int]]], list[float]]] = {
    "plain": plain,
    "ours": influence.block_influence,
    "keep_all": keep_all,
}


def in_own_process(name: str, shape: Shape) -> Memory:
    """How much memory does one way take in a process that does nothing else?"""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(memory_of, name, shape).result()


def memory_of(name: str, shape: Shape) -> Memory:
    """Load the model, read one short row so that libraries are in place, and watch the peak of the whole set."""
    model = _model(shape)
    WAYS[name](model, [[1, 2, 3]])
    loaded = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is that of making the model: start it anew
    WAYS[name](model, _rows(shape))
    return Memory(loaded, step.peak_bytes())


def _model(shape: Shape) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    torch.set_num_threads(os.cpu_count() or 1)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=max(2, shape.hidden // 64),
        num_key_value_heads=max(1, shape.hidden // 128),
        head_dim=128,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def _rows(shape: Shape) -> list[list[int]]:
    import torch

    made = torch.Generator().manual_seed(2)
    rows: list[list[int]] = torch.randint(2048, (shape.rows, shape.tokens), generator=made).tolist()
    return rows


def _figures(shape: Shape, seconds: dict[str, list[float]], memory: dict[str, Memory]) -> dict[str, Any]:
    took = {name: median(each) for name, each in seconds.items()}
    extra = {name: max(1, found.peak - found.loaded) for name, found in memory.items()}
    return {
        "bench": "influence",
        "ours": took["ours"],
        "peer": took["plain"],
        "ratio": took["ours"] / took["plain"],
        "keep_all_ratio": took["keep_all"] / took["plain"],
        "memory_ratio": extra["ours"] / extra["plain"],
        "keep_all_memory_ratio": extra["keep_all"] / extra["plain"],
        "process_ratio": memory["ours"].peak / memory["plain"].peak,
        "keep_all_process_ratio": memory["keep_all"].peak / memory["plain"].peak,
        "memory_mb": {name: round(bytes_ / 1e6, 1) for name, bytes_ in extra.items()},
        "model_mb": round(memory["plain"].loaded / 1e6),
        "seconds_rounds": {name: [round(each, 3) for each in rounds] for name, rounds in seconds.items()},
        "layers": shape.layers,
        "hidden": shape.hidden,
        "tokens": shape.rows * shape.tokens,
    }


def _options() -> tuple[argparse.Namespace, Shape]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256, help="of each row")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    shape = Shape(layers=options.layers, hidden=options.hidden, rows=options.rows, tokens=options.tokens)
    return options, shape


if __name__ == "__main__":
    main()
