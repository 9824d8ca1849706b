"""Which samples calibrate? Ones on which every class and the hard cases speak as loudly as the common case.

Influence and AWQ weigh what they are shown. A random draw shows mostly browsing, which phones get right anyway, so
samples are drawn class by class in turn, and within a class a hard one and an easy one in turn, as far as there are.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from random import Random

from intentloop.training_set import TrainingSample


def pick(samples: Sequence[TrainingSample], count: int, seed: int) -> list[TrainingSample]:
    """Draw `count` of the samples, or all of them if there are fewer; the same ones for the same seed.

    Class sizes differ by one at most until a class has no more; within a class so do hard and easy ones.
    """
    shuffled = Random(seed).sample(samples, len(samples))
    intents = sorted({sample.intent for sample in samples})
    classes = [_in_turn(_hard(shuffled, intent, True), _hard(shuffled, intent, False)) for intent in intents]
    return list(islice(_in_turn(*classes), count))


def _hard(samples: Sequence[TrainingSample], intent: str, hard: bool) -> list[TrainingSample]:
    return [sample for sample in samples if sample.intent == intent and sample.hard == hard]


def _in_turn(*rows: Iterator[TrainingSample] | list[TrainingSample]) -> Iterator[TrainingSample]:
    """One of each row after the other; a row that is at its end is passed over."""
    return (sample for sample in chain.from_iterable(zip_longest(*rows)) if sample is not None)
