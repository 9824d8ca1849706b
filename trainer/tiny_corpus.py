"""Which labelled sequences does the tiny base model learn? Sessions of our own made-up shoppers, labelled by the rules.

Used by `build_tiny.py`, by tests and by benches that need samples without a running system. The demo's phones make
their own behaviour in `demo/`; nothing here is used at run time.
"""

from collections.abc import Iterator
from random import Random

from intentloop import compress, prompt, rules, shoppers
from intentloop.events import Behaviour, SequenceItem
from intentloop.training_set import TrainingSample

START_MS = 1_790_000_000_000  # any fixed moment: times never reach the model


def samples(seed: int, count: int, mixed_ratio: float, prefix_ratio: float = 0.0) -> list[TrainingSample]:
    """Give `count` labelled sequences, the three intents alike, each with a user of its own.

    Args:
        mixed_ratio: Share of sessions of the kind that the base model does not know.
        prefix_ratio: Share of sessions that are read before they end, as a phone reads them at its third item.
    """
    stream = _stream(Random(seed), mixed_ratio, prefix_ratio)
    return [_sample(f"{seed}-{index}", *next(stream)) for index in range(count)]


def _stream(
    random: Random, mixed_ratio: float, prefix_ratio: float
) -> Iterator[tuple[tuple[SequenceItem, ...], rules.RuledIntent, bool]]:
    shopper = shoppers.ShopperRule(intents=(1, 1, 1), mixed_ratio=mixed_ratio)
    while True:
        session = shoppers.session(random, shopper)
        read = compress.compress(_behaviours(session), compress.CompressRule())
        if random.random() < prefix_ratio:
            read = read[: random.randint(min(2, len(read)), len(read))]
        yield read, rules.classify(read, rules.IntentRule()), session.mixed


def _behaviours(session: shoppers.Session) -> list[Behaviour]:
    now_ms = START_MS
    events = []
    for index, step in enumerate(session.steps):
        now_ms += step.gap_ms
        events.append(
            Behaviour(
                event_id=str(index),
                action=step.action,
                ts_ms=now_ms,
                seq=index,
                item_id=step.item_id,
                title=step.title,
                category=step.category,
                price_yuan=step.price_yuan,
                dwell_ms=step.dwell_ms,
            )
        )
    return events


def _sample(name: str, read: tuple[SequenceItem, ...], ruled: rules.RuledIntent, mixed: bool) -> TrainingSample:
    return TrainingSample(
        id=f"sample-{name}",
        user_id=f"user-{name}",
        ts_ms=START_MS,
        read=read,
        digest=prompt.digest(prompt.sequence_text(read)),
        intent=ruled.intent,
        keywords=ruled.keywords,
        hard=mixed,
        source="generator",
        slice="weak" if mixed else "",
    )
