"""Does a model get slower or larger while it answers again and again? N answers in one process, watched.

Speed is compared prompt by prompt, each answer against the median time of the same prompt, so that long and short
prompts may alternate. Limits are over the whole session for speed, and for each 1,000 answers for memory. Heat needs
a phone: here a falling speed can only come from the engine, or from other work on this machine.

By hand: `python -m trainer.stress ARTEFACT SAMPLES.jsonl --runs 2000`.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil

from intentloop.trend import BLOCKS, Trend, Verdict, trend, verdict
from trainer import dataset, step
from trainer.engine import Engine

MAX_SLOWDOWN = 0.10  # of the speed at the start, over the session
MAX_GROWTH = 0.02  # of the memory at the start, for each 1,000 answers
PROMPTS = 10  # that take turns: few, so that each is asked often enough to have a median
POINTS = 200  # of a series that a report keeps

log = logging.getLogger("trainer")


class Stress(msgspec.Struct, frozen=True, kw_only=True):
    """What many answers in a row did. `speeds` are relative to the same prompt's median, 1 is usual.

    `slowdown` and `memory` are the fitted lines of loss of speed and private bytes; None where runs are too few.
    """

    runs: int
    seconds: float
    cpu_ratio: float
    changed_answers: int
    slowdown: Trend | None
    memory: Trend | None
    speed_verdict: Verdict
    memory_verdict: Verdict
    speeds: tuple[float, ...] = ()
    private_bytes: tuple[int, ...] = ()


def stress(engine: Engine, known: Sequence[tuple[str, str]], runs: int, max_tokens: int) -> Stress:
    """Ask the first prompts in turns, `runs` times in all.

    Args:
        known: Prompts with the answers that the same engine gave before.
    """
    known = known[:PROMPTS]
    runs = runs if known else 0
    process = psutil.Process()
    times_ms, private, changed = [], [], 0
    started, cpu = time.perf_counter(), time.process_time()
    for index in range(runs):
        text, said = known[index % len(known)]
        reply = engine.answer(text, max_tokens)
        times_ms.append(reply.total_ms)
        private.append(private_bytes(process))
        changed += reply.text != said
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    counted = Stress(
        runs=runs,
        seconds=round(seconds, 3),
        cpu_ratio=round(cpu_s / seconds, 3) if runs else 0.0,
        changed_answers=changed,
        slowdown=None,
        memory=None,
        speed_verdict="too few runs",
        memory_verdict="too few runs",
    )
    return summary(relative_speeds(times_ms, len(known)), private, counted)


def relative_speeds(times_ms: Sequence[float], prompts: int) -> list[float]:
    """How fast was each answer against the usual one of its prompt? Prompts took turns in a fixed order."""
    usual = [float(np.median(times_ms[start::prompts])) for start in range(min(prompts, len(times_ms)))]
    return [usual[index % prompts] / time_ms for index, time_ms in enumerate(times_ms)]


def private_bytes(process: psutil.Process) -> int:
    """How much memory is this process's own? Pages of mapped files come and go with the machine's need."""
    info = process.memory_info()
    return int(info.rss) - int(getattr(info, "shared", 0))


def summary(speeds: Sequence[float], private: Sequence[int], counted: Stress) -> Stress:
    """Complete `counted` by the lines through speed and memory, and what they mean."""
    slowdown, memory = trend([1 - speed for speed in speeds]), trend(private)
    if slowdown is None or memory is None:
        return counted
    per_thousand = _per_thousand(memory)
    return msgspec.structs.replace(
        counted,
        slowdown=slowdown,
        memory=memory,
        speed_verdict=verdict(slowdown.low, slowdown.high, MAX_SLOWDOWN),
        memory_verdict=verdict(memory.low * per_thousand, memory.high * per_thousand, MAX_GROWTH * memory.start),
        speeds=tuple(round(speeds[index], 4) for index in _kept(len(speeds))),
        private_bytes=tuple(private[index] for index in _kept(len(private))),
    )


def growth_per_thousand(found: Stress) -> float | None:
    """By how many bytes does memory grow for each 1,000 answers? None where that is not known."""
    return None if found.memory is None else found.memory.change * _per_thousand(found.memory)


def _per_thousand(found: Trend) -> float:
    """A line goes from the middle of the first block to that of the last, a block less than all runs."""
    return 1000 / (found.runs * (1 - 1 / BLOCKS))


def _kept(count: int) -> list[int]:
    return list(range(0, count, max(1, -(-count // POINTS))))


def main() -> None:
    """Put the artefact that the command line names under stress and say what came of it, as JSON."""
    step.prepare_process()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prompts = [dataset.prompt_text(sample) for sample in dataset.read(options.samples)[:PROMPTS]]
    engine = Engine(options.artefact, options.threads)
    found = stress(engine, [(text, engine.answer(text).text) for text in prompts], options.runs, 40)
    log.info("%s", msgspec.json.encode(msgspec.structs.replace(found, speeds=(), private_bytes=())).decode())


if __name__ == "__main__":
    main()
