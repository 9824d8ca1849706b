"""Which reply counts as right? One that ended, on every engine and wherever an outcome is made. No model needed."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from trainer import ablate, dataset, device_run, gguf_measure, prefix_reuse, rule, search_device, step, tiny_corpus
from trainer import engine as device_engine
from trainer.adapter_release import measure as adapter_measure
from trainer.engine import Engine, Reply, engine_version
from trainer.search_ledger import Answered, Entry, Ledger, key

SAMPLE = next(each for each in tiny_corpus.samples(4, 30, 0.5) if each.intent == "比价犹豫")
RIGHT = dataset.answer_text(SAMPLE).removesuffix("<|im_end|>")


def reply(text: str, ended: bool) -> Reply:
    return Reply(text, 100, 40, 1.0, 2.0, ended=ended)


@pytest.mark.parametrize("text", [RIGHT, "比价犹豫|帐篷;睡袋;露"], ids=["whole", "within a word"])
def test_an_answer_that_did_not_end_is_a_fault_however_right_it_looks(text: str) -> None:
    ended, cut = (device_run.outcome(SAMPLE, reply(text, ended)) for ended in (True, False))
    assert (ended.right, ended.exact) == (True, text == RIGHT)
    assert (cut.said, cut.right, cut.exact) == ("", False, False)


class Babbling:
    """A device engine that says the right words again and again until it is cut."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def answer(self, rendered_prompt: str, max_tokens: int) -> Reply:
        return reply(RIGHT, ended=False)


def test_a_cut_answer_is_a_fault_wherever_a_model_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_device, "Engine", Babbling)
    monkeypatch.setattr(device_engine, "Engine", Babbling)
    (tmp_path / "inputs").mkdir()
    run = step.start(tmp_path, step.RunSpec(number=2, base="", base_name=""), rule.LineRule())
    data = run.step("freeze") / "dev.jsonl"
    data.parent.mkdir()
    dataset.write(data, [SAMPLE])
    artefact = tmp_path / "artefact"
    artefact.mkdir()
    contestant = search_device.Contestant(artefact, data, None, run.rule, Ledger(tmp_path / "measured"))
    assert contestant.right(1) == [False]
    assert [found.said for found in adapter_measure.answers(run, artefact, "a").outcomes] == [""]
    rows = ablate.ablate(cast(Engine, Babbling()), [SAMPLE], ["system.task"], 40)
    assert [row.faults for row in rows] == [1, 1]


class Llama:
    """As much of llama.cpp as an answer needs: it says these tokens, 0 is its end mark."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = tokens

    def reset(self) -> None: ...

    def token_eos(self) -> int:
        return 0

    def generate(self, ids: list[int], **_: float) -> Iterator[int]:
        return iter(self._tokens)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return "".join(map(str, tokens)).encode()


@pytest.mark.parametrize(
    ("tokens", "text", "count", "ended"),
    [
        ([1, 2, 0], "12", 3, True),
        ([1, 2, 3, 0], "123", 4, True),  # the end mark is the last token that is allowed, as for MNN
        ([1, 2, 3, 4, 0], "1234", 4, False),
        (itertools.repeat(5), "5555", 4, False),
    ],
)
def test_llama_cpp_is_cut_at_the_same_token_as_the_device_engine(
    tokens: Iterable[int], text: str, count: int, ended: bool
) -> None:
    found = gguf_measure.answer(Llama(tokens), [7, 7], 4)
    assert (found.text, found.prompt_tokens, found.output_tokens, found.ended) == (text, 2, count, ended)


def test_what_was_measured_under_another_judgement_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artefact, data, rules = tmp_path / "artefact", tmp_path / "dev.jsonl", rule.LineRule()
    artefact.mkdir()
    dataset.write(data, [SAMPLE])
    ledger = Ledger(tmp_path / "measured")
    known = Entry(answers=(Answered(device_run.outcome(SAMPLE, reply(RIGHT, ended=True)), 100, 40, 1.0, 2.0),))

    def entry() -> Entry:
        return search_device.Contestant(artefact, data, None, rules, ledger).entry()

    first = msgspec.json.encode((rules.measure, rules.search.latency_runs, engine_version()))  # cut answers were right
    ledger.write(key(artefact, (data,), first), known)
    assert entry() == Entry()
    ledger.write(key(artefact, (data,), first[:-1] + f",{device_run.JUDGEMENT}]".encode()), known)
    assert entry() == known
    monkeypatch.setattr(device_run, "JUDGEMENT", device_run.JUDGEMENT + 1)
    assert entry() == Entry()


@pytest.mark.parametrize(
    ("text", "thinks"),
    [
        ("比价犹豫|笔记本电脑;thinkpad", False),
        ("比价犹豫|笔记本电脑;<thinkpad>", False),
        ("场景购物|rethink;think", False),
        ("<think>\n\n</think>\n\n闲逛", True),
        ("<think>用户在", True),
        ("<think", True),  # cut
        ("闲逛</think>", True),
        ("闲逛", False),
    ],
)
def test_only_the_markup_of_thinking_is_thinking(text: str, thinks: bool) -> None:
    assert device_run.thinks(text) is thinks


def test_a_report_counts_what_thinks_and_what_did_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        reply("比价犹豫|电脑;thinkpad", ended=True),
        reply(f"<think>{RIGHT}", ended=False),
        reply(RIGHT, ended=True),
    ]
    turns = iter(said)

    class Scripted(Babbling):
        load_ms = 1.0

        def answer(self, rendered_prompt: str, max_tokens: int) -> Reply:
            return next(turns)

    monkeypatch.setattr(device_run, "Engine", Scripted)
    monkeypatch.setattr(prefix_reuse, "compare", lambda *_: None)
    dataset.write(tmp_path / "golden.jsonl", [SAMPLE] * len(said))
    asked = rule.MeasureRule(stability_runs=0, speed_lengths=())  # all its replies are 40 tokens long, the limit
    found = device_run.report(tmp_path, tmp_path / "golden.jsonl", asked)
    assert (found.thinking, found.unended) == (1, 1)
    assert [outcome.right for outcome in found.outcomes] == [True, False, True]
