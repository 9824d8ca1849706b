"""When is a candidate hopeless, which are on the front, and is anything measured twice? No model needed."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from intentloop.gate import Outcome
from trainer import golden_guard, heal, measure, pareto, plot, quantise, rule, run, search, search_race, step
from trainer.search_ledger import Answered, Entry, Ledger, key
from trainer.search_score import Score


def look(name: str, divergence: float, size: int = 10, family: str = "drop4") -> search_race.Look:
    return search_race.Look(name=name, family=family, artefact_bytes=size, divergence=divergence, long_ttft_ms=1.0)


def test_an_artefact_over_the_size_limit_leaves_before_it_is_loaded() -> None:
    assert list(search_race.too_large({"a": 500, "b": 501}, 500)) == ["b"]


def test_when_all_are_over_a_limit_the_nearest_goes_on_so_that_the_gate_can_say_no() -> None:
    assert set(search_race.too_large({"a": 700, "b": 600, "c": 900}, 500)) == {"a", "c"}
    assert set(search_race.too_slow({"a": 30.0, "b": 20.0}, 10.0)) == {"a"}


def test_a_slow_first_token_is_a_reason_and_a_fast_one_is_no_advantage() -> None:
    found = search_race.too_slow({"a": 100.0, "b": 1500.0, "c": 1501.0}, 1500.0)
    assert list(found) == ["c"]
    assert "1501 ms" in found["c"]


def test_a_sibling_that_is_no_larger_and_twice_as_near_makes_a_candidate_hopeless() -> None:
    looks = [look("rtn64", 0.21), look("awq64", 0.10), look("awq32", 0.08, size=12), look("rtn32", 0.15, size=12)]
    assert list(search_race.farther(looks, 2.0)) == ["rtn64"]  # 0.21 > 2 · 0.10; rtn32 0.15 < 2 · 0.08


def test_nearness_is_compared_only_within_one_full_precision_model_and_never_with_larger_ones() -> None:
    assert search_race.farther([look("a", 0.5), look("b", 0.01, family="drop8")], 2.0) == {}
    assert search_race.farther([look("a", 0.5, size=10), look("b", 0.01, size=11)], 2.0) == {}


def test_the_race_is_looked_at_after_its_shares_and_at_the_end() -> None:
    assert search_race.rounds(120, (0.25, 0.5)) == (30, 60, 120)
    assert search_race.rounds(3, (0.01, 0.5, 1.0)) == (2, 3)


def test_who_is_surely_behind_leaves_and_answers_no_more() -> None:
    asked: dict[str, int] = {}
    quality = {"good": 100, "near": 98, "bad": 40}  # right answers of each hundred

    def answer(name: str, count: int) -> Sequence[bool]:
        asked[name] = count
        return [index % 100 < quality[name] for index in range(count)]

    def judge(right: Mapping[str, Sequence[bool]]) -> dict[str, str]:
        return search_race.behind(right, 0.01, 2.58)

    left = search_race.race(list(quality), (100, 200, 400), answer, judge)
    assert list(left) == ["bad"]
    assert asked == {"good": 400, "near": 400, "bad": 100}


def test_who_could_still_be_within_the_slack_stays() -> None:
    right = {"leader": [True] * 60, "other": [True] * 55 + [False] * 5}  # -0.083 [-0.222, +0.031]
    assert search_race.behind(right, 0.01, 2.58) == {}
    assert list(search_race.behind({**right, "third": [True] * 40 + [False] * 20}, 0.01, 2.58)) == ["third"]


def scored(name: str, accuracy: float, nats: float | None, size: int, ttft: float, left: str = "") -> Score:
    return Score(
        candidate=quantise.Candidate(name=name, checkpoint="", reference="", quantiser="rtn", block=64, dropped=(2, 3)),
        accuracy=accuracy,
        exact=0.5,
        faults=0.0,
        divergence=nats,
        artefact_bytes=size,
        samples=0 if nats is None else 100,
        ttft_p50_ms=ttft,
        decode_tokens_s=50.0,
        left=left,
    )


GRID = (
    scored("best", 0.9, 0.05, 300, 100.0),
    scored("small", 0.8, 0.09, 200, 100.0),
    scored("beaten", 0.8, 0.10, 300, 105.0),
    scored("noise", 0.9, 0.05, 300, 95.0),
    scored("farther", 0.9, 0.06, 300, 100.0),
    scored("fast", 0.7, 0.30, 400, 50.0),
    scored("large", 0.0, None, 900, 0.0, left="900 bytes, the limit is 500"),
)


def test_the_front_holds_who_is_not_beaten_in_everything() -> None:
    # "noise" is 5 % faster than "best" and equal otherwise: within what clocks vary, so neither beats the other
    assert pareto.front(GRID) == {"best", "small", "noise", "fast"}


def test_the_table_shows_every_candidate_and_why_the_others_left() -> None:
    table = pareto.Table(scores=GRID, chosen="best", earlier={"drop8": "behind by 12 points"})
    lines = pareto.markdown(table).splitlines()
    rows = {line.split("|")[2].strip(): line for line in lines if line.startswith("|") and "drop" not in line}
    assert {score.candidate.name for score in GRID} <= set(rows)
    assert rows["best"].startswith("| ▶● |")
    assert rows["beaten"].startswith("|  |")
    assert "the limit is 500" in rows["large"]
    assert "- drop8: behind by 12 points" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_picture_of_the_same_search_is_the_same_bytes(tmp_path: Path) -> None:
    table = pareto.Table(scores=GRID, chosen="best", earlier={})
    for name in ("one.svg", "two.svg"):
        plot.pareto(table, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    assert b"KL to full precision" in drawn


def test_who_breaks_a_limit_of_the_gate_is_chosen_only_when_all_do() -> None:
    faulty = msgspec.structs.replace(scored("faulty", 0.95, 0.01, 300, 100.0), faults=0.2)
    usual = scored("usual", 0.80, 0.05, 300, 100.0)
    assert measure.choose([faulty, usual], rule.LineRule()).candidate.name == "usual"
    assert measure.choose([faulty], rule.LineRule()).candidate.name == "faulty"


def test_no_time_decides_a_choice() -> None:
    slow, fast = scored("slow", 0.9, 0.05, 300, 900.0), scored("fast", 0.9, 0.06, 300, 10.0)
    assert measure.choose([fast, slow], rule.LineRule()).candidate.name == "slow"


def test_a_search_like_a_run_that_made_an_adapter_is_for_full_releases(tmp_path: Path) -> None:
    (tmp_path / "like" / "inputs").mkdir(parents=True)
    for name in ("training", "golden"):
        (tmp_path / "like" / "inputs" / f"{name}.jsonl").touch()
    spec = step.RunSpec(
        number=7, base="b", base_name="tiny", incumbent="i", previous="v6", kind="adapter", base_release="v1"
    )
    like = step.start(tmp_path / "like", spec, rule.LineRule(adapter=rule.AdapterRule(release_kind="auto")))
    made = search.prepare(tmp_path / "search", like.directory, search.HERE / "search.yaml")
    reason = "search with the data of like"
    assert made.spec == msgspec.structs.replace(spec, reason=reason, kind="full", base_release="")
    assert like.spec == spec
    for name in search.steps():
        step.perform(made, name, run.needs(name), lambda one, into: {})
    assert (run.next_step(made), run.gate_name(made)) == ("gate", "gate")  # not the steps of an adapter


def answered(name: str) -> Answered:
    return Answered(Outcome(sample_id=name, intent="a", said="a"), 100, 5, 20.0, 40.0)


def test_what_was_measured_is_found_again_until_something_that_it_depends_on_changes(tmp_path: Path) -> None:
    artefact, data = tmp_path / "artefact", tmp_path / "dev.jsonl"
    artefact.mkdir()
    (artefact / "llm.mnn.weight").write_bytes(b"weights")
    data.write_bytes(b"samples")
    ledger = Ledger(tmp_path / "measured")
    named = key(artefact, (data,), b"rule")
    entry = Entry(long_ttft_ms=12.0, divergence=0.1, answers=(answered("s1"),))
    ledger.write(named, entry)
    assert Ledger(tmp_path / "measured").read(key(artefact, (data,), b"rule")) == entry
    assert ledger.read(key(artefact, (data,), b"other rule")) == Entry()
    data.write_bytes(b"other samples")
    assert ledger.read(key(artefact, (data,), b"rule")) == Entry()
    data.write_bytes(b"samples")
    (artefact / "llm.mnn.weight").write_bytes(b"other weights")
    assert ledger.read(key(artefact, (data,), b"rule")) == Entry()


def test_both_ways_of_healing_are_tried_and_a_whole_model_needs_none() -> None:
    assert [each.name for each in heal.variants([0, 4], "both")] == ["drop0-none", "drop4-lora", "drop4-distil"]
    assert [each.name for each in heal.variants([4, 6], "distil")] == ["drop4-distil", "drop6-distil"]


def test_the_way_of_healing_that_is_right_more_often_in_the_engine_is_kept() -> None:
    tried = heal.variants([4, 6, 8], "both")
    right = {
        "drop4-lora": [True, True, False, False],
        "drop4-distil": [True, True, True, False],
        "drop6-lora": [True, True, False, False],
        "drop6-distil": [True, False, True, False],
    }
    left = {"drop8-lora": "behind", "drop8-distil": "behind"}
    found = heal.better(tried, right, left)
    assert [each.name for each in found.kept] == ["drop4-distil", "drop6-lora"]
    assert set(found.left) == {"drop4-lora", "drop6-distil", "drop8-lora", "drop8-distil"}
    assert "0.750" in found.left["drop4-lora"]
    assert found.left["drop8-lora"] == "behind"


@pytest.mark.parametrize("name", ["adapt", "heal", "quantise", "measure", "adapter-measure"])
@pytest.mark.parametrize("part", ["inputs", "freeze"])
def test_a_step_before_the_gate_that_opens_the_golden_set_is_ended(name: str, part: str, tmp_path: Path) -> None:
    ended = open_golden(name, part, tmp_path)
    assert ended.returncode != 0
    assert f"step '{name}' opened" in ended.stderr


@pytest.mark.parametrize("name", sorted(golden_guard.READERS))
def test_the_gate_and_what_cuts_or_records_the_golden_set_may_open_it(name: str, tmp_path: Path) -> None:
    assert open_golden(name, "freeze", tmp_path).stdout == "read"


def open_golden(name: str, part: str, run: Path) -> subprocess.CompletedProcess[str]:
    (run / part).mkdir()
    (run / part / "golden.jsonl").write_text("read", encoding="utf-8")
    os.symlink(run / part, run / "another-name")  # the way to the file does not matter
    program = (
        "import sys; from pathlib import Path; from trainer import golden_guard\n"
        "golden_guard.forbid(Path(sys.argv[1]), sys.argv[2])\n"
        "print((Path(sys.argv[1]) / 'another-name' / 'golden.jsonl').read_text(), end='')"
    )
    command = [sys.executable, "-c", program, str(run), name]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_step_runs_under_the_guard(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(step.RunSpec(number=1, base="", base_name="")))
    (tmp_path / "rule.json").write_bytes(msgspec.json.encode(rule.LineRule()))
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "golden.jsonl").write_text("", encoding="utf-8")
    program = (
        "from trainer import step\n"
        "step.main('measure', (), lambda run, into: {'read': (run.directory / 'inputs/golden.jsonl').read_text()})"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "step 'measure' opened" in ended.stderr
    assert not (tmp_path / "measure" / step.MANIFEST).exists()
