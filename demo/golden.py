"""Which samples judge the models of a demo? Generated visits whose intent is known because it was meant.

A real deployment has blind labels of people here. The users of this set exist nowhere else, and a visit counts only
when the rule engine sees in it what the generator meant, so that a label is never in doubt.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated

import typer

from demo import phone
from intentloop import prompt, rules, shoppers
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect, ready
from intentloop.adapters.settings import ProcessSettings, RedisSection
from intentloop.adapters.training_store import TrainingStore
from intentloop.training_set import TrainingSample

INTENTS = (0.4, 0.33, 0.27)  # evener than the phones' mix, so that the recall of each intent has a narrow interval

log = logging.getLogger("golden")


class GoldenSettings(ProcessSettings):
    """Where the golden set is kept."""

    redis: RedisSection = RedisSection()


def golden_samples(seed: int, weak: int, usual: int) -> list[TrainingSample]:
    """Make `weak` samples of the unfamiliar kind and `usual` of the familiar one; the same for one seed."""
    wanted = (("weak", 1.0, weak), ("usual", 0.0, usual))
    return [sample for name, mixed, count in wanted for sample in _slice(seed, name, mixed, count)]


def _slice(seed: int, name: str, mixed_ratio: float, count: int) -> Iterator[TrainingSample]:
    random = Random(f"golden-{seed}-{name}")
    rule = shoppers.ShopperRule(intents=INTENTS, mixed_ratio=mixed_ratio)
    digests: set[str] = set()
    while len(digests) < count:
        sample = _sample(shoppers.session(random, rule), f"golden-{seed}-{name}-{len(digests)}", name)
        if sample is not None and sample.digest not in digests:
            digests.add(sample.digest)
            yield sample


def _sample(session: shoppers.Session, name: str, slice_name: str) -> TrainingSample | None:
    """The visit as a phone would read it; None when its intent is in doubt."""
    ts_ms = 0
    window = []
    for number, step in enumerate(session.steps):
        ts_ms += step.gap_ms
        window.append(phone.behave(step, phone.Stamp(f"{name}-{number}", ts_ms, number)))
    question = phone.ask(window, phone.PhoneRule())
    ruled = rules.classify(question.read, rules.IntentRule())
    if ruled.intent != session.intent:
        return None
    return TrainingSample(
        id=name,
        user_id=name,
        ts_ms=ts_ms,
        read=question.read,
        digest=prompt.digest(prompt.sequence_text(question.read)),
        intent=ruled.intent,
        keywords=ruled.keywords,
        source="generator",
        slice=slice_name,
    )


def main(
    seed: int = 99,
    weak: Annotated[int, typer.Option(help="samples of the kind on which the first model is weak")] = 300,
    usual: int = 300,
) -> None:
    """Put a generated golden set into the store; doing so twice is the same as once."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(store_golden(GoldenSettings().redis, golden_samples(seed, weak, usual)))


async def store_golden(section: RedisSection, samples: Sequence[TrainingSample]) -> None:
    """Add all samples."""
    redis = connect(section)
    try:
        await ready(redis)
        golden = TrainingStore(redis, Keys(section.prefix))
        added = sum([await golden.add_golden(sample) for sample in samples])
        log.info("golden set: %s generated samples, %s new", len(samples), added)
    finally:
        await redis.aclose()


if __name__ == "__main__":
    typer.run(main)
