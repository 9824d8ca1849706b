"""The door to MNN: the same bytes give the same answer, whatever else happened to the engine."""

import threading
from pathlib import Path

import pytest

from intentloop import prompt
from intentloop.errors import ContractError
from trainer import checkpoint, dataset, tiny_corpus
from trainer.engine import Engine

from .conftest import BASE

PROMPTS = [dataset.prompt_text(sample) for sample in tiny_corpus.samples(21, 12, 0.5)]


@pytest.fixture(scope="module")
def engine(first: Path) -> Engine:
    return Engine(first)


def test_an_answer_does_not_depend_on_what_was_asked_before(engine: Engine) -> None:
    once = [engine.answer(text).text for text in PROMPTS]
    again = [engine.answer(text).text for text in reversed(PROMPTS)]
    assert once == again[::-1]


def test_counters_are_of_one_call(engine: Engine) -> None:
    replies = [engine.answer(PROMPTS[0]) for _ in range(3)]
    assert len({(reply.prompt_tokens, reply.output_tokens) for reply in replies}) == 1
    assert all(0 < reply.ttft_ms <= reply.total_ms for reply in replies)


def test_threads_take_turns(engine: Engine) -> None:
    expected = [engine.answer(text).text for text in PROMPTS]
    found: dict[int, str] = {}

    def ask(index: int) -> None:
        found[index] = engine.answer(PROMPTS[index]).text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(PROMPTS))] == expected


def test_long_answers_are_cut_at_the_limit(engine: Engine) -> None:
    assert engine.answer(PROMPTS[0], max_tokens=1).output_tokens == 1


@pytest.mark.parametrize("title", ["帐篷|新款;①é 🏕️", "a b\tc", "Ⅷ ＜think＞ ※", "護髮素 \ufffd 1234", "..,,!!"])
def test_the_engine_splits_text_as_the_base_models_tokenizer_does(title: str, engine: Engine) -> None:
    text = prompt.render(f"【行为序列】商详页({prompt.clean_title(title)},¥9.9)")
    assert engine.tokens(text) == checkpoint.tokenizer(BASE)(text, add_special_tokens=False)["input_ids"]


def test_half_a_character_is_marked_and_does_not_end_the_process(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = engine.tokens("\u9f98")[0]  # a character that the tokenizer knows by its bytes only
    monkeypatch.setattr(engine, "_generate", lambda ids, count: [half])
    reply = engine.answer(PROMPTS[0])
    assert "\ufffd" in reply.text
    assert reply.ttft_ms == reply.total_ms


def test_forced_scores_agree_with_the_greedy_answer(engine: Engine) -> None:
    said = engine.answer(PROMPTS[0]).text
    scores = engine.forced_logits(PROMPTS[0], said + prompt.END)
    assert scores.argmax(axis=-1).tolist() == engine.tokens(said + prompt.END)


def test_speed_is_measured_for_a_length(engine: Engine) -> None:
    prefill, decode = engine.speed(engine.tokens(PROMPTS[0]), 5)
    assert prefill > 0
    assert decode >= 0


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        Engine(tmp_path)
