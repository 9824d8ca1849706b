"""What does the device engine say about one artefact on one dataset? Every figure of a release comes from here.

Also a process of its own, `python -m trainer.device_run ARTEFACT DATASET RULE REPORT`: the gate measures candidate and
incumbent each in a fresh one, so that memory and load times are of one model alone.
"""

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray
from safetensors.numpy import load_file

from intentloop import answer, gate
from intentloop.gate import Outcome
from intentloop.indicators import INDICATORS
from intentloop.release import Measurement
from intentloop.training_set import TrainingSample
from trainer import dataset, prefix_reuse, progress, step
from trainer.engine import Engine, Reply, engine_version
from trainer.indicator_buckets import Bucket, buckets, rates
from trainer.prefix_reuse import PrefixReuse
from trainer.rule import MeasureRule
from trainer.stress import Stress, growth_per_thousand, stress

JUDGEMENT = 2  # one more whenever `outcome` judges the same reply otherwise: what was judged before is asked again

_THINKING = re.compile(r"</?think(?![A-Za-z])")  # also cut before its `>`; a keyword like thinkpad is no markup


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One artefact on one dataset: each sample's outcome, the summary, and all that `intentloop.indicators` names.

    `indicators` has a value for each name, None where only a phone can measure it. `stable`: the engine said the same
    when it was asked again, many answers later. `thinking` answers hold the markup of thinking (fault M08), `unended`
    ones were cut at the limit (fault M09).
    """

    outcomes: tuple[Outcome, ...]
    measured: Measurement
    indicators: dict[str, float | None]
    buckets: tuple[Bucket, ...]
    stress: Stress
    prefix: PrefixReuse
    stable: bool
    thinking: int = 0
    unended: int = 0


def report(artefact: Path, data: Path, rule: MeasureRule) -> DeviceReport:
    """Load the artefact as a phone does, answer every sample, then time it by length and ask again and again.

    The system prompt is read anew for each answer, so that releases compare; reuse is measured at the end, where
    two more engines do not count as the artefact's memory.
    """
    samples = dataset.read(data)
    before_bytes = psutil.Process().memory_info().rss
    engine = Engine(artefact, rule.threads, reuse=False)
    growth_bytes = psutil.Process().memory_info().rss - before_bytes
    prompts = [dataset.prompt_text(sample) for sample in samples]
    replies = answers(engine, prompts, rule.max_tokens)
    outcomes = [outcome(sample, reply) for sample, reply in zip(samples, replies, strict=True)]
    found = buckets(engine, samples, rule.speed_lengths, rule.max_tokens)
    known = [(text, reply.text) for text, reply in zip(prompts, replies, strict=True)]
    stressed = stress(engine, known, rule.stability_runs, rule.max_tokens)
    measured = _measurement(outcomes, replies, engine, (artefact, data))
    return DeviceReport(
        outcomes=tuple(outcomes),
        measured=measured,
        indicators=indicators(measured, replies, stressed, growth_bytes),
        buckets=found,
        stress=stressed,
        stable=stressed.changed_answers == 0,
        thinking=sum(thinks(reply.text) for reply in replies),
        unended=sum(not reply.ended for reply in replies),
        prefix=prefix_reuse.compare(artefact, prompts[: rule.stability_runs], rule),
    )


def answers(engine: Engine, prompts: Sequence[str], max_tokens: int) -> list[Reply]:
    """What does the engine say to each prompt? With a real model it takes minutes to hear all."""
    replies = []
    with progress.Advance("answers", len(prompts)) as advance:
        for text in prompts:
            replies.append(engine.answer(text, max_tokens))
            advance.to(len(replies))
    return replies


def indicators(
    measured: Measurement, replies: Sequence[Reply], stressed: Stress, growth_bytes: int
) -> dict[str, float | None]:
    """Which value has each of the fifteen? None for what needs a phone, or more answers than there were."""
    total_ms = [reply.total_ms for reply in replies]
    values: dict[str, float | None] = {
        "ttft_ms": measured.ttft_p50_ms,
        "total_ms": float(np.median(total_ms)) if replies else None,
        "load_ms": measured.load_ms,
        "first_answer_ms": total_ms[0] if replies else None,
        "prefill_tokens_s": measured.prefill_tokens_s,
        "decode_tokens_s": measured.decode_tokens_s,
        "slowdown_ratio": stressed.slowdown.change if stressed.slowdown else None,
        "peak_rss_bytes": measured.peak_rss_bytes,
        "unique_bytes": psutil.Process().memory_full_info().uss,
        "load_growth_bytes": growth_bytes,
        "stress_growth_bytes": growth_per_thousand(stressed),
        "artefact_bytes": measured.artefact_bytes,
        "cpu_ratio": stressed.cpu_ratio if stressed.runs else None,
    }
    return {indicator.name: values.get(indicator.name) for indicator in INDICATORS}


def outcome(sample: TrainingSample, reply: Reply) -> Outcome:
    """Was this answer right? A fault says nothing and is never right; one that did not end is a fault."""
    said = answer.parse(reply.text)
    return Outcome(
        sample_id=sample.id,
        intent=sample.intent,
        said=said.intent if reply.ended and isinstance(said, answer.Answer) else "",
        weak=sample.slice == "weak",
        exact=reply.ended and reply.text + "<|im_end|>" == dataset.answer_text(sample),
    )


def thinks(text: str) -> bool:
    """Does this answer hold the markup of thinking (fault M08)?"""
    return _THINKING.search(text) is not None


def divergence(engine: Engine, samples: Sequence[TrainingSample], reference: Path) -> float:
    """How far is the artefact from its full-precision model? Mean KL per answer token, in nats."""
    total, tokens = 0.0, 0
    expected = load_file(reference)
    for name, sample in zip(sorted(expected), samples, strict=False):
        logits = engine.forced_logits(dataset.prompt_text(sample), dataset.answer_text(sample))
        truth = expected[name].astype(np.float64)
        said = _log_softmax(logits[:, : truth.shape[1]].astype(np.float64))
        total += float((np.exp(truth) * (truth - said)).sum())
        tokens += len(truth)
    return total / max(1, tokens)


def artefact_bytes(directory: Path) -> int:
    """How much does a phone download? The release's own manifest not counted."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file() and path.name != step.MANIFEST)


