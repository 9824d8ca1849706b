"""Does the line carry a model of real size? `make real-size`, or `python -m trainer.real_size`; takes minutes.

A randomly initialised Qwen3-0.6B goes through the line's own functions: influence → prune (28 → 22 blocks) → export →
load → generate in the engine, and an adapter beside it. Nothing is downloaded, and nothing it says means anything: what
counts is that it runs, how large it gets, and how long it takes. Not part of CI; needs about 8 GB of memory and 5 GB of
disk for a while. The figures stay in `report.json`, the models go. docs/model-line.md has the figures of one run.
"""

import argparse
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from trainer import check, step

log = logging.getLogger("trainer")

LAYERS, DROPPED = 28, 6
BLOCK, BITS, HEAD_BITS = 128, 4, 4
VOCABULARY = 151_936
SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
PUBLISHED_BYTES = 283_000_000  # DESIGN.md §7, 22 layers in blocks of 128
TOLERANCE = 0.02  # tokenizer and graph come on top of the weights
WEIGHT_TOLERANCE = 0.002
MAX_ADAPTER_RATIO = 0.03  # of the full release's bytes
MAX_LOGIT_CHANGE = 1e-3  # as in trainer/checkpoint.py, which imports torch
PROMPT_TOKENS = (128, 256, 512, 1024)
NEW_TOKENS = 17
MAX_DECODE_TOKENS_S = 10_000
ADAPTERS = ((8, "int8"), (4, "fp16"))  # what is measured in the engine; ranks and storages as the line offers them


def real_size(directory: Path, layers: int, dropped: int, threads: int) -> tuple[dict[str, Any], list[check.Check]]:
    """Run the line's functions on a random model in `directory`; figures, and what must hold of them."""
    seconds: dict[str, float] = {}
    source, pruned, artefact = directory / "base", directory / "pruned", directory / "artefact"
    _timed(seconds, "build", lambda: build(source, layers))
    figures = _timed(seconds, "influence and prune", lambda: influence_and_prune(source, pruned, dropped))
    shutil.rmtree(source)
    _timed(seconds, "export", lambda: export(pruned, artefact))
    shutil.rmtree(pruned)
    engines = {"full": _timed(seconds, "load and generate", lambda: in_engine(artefact, threads))}
    size = sum(path.stat().st_size for path in artefact.iterdir())
    weights = (artefact / "llm.mnn.weight").stat().st_size
    adapters = {}
    for rank, storage in ADAPTERS:
        name = f"r{rank}-{storage}"
        taken, together = adapter(artefact, rank, storage, directory / name)
        adapters[name] = {"bytes": taken, "of_full": taken / size}
        engines[name] = _timed(seconds, f"load and generate {name}", partial(in_engine, together, threads))
    figures |= {
        "bytes": size,
        "weight_bytes": weights,
        "expected_weight_bytes": expected_bytes(layers - dropped),
        "seconds": seconds,
        "adapters": adapters,
        "engine": engines,
    }
    checks = promises(figures, (layers, dropped) == (LAYERS, DROPPED))
    return {**figures, "peak_bytes": step.peak_bytes()}, checks


def promises(figures: dict[str, Any], published: bool) -> list[check.Check]:
    """What must hold of the figures? Shares of a whole are known only for the published shape."""
    apart = abs(figures["weight_bytes"] / figures["expected_weight_bytes"] - 1)
    checks = [
        check.at_most("weight file against arithmetic", apart, WEIGHT_TOLERANCE),
        check.at_most("change of a logit by saving and loading", figures["max_logit_change"], MAX_LOGIT_CHANGE),
    ]
    if published:
        checks.append(check.at_most("size against 283 MB", abs(figures["bytes"] / PUBLISHED_BYTES - 1), TOLERANCE))
        for name, found in figures["adapters"].items():
            checks.append(check.at_most(f"{name}: share of the full release", found["of_full"], MAX_ADAPTER_RATIO))
    return checks


