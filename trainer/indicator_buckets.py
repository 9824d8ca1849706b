"""How does speed depend on the length of the prompt? Real prompts, sorted into buckets by their tokens.

A prompt belongs to a bucket when its length is within a quarter of it. Where no sample is so long, sequences of several
samples are joined in the same template, and the bucket says how many of its prompts are such; nothing is repeated or
cut, so the engine reads what it could meet.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import psutil

from intentloop import prompt
from intentloop.events import SequenceItem
from intentloop.training_set import TrainingSample
from trainer import dataset
from trainer.engine import Engine, Reply

NEAR = 0.25  # share of a bucket's length by which its prompts may differ from it
JOINED_FROM = 0.9  # of the length: from here on a joined prompt is long enough
EACH = 8  # prompts in a bucket that are timed


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine did with prompts of about `length` tokens. Times are medians; None when there was no prompt.

    `real` samples were as long by themselves and `asked` prompts were timed, `joined` of them made of several samples.
    """

    length: int
    real: int
    asked: int
    joined: int
    prompt_tokens: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    prefill_tokens_s: float | None = None
    decode_tokens_s: float | None = None
    resident_bytes: int | None = None


class Chosen(msgspec.Struct, frozen=True):
    """The prompts of one bucket: how many samples had its length, and the texts, the last `joined` not from one."""

    real: int
    texts: tuple[str, ...]
    joined: int


def buckets(
    engine: Engine, samples: Sequence[TrainingSample], lengths: Sequence[int], max_tokens: int
) -> tuple[Bucket, ...]:
    """Time up to `EACH` prompts in every bucket; the first is asked twice, since a new length pays for its buffers."""
    return tuple(_time(engine, length, choose(engine, samples, length), max_tokens) for length in lengths)


def choose(engine: Engine, samples: Sequence[TrainingSample], length: int, each: int = EACH) -> Chosen:
    """Which prompts are of about this length? The nearest real ones; joined ones only where there is none."""
    sized = [(len(engine.tokens(text)), text) for text in map(dataset.prompt_text, samples)]
    near = sorted(pair for pair in ((abs(size - length), text) for size, text in sized) if pair[0] <= NEAR * length)
    if near:
        return Chosen(len(near), tuple(text for _, text in near[:each]), 0)
    joined = tuple(text for text, _ in zip(_joined(engine, samples, length), range(each), strict=False))
    return Chosen(0, joined, len(joined))


def _joined(engine: Engine, samples: Sequence[TrainingSample], length: int) -> Iterator[str]:
    """Prompts of several samples' behaviours in a row; a sample is used once, what grew too long is left out."""
    items: tuple[SequenceItem, ...] = ()
    for sample in samples:
        items = (*items, *sample.read)
        text = prompt.render(prompt.sequence_text(items))
        size = len(engine.tokens(text))
        if size >= length * JOINED_FROM:
            items = ()
            if size <= length * (1 + NEAR):
                yield text


def _time(engine: Engine, length: int, chosen: Chosen, max_tokens: int) -> Bucket:
    counted = Bucket(length=length, real=chosen.real, asked=len(chosen.texts), joined=chosen.joined)
    if not chosen.texts:
        return counted
    engine.answer(chosen.texts[0], max_tokens)
    replies = [engine.answer(text, max_tokens) for text in chosen.texts]
    prefill, decode = rates(replies)
    return msgspec.structs.replace(
        counted,
        prompt_tokens=float(np.median([reply.prompt_tokens for reply in replies])),
        ttft_ms=round(float(np.median([reply.ttft_ms for reply in replies])), 3),
        total_ms=round(float(np.median([reply.total_ms for reply in replies])), 3),
        prefill_tokens_s=round(prefill, 1),
        decode_tokens_s=round(decode, 1),
        resident_bytes=psutil.Process().memory_info().rss,
    )


def rates(replies: Sequence[Reply]) -> tuple[float, float]:
    """How many tokens a second passed, prefill and decode? By the formulas for phones' reports, over all replies."""
    prefill_s = sum(reply.ttft_ms for reply in replies) / 1000
    decode_s = sum(reply.total_ms - reply.ttft_ms for reply in replies) / 1000
    read, said = sum(reply.prompt_tokens for reply in replies), sum(reply.output_tokens for reply in replies)
    return read / max(prefill_s, 1e-9), said / max(decode_s, 1e-9)
