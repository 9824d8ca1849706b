"""What is each part of the prompt worth? Leave one out at a time and ask the device engine.

Parts are those of the system prompt (`intentloop.prompt.PARTS`) and details of a behaviour (price, category, dwell).
For each: accuracy with its interval, the paired difference to the whole prompt, tokens, time to the first token. The
model learnt with the whole prompt, so this shows what it leans on now; a model trained without the part may differ.
Chooses nothing. By hand: `intentloop ablate ARTEFACT SAMPLES.jsonl`.
"""

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from intentloop import gate, prompt
from intentloop.errors import ContractError
from intentloop.events import SequenceItem
from intentloop.gate import Outcome
from intentloop.release import Interval
from intentloop.training_set import TrainingSample
from trainer import dataset, device_run, step
from trainer.engine import Engine, Reply, engine_version

WHOLE = "(whole prompt)"
Render = Callable[[TrainingSample], str]

DETAILS: Mapping[str, Callable[[SequenceItem], SequenceItem]] = {
    "behaviour.price": lambda item: msgspec.structs.replace(item, price_yuan=None),
    "behaviour.category": lambda item: msgspec.structs.replace(item, category=""),
    "behaviour.dwell": lambda item: msgspec.structs.replace(item, dwell_s=0),
}


class Ablated(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt without one part. `gain` is accuracy without it - with it, in pairs; tokens and times are medians."""

    without: str
    accuracy: Interval
    gain: Interval
    faults: float
    prompt_tokens: float
    ttft_ms: float


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """All parts on one dataset; the first row is the whole prompt."""

    artefact: str
    dataset_sha256: str
    engine: str
    rows: tuple[Ablated, ...]


def ablate(engine: Engine, samples: Sequence[TrainingSample], parts: Sequence[str], max_tokens: int) -> list[Ablated]:
    """Ask every sample with the whole prompt and without each part.

    All variants of a sample are asked one after the other, so that a busy moment slows all of them alike.
    """
    renders = {WHOLE: dataset.prompt_text, **{part: without(part) for part in parts}}
    replies: dict[str, list[Reply]] = {name: [] for name in renders}
    for sample in samples:
        for name, render in renders.items():
            replies[name].append(engine.answer(render(sample), max_tokens))
    outcomes = {
        name: [device_run.outcome(sample, reply) for sample, reply in zip(samples, said, strict=True)]
        for name, said in replies.items()
    }
    return [_row(name, outcomes[name], outcomes[WHOLE], replies[name]) for name in renders]


def names() -> tuple[str, ...]:
    """Which parts can be left out?"""
    return (*(f"system.{name}" for name in prompt.PARTS), *DETAILS)


def without(part: str) -> Render:
    """How is a sample rendered without this part?

    Raises:
        ContractError: there is no such part.
    """
    if part in DETAILS:
        change = DETAILS[part]
        return lambda sample: prompt.render(prompt.sequence_text([change(item) for item in sample.read]))
    kept = [text for name, text in prompt.PARTS.items() if f"system.{name}" != part]
    if len(kept) == len(prompt.PARTS):
        raise ContractError(f"the prompt has no part {part!r}; it has {', '.join(names())}")
    return lambda sample: prompt.render(prompt.sequence_text(sample.read), "\n".join(kept))


def _row(name: str, found: Sequence[Outcome], whole: Sequence[Outcome], replies: Sequence[Reply]) -> Ablated:
    pairs = [(one.right, other.right) for one, other in zip(found, whole, strict=True)]
    return Ablated(
        without=name,
        accuracy=gate.accuracy(found),
        gain=gate.paired_gain(pairs),
        faults=sum(not one.said for one in found) / len(found),
        prompt_tokens=float(np.median([reply.prompt_tokens for reply in replies])),
        ttft_ms=round(float(np.median([reply.ttft_ms for reply in replies])), 3),
    )


def table(found: Ablation) -> Table:
    """How is it shown?"""
    shown = Table(title=f"{found.rows[0].accuracy.samples} samples, {found.engine}", title_justify="left")
    for name in ("without", "accuracy [95 %]", "difference [95 %]", "faults", "tokens", "first token, ms"):
        shown.add_column(name, justify="left" if name == "without" else "right")
    for row in found.rows:
        difference = "" if row.without == WHOLE else _interval(row.gain, "+.3f")
        cells = (_interval(row.accuracy, ".3f"), difference, f"{row.faults:.3f}", f"{row.prompt_tokens:g}")
        shown.add_row(row.without, *cells, f"{row.ttft_ms:.1f}")
    return shown


def _interval(found: Interval, form: str) -> str:
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def main() -> None:
    """Ablate the prompt of the artefact that the command line names; prints a table and writes JSON."""
    step.prepare_process()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="intentloop ablate", description="What is each part of the prompt worth?")
    parser.add_argument("artefact", type=Path, help="an exported model, for example RUN/export/CANDIDATE")
    parser.add_argument("samples", type=Path, help="labelled samples, for example RUN/freeze/dev.jsonl")
    parser.add_argument("--part", action="append", help="leave only this out; may be repeated; all parts by default")
    parser.add_argument("--limit", type=int, default=500, help="samples to ask at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("var/ablation.json"), help="where the figures are written")
    options = parser.parse_args()
    samples = dataset.read(options.samples)[: options.limit]
    if not samples:
        parser.error(f"{options.samples} holds no samples")
    engine = Engine(options.artefact, options.threads, reuse=False)
    rows = ablate(engine, samples, options.part or names(), 40)
    found = Ablation(
        artefact=options.artefact.name,
        dataset_sha256=step.sha256(options.samples),
        engine=engine_version(),
        rows=tuple(rows),
    )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    step.write_atomically(options.json, msgspec.json.format(msgspec.json.encode(found)))
    Console(width=120).print(table(found))


if __name__ == "__main__":
    main()
