"""May phones keep the system prompt? Only when not one answer differed; the release's configuration says which."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from intentloop import gate
from intentloop.adapters import signing
from trainer import judge, measure, prefix_reuse, publish, rule, step
from trainer.engine import CONFIGURATION, REUSE, Reply
from trainer.prefix_reuse import PrefixReuse
from trainer.quantise import Candidate

PROMPTS = [f"prompt {number}" for number in range(10)]


class Engine:
    """It answers with its prompt, 40 ms after it was asked or 10; reuse changes the answers to some prompts."""

    changed: tuple[str, ...] = ()

    def __init__(self, artefact: Path, threads: int, reuse: bool) -> None:
        self._reuse = reuse

    def answer(self, text: str, max_tokens: int) -> Reply:
        said = f"{text}, reused" if self._reuse and text in self.changed else text
        ttft_ms = 10.0 if self._reuse else 40.0
        return Reply(said, 100, 5, ttft_ms, ttft_ms + 20, ended=True)

    def tokens(self, text: str) -> list[int]:
        return [0] * 93


Compare = Callable[..., PrefixReuse]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Compare:
    def found(prompts: list[str], *changed: str) -> PrefixReuse:
        monkeypatch.setattr(Engine, "changed", changed)
        monkeypatch.setattr(prefix_reuse, "Engine", Engine)
        return prefix_reuse.compare(Path(), prompts, rule.MeasureRule())

    return found


def test_one_answer_that_differs_makes_reuse_unsafe_however_much_sooner_the_first_token_comes(compare: Compare) -> None:
    alike, one = compare(PROMPTS), compare(PROMPTS, PROMPTS[7])
    assert (alike.asked, alike.same, alike.is_safe) == (10, 10, True)
    assert (one.asked, one.same, one.is_safe) == (10, 9, False)
    assert (one.kept_tokens, one.ttft_ms, one.ttft_reused_ms, one.ttft_ratio) == (93, 40, 10, 0.25)
    assert (one.total_ms, one.total_reused_ms) == (60, 30)


def test_what_was_not_asked_is_not_safe(compare: Compare) -> None:
    nothing = compare([])
    assert (nothing.is_safe, nothing.ttft_ratio) == (False, 1.0)


@pytest.mark.parametrize(("changed", "reuse"), [((), True), ((PROMPTS[7],), False)])
def test_a_release_says_whether_phones_may_reuse(
    changed: tuple[str, ...], reuse: bool, compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inputs").mkdir()
    run = step.start(tmp_path, step.RunSpec(number=2, base="", base_name="tiny"), rule.LineRule())
    candidate = Candidate(name="a", checkpoint="", reference="", quantiser="rtn", block=64, dropped=())
    artefact = run.step("export") / "a"
    artefact.mkdir(parents=True)
    (artefact / "config.json").write_text(json.dumps({**CONFIGURATION, REUSE: not reuse}))
    report: Any = SimpleNamespace(measured=None, prefix=compare(PROMPTS, *changed))
    decision = gate.Release((), gate.Evidence(accuracy=gate.wilson(6, 10), faults=gate.wilson(0, 10)))
    monkeypatch.setattr(measure, "read_choice", lambda _: SimpleNamespace(candidate=candidate))
    monkeypatch.setattr(judge, "read_report", lambda _: report)
    monkeypatch.setattr(judge, "read_decision", lambda _: decision)
    monkeypatch.setattr(publish, "RECORDED", ())
    monkeypatch.setattr(publish, "lineage", lambda _: {})
    monkeypatch.setenv(publish.PRIVATE_KEY, signing.generate_keys()[0])
    published = publish.publish(run, tmp_path / "publish")
    assert all(each.holds for each in published.checks)
    assert json.loads((tmp_path / "publish" / "release" / "config.json").read_bytes())[REUSE] is reuse
