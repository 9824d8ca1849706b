"""How far is what runs from what was meant? KL on distributions so small that it is found by hand. No model needed."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from trainer import device_run, rule, tiny_corpus
from trainer import engine as device_engine
from trainer.adapter_release import base, train
from trainer.engine import Engine

SAMPLES = tiny_corpus.samples(4, 3, 0.5)
EVEN, SKEW = (1 / 2, 1 / 2), (1 / 4, 3 / 4)
EVEN_TO_SKEW = math.log(4 / 3) / 2  # 1/2 ln(2) + 1/2 ln(2/3)
SKEW_TO_EVEN = math.log(27 / 16) / 4  # 1/4 ln(1/2) + 3/4 ln(3/2)
HALF = 1e-3  # references are kept in 16 bits

Rows = list[tuple[float, ...]]  # a probability for each token of the vocabulary, one row an answer token


def logs(rows: Rows) -> NDArray[np.float32]:
    return np.log(np.array(rows, dtype=np.float32))


class Runner:
    """An engine that scores the tokens of its samples' answers so, one sample after the other."""

    def __init__(self, *scores: NDArray[np.float32]) -> None:
        self._scores = iter(scores)

    def forced_logits(self, rendered_prompt: str, answer: str) -> NDArray[np.float32]:
        return next(self._scores)

    def tokens(self, text: str) -> list[int]:
        return [0, 1] if text.endswith("<|im_end|>") else [0] * 3


def divergence(tmp_path: Path, truths: list[Rows], scores: list[NDArray[np.float32]]) -> float:
    rows = {f"{index:04d}": logs(truth).astype(np.float16) for index, truth in enumerate(truths)}
    save_file(rows, tmp_path / "reference.safetensors")
    return device_run.divergence(cast(Engine, Runner(*scores)), SAMPLES, tmp_path / "reference.safetensors")


def test_kl_is_from_the_reference_to_the_engine(tmp_path: Path) -> None:
    assert divergence(tmp_path, [[EVEN]], [logs([SKEW])]) == pytest.approx(EVEN_TO_SKEW, abs=HALF)
    assert divergence(tmp_path, [[SKEW]], [logs([EVEN])]) == pytest.approx(SKEW_TO_EVEN, abs=HALF)


def test_kl_of_equal_distributions_is_nothing_at_whatever_height_their_scores_lie(tmp_path: Path) -> None:
    assert divergence(tmp_path, [[EVEN, SKEW]], [logs([EVEN, SKEW]) + 7]) == pytest.approx(0, abs=HALF)


def test_kl_is_the_mean_over_answer_tokens_and_not_over_samples(tmp_path: Path) -> None:
    truths: list[Rows] = [[EVEN, EVEN, EVEN], [EVEN]]
    scores = [logs([EVEN, EVEN, EVEN]), logs([SKEW])]
    assert divergence(tmp_path, truths, scores) == pytest.approx(EVEN_TO_SKEW / 4, abs=HALF)


def test_scores_beyond_the_references_vocabulary_are_padding_and_do_not_count(tmp_path: Path) -> None:
    padded = np.concatenate([logs([SKEW]), np.full((1, 3), 50, np.float32)], axis=1)
    assert divergence(tmp_path, [[EVEN]], [padded]) == pytest.approx(EVEN_TO_SKEW, abs=HALF)


def model(*rows: tuple[float, ...]) -> Any:
    """It scores the two answer tokens so; what it says within the prompt and after the answer is far off."""
    off = torch.tensor([[9.0, -9.0]])
    scores = torch.cat([off, off, torch.from_numpy(logs(list(rows))), off])
    return lambda input_ids: SimpleNamespace(logits=scores[None])


def test_an_adapters_base_is_compared_with_the_engines_own_at_every_answer_token() -> None:
    far = base.divergence(model(EVEN, EVEN), Runner(logs([SKEW, EVEN]), logs([EVEN, EVEN])), SAMPLES[:2])
    assert far == pytest.approx(EVEN_TO_SKEW / 4, rel=1e-6)
    assert base.divergence(model(EVEN, SKEW), Runner(logs([EVEN, SKEW])), SAMPLES[:1]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("told", "near"), [((0.46, 0.54), True), ((0.42, 0.58), False)])  # 0.0032 and 0.0130 nats
def test_a_base_that_the_engine_does_not_compute_with_is_too_far(
    told: tuple[float, float], near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_engine, "Engine", lambda *_, **__: Runner(logs([told, told])))
    found = train._sees_what_runs(model(EVEN, EVEN), Path(), list(SAMPLES[:1]), rule.LineRule())
    assert found.value == pytest.approx(-math.log(2 * math.sqrt(told[0] * told[1])), rel=1e-3)
    assert found.holds is near
