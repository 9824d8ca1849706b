"""The prompt without one part at a time: which bytes are asked, and what the rows say."""

from typing import Any, cast

import pytest

from intentloop import prompt
from intentloop.errors import ContractError
from trainer import ablate, dataset, tiny_corpus
from trainer.engine import Engine, Reply

SAMPLES = tiny_corpus.samples(4, 30, 0.5)


class Browser:
    """An engine that says 闲逛 to every prompt that shows a price, and the right answer to none."""

    def answer(self, rendered_prompt: str, max_tokens: int) -> Reply:
        priced = "¥" in rendered_prompt
        return Reply("闲逛" if priced else "?", len(rendered_prompt), 1, 1.0, 2.0, ended=True)


def test_every_part_leaves_its_own_bytes_out_and_nothing_else() -> None:
    whole = dataset.prompt_text(SAMPLES[0])
    for name, text in prompt.PARTS.items():
        found = ablate.without(f"system.{name}")(SAMPLES[0])
        assert text not in found
        assert len(found) == len(whole) - len(text) - 1  # and its line break
        assert all(other in found for key, other in prompt.PARTS.items() if key != name)
    priceless = ablate.without("behaviour.price")(SAMPLES[0])
    assert "¥" in whole
    assert "¥" not in priceless
    assert "cat:" in priceless
    assert "cat:" not in ablate.without("behaviour.category")(SAMPLES[0]).partition(prompt.HEAD)[2]
    assert len(ablate.names()) == len(prompt.PARTS) + 3


def test_an_unknown_part_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ContractError, match=r"system\.task"):
        ablate.without("system.profile")


def test_a_row_says_what_the_part_is_worth() -> None:
    rows = ablate.ablate(cast(Engine, cast(Any, Browser())), SAMPLES, ["behaviour.price", "system.task"], 40)
    whole, priceless, taskless = rows
    browsing = sum(sample.intent == "闲逛" for sample in SAMPLES) / len(SAMPLES)
    assert 0 < browsing < 1
    assert whole.accuracy.value == browsing
    assert (priceless.accuracy.value, priceless.faults) == (0, 1)
    assert priceless.gain.value == -browsing
    assert priceless.gain.high < 0
    assert (taskless.gain.value, taskless.accuracy) == (0, whole.accuracy)
    assert taskless.prompt_tokens == whole.prompt_tokens - len(prompt.PARTS["task"]) - 1