def _measurement(
    outcomes: Sequence[Outcome], replies: Sequence[Reply], engine: Engine, paths: tuple[Path, Path]
) -> Measurement:
    artefact, data = paths
    ttft = [reply.ttft_ms for reply in replies] or [0.0]
    prefill_tokens_s, decode_tokens_s = rates(replies)
    return Measurement(
        dataset_sha256=step.sha256(data),
        engine=engine_version(),
        accuracy_all=gate.accuracy(outcomes),
        accuracy_weak=gate.accuracy([found for found in outcomes if found.weak]),
        exact_match=gate.wilson(sum(found.exact for found in outcomes), len(outcomes)),
        faults=gate.wilson(sum(not found.said for found in outcomes), len(outcomes)),
        recall=gate.recalls(outcomes),
        ttft_p50_ms=float(np.percentile(ttft, 50)),
        ttft_p95_ms=float(np.percentile(ttft, 95)),
        prefill_tokens_s=prefill_tokens_s,
        decode_tokens_s=decode_tokens_s,
        load_ms=engine.load_ms,
        peak_rss_bytes=step.peak_bytes(),
        artefact_bytes=artefact_bytes(artefact),
    )


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def main() -> None:
    """Measure what the command line names and write the report."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    artefact, data, rule, target = (Path(argument) for argument in sys.argv[1:5])
    measured = report(artefact, data, msgspec.json.decode(rule.read_bytes(), type=MeasureRule))
    step.write_atomically(target, msgspec.json.format(msgspec.json.encode(measured)))


if __name__ == "__main__":
    main()