def build(directory: Path, layers: int) -> None:
    """Write a random Qwen3-0.6B of this many layers, and a tokenizer with as many tokens as the real one has."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(1)
    settings = Qwen3Config(
        vocab_size=VOCABULARY, num_hidden_layers=layers, pad_token_id=2022, eos_token_id=2024, **SHAPE
    )
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
    model.save_pretrained(directory, safe_serialization=True)
    write_tokenizer(directory)


def write_tokenizer(directory: Path) -> None:
    """Write the tiny model's tokenizer with tokens that no text has behind its own, up to the real number."""
    tiny = Path(__file__).with_name("tiny_qwen3")
    tokenizer = json.loads((tiny / "tokenizer.json").read_bytes())
    used = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    tokenizer["model"]["vocab"] |= {f"unused{number}": number for number in range(used, VOCABULARY)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    shutil.copyfile(tiny / "tokenizer_config.json", directory / "tokenizer_config.json")


def influence_and_prune(
    source: Path, directory: Path, dropped: int, rows: int = 2, tokens: int = 512
) -> dict[str, Any]:
    """Find the blocks that change least and write the model without them."""
    from trainer import checkpoint, influence, prune

    model = checkpoint.load(source, "auto")
    random = Random(1)
    ids = [[random.randrange(2000) for _ in range(tokens)] for _ in range(rows)]
    scores = influence.block_influence(model, ids)
    chosen = prune.choose(scores, dropped)
    prune.drop_layers(model, chosen)
    change = checkpoint.save(model, source, directory, ["用户看了帐篷"])
    return {"influence_tokens": rows * tokens, "layers_dropped": list(chosen), "max_logit_change": change}


def export(source: Path, artefact: Path) -> None:
    """Convert as the line does, 4 bits in blocks of 128, the head too."""
    from trainer import converter
    from trainer.rule import QuantRule

    converter.convert(source, artefact, "rtn", BLOCK, QuantRule(quant_bit=BITS, lm_quant_bit=HEAD_BITS))


def adapter(artefact: Path, rank: int, storage: Any, directory: Path) -> tuple[int, Path]:
    """Write a random adapter of all linear layers; its bytes, and a directory where base and adapter lie together."""
    import numpy as np

    from trainer.adapter_release import graph, policy

    random = np.random.default_rng(rank)
    pairs = {}
    for name, op in graph.convolutions(graph.read(artefact)).items():
        if name.startswith("/layers."):
            common = op["main"]["common"]
            down = random.normal(0, 0.02, (rank, common["inputCount"])).astype(np.float32)
            pairs[name] = (down, random.normal(0, 0.02, (common["outputCount"], rank)).astype(np.float32))
    directory.mkdir(parents=True)
    size = graph.write(artefact, pairs, storage, directory).stat().st_size
    return size, policy.assemble(artefact, directory, directory.with_name(f"{directory.name}-on-base"))


def expected_bytes(layers: int) -> int:
    """How large must the weight file be? Codes, and for each block a zero and a scale of four bytes each."""
    hidden, head = SHAPE["hidden_size"], SHAPE["head_dim"]
    attention = hidden * head * 2 * (SHAPE["num_attention_heads"] + SHAPE["num_key_value_heads"])
    inner = layers * (attention + 3 * hidden * SHAPE["intermediate_size"])
    table = VOCABULARY * hidden
    return int(inner * BITS / 8 + table * HEAD_BITS / 8 + (inner + table) / BLOCK * 8)


def in_engine(artefact: Path, threads: int) -> dict[str, Any]:
    """Load and generate in a process of its own, so that memory and times are of this artefact alone."""
    command = [sys.executable, "-m", "trainer.real_size", "--engine", str(artefact), "--threads", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def time_engine(artefact: Path, threads: int) -> dict[str, Any]:
    """How long do loading, prefill and decoding take here, at several prompt lengths?"""
    from trainer.engine import Engine

    engine = Engine(artefact, threads)
    random = Random(2)
    answer = engine.answer("用户看了帐篷", 8)
    speeds = {}
    for length in PROMPT_TOKENS:
        prefill, decode = engine.speed([random.randrange(2000) for _ in range(length)], NEW_TOKENS)
        plausible = round(decode, 1) if decode < MAX_DECODE_TOKENS_S else None  # a busy machine's noise was larger
        speeds[length] = {"prefill_ms": round(length / prefill * 1000), "decode_tokens_s": plausible}
    return {
        "load_ms": round(engine.load_ms),
        "peak_bytes": step.peak_bytes(),
        "answer_tokens": answer.output_tokens,
        "by_prompt_tokens": speeds,
    }


def _timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    log.info("%s: started", name)
    started = time.monotonic()
    result = work()
    seconds[name] = round(time.monotonic() - started, 1)
    log.info("%s: done in %.1f s", name, seconds[name])
    return result


def main() -> None:
    """Run all of it in a directory that is emptied afterwards, and keep the figures."""
    step.prepare_process()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("var/real-size"))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--drop", type=int, default=DROPPED)
    parser.add_argument("--threads", type=int, default=2, help="of the engine; on a busy machine 1, they spin")
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        sys.stdout.write(json.dumps(time_engine(options.engine, options.threads)) + "\n")
        return
    models = options.out / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir(parents=True)
    try:
        figures, checks = real_size(models, options.layers, options.drop, options.threads)
    finally:
        shutil.rmtree(models, ignore_errors=True)
    text = json.dumps(figures, indent=1)
    (options.out / "report.json").write_text(text + "\n", encoding="utf-8")
    check.require(checks, str(options.out))
    log.info("%s", text)


if __name__ == "__main__":
    main()
