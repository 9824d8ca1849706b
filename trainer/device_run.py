"""What does the device engine say about one artefact on one dataset? Every figure of a release comes from here.

Also a process of its own, `python -m trainer.device_run ARTEFACT DATASET RULE REPORT`: the gate measures candidate and
incumbent each in a fresh one, so that memory and load times are of one model alone.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from intentloop import answer, gate
from intentloop.gate import Outcome
from intentloop.release import Measurement
from intentloop.training_set import TrainingSample
from trainer import dataset, step
from trainer.engine import Engine, Reply, engine_version
from trainer.rule import MeasureRule


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One artefact on one dataset: each sample's outcome, the summary, and speeds by prompt length in tokens/s."""

    outcomes: tuple[Outcome, ...]
    measured: Measurement
    prefill_tokens_s: dict[int, float]
    decode_tokens_s: dict[int, float]
    stable: bool


def report(artefact: Path, data: Path, rule: MeasureRule) -> DeviceReport:
    """Load the artefact as a phone does, let it answer every sample, then time it by length and ask again."""
    samples = dataset.read(data)
    engine = Engine(artefact, rule.threads)
    replies = [engine.answer(dataset.prompt_text(sample), rule.max_tokens) for sample in samples]
    outcomes = [outcome(sample, reply.text) for sample, reply in zip(samples, replies, strict=True)]
    stable = is_stable(engine, samples, replies, rule)
    prefill, decode = speeds(engine, samples, rule.speed_lengths)
    return DeviceReport(
        outcomes=tuple(outcomes),
        measured=_measurement(outcomes, replies, engine, (artefact, data)),
        prefill_tokens_s=prefill,
        decode_tokens_s=decode,
        stable=stable,
    )


def outcome(sample: TrainingSample, text: str) -> Outcome:
    """Was this answer right? A fault says nothing and is never right."""
    said = answer.parse(text)
    return Outcome(
        sample_id=sample.id,
        intent=sample.intent,
        said=said.intent if isinstance(said, answer.Answer) else "",
        weak=sample.slice == "weak",
        exact=text + "<|im_end|>" == dataset.answer_text(sample),
    )


def is_stable(engine: Engine, samples: Sequence[TrainingSample], replies: Sequence[Reply], rule: MeasureRule) -> bool:
    """Does the engine still say the same when it is asked again, many answers later?"""
    for index in range(min(rule.stability_runs, len(samples))):
        again = engine.answer(dataset.prompt_text(samples[index]), rule.max_tokens)
        if again.text != replies[index].text:
            return False
    return True


def speeds(
    engine: Engine, samples: Sequence[TrainingSample], lengths: Sequence[int]
) -> tuple[dict[int, float], dict[int, float]]:
    """How many tokens a second, prefill and decode, at each prompt length? Prompts are our own, joined and cut."""
    if not samples:
        return {}, {}
    ids = engine.tokens("".join(dataset.prompt_text(sample) for sample in samples[:64]))
    prefill, decode = {}, {}
    for length in lengths:
        repeated = (ids * (length // len(ids) + 1))[:length]
        engine.speed(repeated, 2)  # the first run of a length pays for its buffers
        prefill[length], decode[length] = engine.speed(repeated, 17)
    return prefill, decode


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
    decode_s = sum(reply.total_ms - reply.ttft_ms for reply in replies) / 1000
    prefill_s = sum(ttft) / 1000
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
        prefill_tokens_s=sum(reply.prompt_tokens for reply in replies) / max(prefill_s, 1e-9),
        decode_tokens_s=sum(reply.output_tokens for reply in replies) / max(decode_s, 1e-9),
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
    artefact, data, rule, target = (Path(argument) for argument in sys.argv[1:5])
    measured = report(artefact, data, msgspec.json.decode(rule.read_bytes(), type=MeasureRule))
    step.write_atomically(target, msgspec.json.format(msgspec.json.encode(measured)))


if __name__ == "__main__":
    main()
