"""The door to MNN: the same bytes give the same answer, whatever else happened to the engine."""

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intentloop import prompt
from intentloop.errors import ContractError
from trainer import checkpoint, dataset, tiny_corpus
from trainer import engine as device_engine
from trainer.engine import REUSE, Engine

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


class Spy:
    """The engine's inner object, which notes how many tokens it is fed."""

    def __init__(self, inner: Any, fed: list[int]) -> None:
        self._inner, self._fed, self._c_obj = inner, fed, self

    def generate(self, ids: list[int], count: int) -> Any:
        self._fed.append(len(ids))
        return self._inner._c_obj.generate(ids, count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner if hasattr(self._inner, name) else self._inner._c_obj, name)


@pytest.fixture(scope="module")
def reusing(first: Path) -> Engine:
    return Engine(first, reuse=True)


def test_an_engine_that_keeps_the_system_prompt_says_the_same_and_reads_less(engine: Engine, reusing: Engine) -> None:
    fed: list[int] = []
    before = [engine.answer(text) for text in PROMPTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reusing, "_model", Spy(reusing._model, fed))
        after = [reusing.answer(text) for text in PROMPTS]
    kept = len(engine.tokens(prompt.opening()))
    assert [reply.text for reply in after] == [reply.text for reply in before]
    assert [reply.prompt_tokens for reply in after] == [reply.prompt_tokens for reply in before]
    assert fed == [reply.prompt_tokens - kept for reply in before]


def test_a_prompt_with_another_beginning_is_read_whole(engine: Engine, reusing: Engine) -> None:
    other = prompt.render("【行为序列】搜索(帐篷)", system="另一个")
    for text in (PROMPTS[0], other, PROMPTS[1], other, PROMPTS[2]):
        assert reusing.answer(text).text == engine.answer(text).text
    assert (reusing.forced_logits(PROMPTS[3], "闲逛") == engine.forced_logits(PROMPTS[3], "闲逛")).all()
    assert reusing.answer(PROMPTS[4]).text == engine.answer(PROMPTS[4]).text


def test_an_artefact_says_itself_whether_the_system_prompt_is_kept(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first, tmp_path / "release")
    path = tmp_path / "release" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), REUSE: True}))
    assert Engine(tmp_path / "release")._opening
    assert not Engine(tmp_path / "release", reuse=False)._opening
    assert not Engine(first, reuse=False)._opening


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
    cut = engine.answer(PROMPTS[0], max_tokens=1)
    assert (cut.output_tokens, cut.ended) == (1, False)


def test_an_answer_has_ended_also_when_its_end_mark_is_the_last_token_allowed(engine: Engine, reusing: Engine) -> None:
    for asked in (engine, reusing):
        for text in PROMPTS[:4]:
            whole = asked.answer(text)
            assert (whole.ended, whole.output_tokens) == (True, len(asked.tokens(whole.text + prompt.END)))
            just, cut = (asked.answer(text, whole.output_tokens - less) for less in (0, 1))
            assert (just.text, just.output_tokens, just.ended) == (whole.text, whole.output_tokens, True)
            assert (cut.text, cut.ended) == (whole.text, False)  # only the mark is missing


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


class Silent:
    """The engine's inner object with another context: as after half a character, which may not be read."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._c_obj, self.emptied = inner, self, False

    def generate(self, ids: list[int], count: int) -> Any:
        self.emptied = False
        return self._inner._c_obj.generate(ids, count)

    def set_context(self, values: dict[str, Any]) -> None:
        self.emptied = values == {"history_tokens": [], "output_tokens": [], "generate_str": ""}
        self._inner._c_obj.set_context(values)

    def get_context(self) -> Any:
        assert self.emptied, "the process would end here"
        found = self._inner._c_obj.get_context()
        assert (found["history_tokens"], found["output_tokens"], found["generate_str"]) == ([], [], "")
        return found

    def __getattr__(self, name: str) -> Any:
        owner = self._inner if hasattr(self._inner, name) else self._inner._c_obj
        return getattr(owner, name)


def test_counters_are_read_only_after_the_context_is_emptied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_model", Silent(engine._model))
    assert all(engine.answer(text).ttft_ms > 0 for text in PROMPTS[:3])


def test_forced_scores_agree_with_the_greedy_answer(engine: Engine) -> None:
    said = engine.answer(PROMPTS[0]).text
    scores = engine.forced_logits(PROMPTS[0], said + prompt.END)
    assert scores.argmax(axis=-1).tolist() == engine.tokens(said + prompt.END)


def test_speed_is_that_of_a_length_and_of_the_tokens_after_the_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def generate(ids: list[int], count: int) -> list[int]:
        asked.append((len(ids), count))
        return [7] * min(count, 5)

    clock = iter([10.0, 10.5, 20.0, 22.5])  # half a second for one token, two and a half for five
    monkeypatch.setattr(engine, "_generate", generate)
    monkeypatch.setattr(device_engine, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert engine.speed([7] * 100, 8) == (200, 2)  # 100 in half a second, and 4 more in two
    assert asked == [(100, 1), (100, 8)]
    monkeypatch.undo()
    assert all(rate > 0 for rate in engine.speed(engine.tokens(PROMPTS[0]), 2))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        Engine(tmp_path)
