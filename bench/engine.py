"""How fast is the device engine, and what does reuse of the system prompt save? `python -m bench.engine`.

The tiny base model, exported as a phone gets it (4 bit, block 64), answers the same prompts in three ways that take
turns: `ours` keeps the system prompt between answers, `plain` reads it anew, and `transformers` runs the checkpoint in
full precision with as many threads, forced to as many tokens. Prompts are sorted into buckets by length
(`trainer/indicator_buckets.py`). `ratio` is the time to the first token with reuse / without, over all buckets; the
bench fails if one answer differs. For each bucket: tokens a second of the engine / of transformers, and reuse / plain.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.stack import finish, say
from trainer import converter, indicator_buckets, step, tiny_corpus
from trainer.engine import Engine, Reply, engine_version
from trainer.rule import QuantRule
from trainer.settings import HERE

BASE = HERE / "tiny_qwen3"
MAX_TOKENS = 24


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes turns: the engine with and without reuse, the checkpoint and its threads."""

    ours: Engine
    plain: Engine
    model: Any


class Times(msgspec.Struct, frozen=True):
    """All answers of one bucket, by contestant."""

    ours: list[Reply]
    plain: list[Reply]
    transformers: list[Reply]


def main() -> None:
    """Export, let all take turns over every bucket, print the JSON."""
    step.prepare_process()
    options = _options()
    with tempfile.TemporaryDirectory() as directory:
        contest = _contest(Path(directory), options.threads)
        samples = tiny_corpus.samples(77, options.samples, 0.5)
        found = {}
        for length in options.lengths:
            chosen = indicator_buckets.choose(contest.plain, samples, length, options.each)
            if not chosen.texts:
                raise SystemExit(f"no prompt is near {length} tokens; give more --samples than {options.samples}")
            found[length] = _ask(contest, chosen.texts, options.rounds)
            say(f"{length} tokens, {chosen.real} real prompts, {chosen.joined} joined: {_bucket(found[length])}")
    _finish(found, options.threads)


def _contest(directory: Path, threads: int) -> Contest:
    import torch

    from trainer import checkpoint

    torch.set_num_threads(threads)
    converter.convert(BASE, directory / "artefact", "rtn", 64, QuantRule())
    ours, plain = (Engine(directory / "artefact", threads, reuse=reuse) for reuse in (True, False))
    return Contest(ours=ours, plain=plain, model=checkpoint.load(BASE))


def _ask(contest: Contest, texts: Sequence[str], rounds: int) -> Times:
    """Everybody answers each text in turn; the first time counts for nobody, it pays for buffers."""
    times = Times([], [], [])
    for number in range(rounds + 1):
        for text in texts if number else texts[:1]:
            one, other = contest.ours.answer(text, MAX_TOKENS), contest.plain.answer(text, MAX_TOKENS)
            if one.text != other.text:
                raise SystemExit(
                    f"with reuse the model says {one.text!r}, without {other.text!r}; reuse is not safe here"
                )
            third = _transformers(contest, text, other.output_tokens)
            if number:
                times.ours.append(one)
                times.plain.append(other)
                times.transformers.append(third)
    return times


def _transformers(contest: Contest, text: str, count: int) -> Reply:
    """The same work in transformers: one prefill, then greedy tokens from its cache until there are `count`."""
    import torch

    started = time.perf_counter()
    ids = torch.tensor([contest.plain.tokens(text)])
    with torch.inference_mode():
        out = contest.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        ttft_ms = (time.perf_counter() - started) * 1000
        for _ in range(count - 1):
            newest = out.logits[:, -1:].argmax(-1)
            out = contest.model(input_ids=newest, past_key_values=out.past_key_values, use_cache=True)
    return Reply("", ids.shape[1], count, ttft_ms, (time.perf_counter() - started) * 1000, ended=True)


def _bucket(times: Times) -> dict[str, float]:
    engine, peer = indicator_buckets.rates(times.plain), indicator_buckets.rates(times.transformers)
    return {
        "prompt_tokens": median(reply.prompt_tokens for reply in times.plain),
        "prefill_tokens_s": round(engine[0]),
        "decode_tokens_s": round(engine[1]),
        "prefill_ratio": round(engine[0] / peer[0], 3),
        "decode_ratio": round(engine[1] / peer[1], 3),
        "reuse_ratio": round(_ttft_ms(times.ours) / _ttft_ms(times.plain), 3),
    }


def _ttft_ms(replies: Sequence[Reply]) -> float:
    return median(reply.ttft_ms for reply in replies)


def _finish(found: dict[int, Times], threads: int) -> None:
    ours = sum(_ttft_ms(times.ours) for times in found.values()) / len(found)
    plain = sum(_ttft_ms(times.plain) for times in found.values()) / len(found)
    finish(
        {
            "bench": "engine",
            "unit": "ms to the first token, mean of the buckets' medians",
            "ours": ours,
            "peer": plain,
            "ratio": ours / plain,
            "engine": engine_version(),
            "threads": threads,
            "answers": sum(len(times.plain) for times in found.values()),
            "same_answers": True,
            "buckets": {str(length): _bucket(times) for length, times in found.items()},
        }
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024], help="buckets, tokens")
    parser.add_argument("--each", type=int, default=8, help="prompts in a bucket")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=200, help="made-up sessions to choose prompts from")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
