"""Which prompts time a length, and what comes of their times? All figures are found by hand; no model needed."""

import re
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
import pytest

from intentloop.gate import Outcome
from intentloop.training_set import TrainingSample
from trainer import indicator_buckets, search_device, tiny_corpus
from trainer.engine import Engine, Reply
from trainer.search_ledger import Answered

ONE = tiny_corpus.samples(4, 1, 0.5)[0]


class Reader:
    """An engine to which a prompt is as many tokens as its behaviours cost yuan together; its replies are scripted."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self._replies = iter(replies)
        self.asked: list[str] = []

    def tokens(self, text: str) -> list[int]:
        return [0] * sum(prices(text))

    def answer(self, rendered_prompt: str, max_tokens: int) -> Reply:
        self.asked.append(rendered_prompt)
        return next(self._replies)


def prices(text: str) -> list[int]:
    return [int(price) for price in re.findall(r",¥(\d+)", text)]


def samples(*lengths: int) -> list[TrainingSample]:
    """One behaviour each, worth so many tokens."""
    items = [msgspec.structs.replace(ONE.read[0], price_yuan=float(length), dwell_s=0) for length in lengths]
    return [msgspec.structs.replace(ONE, id=f"s{index}", read=(item,)) for index, item in enumerate(items)]


def choose(length: int, lengths: Sequence[int], each: int = 8) -> tuple[int, list[list[int]], int]:
    found = indicator_buckets.choose(cast(Engine, Reader()), samples(*lengths), length, each)
    return found.real, [prices(text) for text in found.texts], found.joined


@pytest.mark.parametrize(
    ("length", "lengths"),
    [
        (256, [191, 320, 250, 256, 193, 321]),
        (512, [383, 640, 500, 512, 385, 641]),
        (1024, [767, 1280, 1000, 1024, 769, 1281]),
    ],
)
def test_a_prompt_belongs_to_a_length_within_a_quarter_of_it_and_the_nearest_come_first(
    length: int, lengths: list[int]
) -> None:
    _, most, near, same, least, _ = lengths
    assert choose(length, lengths) == (4, [[same], [near], [least], [most]], 0)
    assert choose(length, lengths, each=2) == (4, [[same], [near]], 0)


@pytest.mark.parametrize(
    ("length", "lengths", "joined"),
    [
        # from 231 on long enough, from 321 on too long: the fourth and fifth make 321, the last alone is too short
        (256, [100, 100, 31, 150, 171, 120, 120, 60], [[100, 100, 31], [120, 120]]),
        (512, [200, 200, 61, 300, 341, 250, 250, 200], [[200, 200, 61], [250, 250]]),
        (1024, [300, 300, 300, 22, 700, 581, 500, 430, 99], [[300, 300, 300, 22], [500, 430]]),
    ],
)
def test_samples_are_joined_only_where_none_is_so_long_and_each_is_used_once(
    length: int, lengths: list[int], joined: list[list[int]]
) -> None:
    assert choose(length, lengths) == (0, joined, 2)
    assert choose(length, lengths, each=1) == (0, joined[:1], 1)
    assert choose(length, [*lengths, length]) == (1, [[length]], 0)


# 400 tokens read in 0.5 s, 20 said in 0.6 s; the means of the two replies' own rates would be 750 and 40
TIMES = ((100, 5, 200.0, 300.0), (300, 15, 300.0, 800.0))
REPLIES = [Reply("", *times, ended=True) for times in TIMES]
ANSWERS = [Answered(Outcome(sample_id="s", intent="闲逛", said="闲逛"), *times) for times in TIMES]


def test_rates_are_of_all_tokens_over_all_the_time() -> None:
    expected = pytest.approx((800, 20 / 0.6))
    assert indicator_buckets.rates(REPLIES) == expected
    assert search_device.rates(ANSWERS) == expected
    assert indicator_buckets.rates([]) == search_device.rates([]) == (0, 0)


def test_the_first_token_comes_after_a_median_and_a_95th_percentile() -> None:
    def answers(*times: float) -> list[Answered]:
        return [msgspec.structs.replace(ANSWERS[0], ttft_ms=time) for time in times]

    assert search_device.ttft_ms(answers(40, 10, 30, 20)) == pytest.approx((25, 38.5))  # 0.85 of 30 to 40
    assert search_device.ttft_ms(answers(7)) == (7, 7)
    assert search_device.ttft_ms([]) == (0, 0)


def test_a_bucket_has_the_medians_of_its_prompts_without_the_first_that_paid_for_buffers() -> None:
    warm = Reply("", 999, 99, 9999.0, 99_999.0, ended=True)
    engine = Reader([warm, *REPLIES])
    found, empty = indicator_buckets.buckets(cast(Engine, engine), samples(120, 130, 300), (128, 1024), 40)
    assert [prices(text) for text in engine.asked] == [[130], [130], [120]]
    assert (found.length, found.real, found.asked, found.joined) == (128, 2, 2, 0)
    assert (found.prompt_tokens, found.ttft_ms, found.total_ms) == (200, 250, 550)
    assert (found.prefill_tokens_s, found.decode_tokens_s) == (800, 33.3)
    assert (empty.real, empty.asked, empty.joined, empty.prompt_tokens) == (0, 0, 0, None)
