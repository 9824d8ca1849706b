"""What does one candidate make of the dev set in the device engine, as far as it is asked?

The engine is loaded only for what the ledger does not know, and let go afterwards: a grid does not fit into memory.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from intentloop.training_set import TrainingSample
from trainer import dataset, device_run
from trainer.engine import Engine, engine_version
from trainer.rule import LineRule
from trainer.search_ledger import Answered, Entry, Ledger, key

LONG_SHARE = 0.95  # of the dev prompts are shorter than the one whose first token is timed


class Contestant:
    """One exported artefact in the race.

    Args:
        artefact: Its directory.
        data: The dev samples as JSON lines; the golden ones have no place here.
        reference: The full-precision model's scores (`trainer.quantise.write_reference`), None to measure no KL.
    """

    def __init__(self, artefact: Path, data: Path, reference: Path | None, rule: LineRule, ledger: Ledger) -> None:
        self.artefact = artefact
        self._samples = dataset.read(data)
        self._reference = reference
        self._rule = rule
        self._ledger = ledger
        rules = msgspec.json.encode((rule.measure, rule.search.latency_runs, engine_version(), device_run.JUDGEMENT))
        self._key = key(artefact, (data, *([reference] if reference else [])), rules)

    @property
    def artefact_bytes(self) -> int:
        """How much does a phone download?"""
        return device_run.artefact_bytes(self.artefact)

    @property
    def samples(self) -> int:
        """How many dev samples are there to answer?"""
        return len(self._samples)

    def entry(self) -> Entry:
        """What is known so far?"""
        return self._ledger.read(self._key)

    def look(self) -> Entry:
        """Time the first token of a long prompt and measure KL, if that is not known yet."""
        known = self.entry()
        if known.long_ttft_ms is not None:
            return known
        engine = Engine(self.artefact, self._rule.measure.threads)
        prompt = dataset.prompt_text(_long(self._samples))
        times = [engine.answer(prompt, 1).ttft_ms for _ in range(1 + self._rule.search.latency_runs)]
        divergence = None
        if self._reference is not None:
            some = self._samples[: self._rule.measure.kl_samples]
            divergence = device_run.divergence(engine, some, self._reference)
        # the very first prefill pays for its buffers
        return self._keep(msgspec.structs.replace(known, long_ttft_ms=min(times[1:] or times), divergence=divergence))

    def right(self, count: int) -> list[bool]:
        """Which of the first `count` dev samples does it get right?"""
        return [answered.outcome.right for answered in self.answers(count)]

    def answers(self, count: int) -> tuple[Answered, ...]:
        """Answer the first `count` dev samples; those that were answered before are not asked again."""
        known = self.entry()
        if len(known.answers) < count:
            engine = Engine(self.artefact, self._rule.measure.threads)
            new = [self._answer(engine, sample) for sample in self._samples[len(known.answers) : count]]
            known = self._keep(msgspec.structs.replace(known, answers=(*known.answers, *new)))
        return known.answers[:count]

    def _answer(self, engine: Engine, sample: TrainingSample) -> Answered:
        reply = engine.answer(dataset.prompt_text(sample), self._rule.measure.max_tokens)
        outcome = device_run.outcome(sample, reply)
        return Answered(outcome, reply.prompt_tokens, reply.output_tokens, reply.ttft_ms, reply.total_ms)

    def _keep(self, entry: Entry) -> Entry:
        self._ledger.write(self._key, entry)
        return entry


def _long(samples: Sequence[TrainingSample]) -> TrainingSample:
    ordered = sorted(samples, key=lambda sample: (len(dataset.prompt_text(sample)), sample.id))
    return ordered[min(len(ordered) - 1, int(LONG_SHARE * len(ordered)))]


def rates(answers: Sequence[Answered]) -> tuple[float, float]:
    """How many tokens a second did the answers take, prefill and decode? Nothing answered is 0."""
    prefill_s = sum(answered.ttft_ms for answered in answers) / 1000
    decode_s = sum(answered.total_ms - answered.ttft_ms for answered in answers) / 1000
    read, said = (
        sum(answered.prompt_tokens for answered in answers),
        sum(answered.output_tokens for answered in answers),
    )
    return read / prefill_s if prefill_s else 0.0, said / decode_s if decode_s else 0.0


def ttft_ms(answers: Sequence[Answered]) -> tuple[float, float]:
    """After how long came the first token? Median and 95th percentile, 0 if nothing was answered."""
    times = sorted(answered.ttft_ms for answered in answers)
    if len(times) < 2:
        return (times[0], times[0]) if times else (0.0, 0.0)
    return statistics.median(times), statistics.quantiles(times, n=20, method="inclusive")[-1]
