"""What must hold of each step's result: every promise is broken once, and seen."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import trainer
from intentloop.adapters import signing
from intentloop.errors import ConfigurationError
from intentloop.release import Manifest
from trainer import check, freeze, heal, influence, judge, measure, merge, prune, publish, rule, step, tiny_corpus
from trainer.quantise import Candidate
from trainer.search_score import Score

PRIVATE, PUBLIC = signing.generate_keys()


def broken(checks: tuple[check.Check, ...]) -> dict[str, float]:
    return {each.name: each.value for each in checks if not each.holds}


def cut() -> dict[str, list[Any]]:
    return freeze.split(tiny_corpus.samples(3, 200, 0.5), tiny_corpus.samples(8, 40, 0.5), rule.SplitRule(), 1)


def test_a_cut_keeps_its_promises() -> None:
    promises = freeze.promises(cut())
    assert broken(promises) == {}
    rarest = {each.name: each for each in promises}["training samples of the rarest class"]
    assert rarest.value > 1


@pytest.mark.parametrize("part", ["validation", "dev", "golden"])
def test_a_user_or_a_sequence_in_two_parts_is_noticed(part: str) -> None:
    parts = cut()
    stranger, copied = parts["train"][0], parts["train"][1]
    parts[part] = [
        *parts[part],
        msgspec.structs.replace(stranger, digest="another"),
        msgspec.structs.replace(copied, user_id="another"),
    ]
    assert broken(freeze.promises(parts)) == {"users in two parts": 1, "sequences in two parts": 1}


def test_a_class_with_nothing_to_learn_from_is_noticed() -> None:
    parts = cut()
    parts["train"] = [sample for sample in parts["train"] if sample.intent != "场景购物"]
    assert broken(freeze.promises(parts)) == {"training samples of the rarest class": 0}


def test_a_class_that_calibrates_nothing_is_noticed() -> None:
    parts = cut()
    parts["calibration"] = [sample for sample in parts["calibration"] if sample.intent != "闲逛"]
    assert broken(freeze.promises(parts)) == {"calibration samples of the rarest class": 0}


@pytest.mark.parametrize(
    ("scores", "tokens", "name", "value"),
    [
        ([0.5, 0.1], 90, "blocks with a score", 2),
        ([0.5, float("nan"), float("inf")], 90, "scores that are not numbers", 2),
        ([0.5, 0.1, 0.4], 0, "calibration tokens", 0),
    ],
)
def test_an_influence_that_says_nothing_is_noticed(scores: list[float], tokens: int, name: str, value: float) -> None:
    assert broken(influence.promises([0.5, 0.1, 0.4], 3, 90)) == {}
    assert broken(influence.promises(scores, 3, tokens)) == {name: value}


@pytest.fixture
def saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> step.Run:
    """A run before its pruning of one layer of 8, where a logit changes by 0.002 whenever a model is saved."""
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=8))
    adapter = SimpleNamespace(merge_and_unload=lambda: model)
    peft = SimpleNamespace(PeftModel=SimpleNamespace(from_pretrained=lambda *_: adapter))
    doors = {
        "load": lambda *_: model,
        "tokenizer": lambda *_: None,
        "save": lambda *_: 0.002,
        "MAX_LOGIT_CHANGE": 0.001,
    }
    monkeypatch.setattr(trainer, "checkpoint", SimpleNamespace(**doors), raising=False)
    monkeypatch.setitem(sys.modules, "peft", peft)
    for name in ("drop_layers", "check_cache"):
        monkeypatch.setattr(prune, name, lambda *_: None)
    monkeypatch.setattr(prune, "uneven", lambda *_: [])
    metrics = {"influence": {"scores": [1.0] * 8}, "prune": {"drop1": [1], "left": {}}}
    monkeypatch.setattr(step.Run, "metrics", lambda run, name: metrics[name])
    record = heal.Record({}, {"max_logit_change": 0.002})
    monkeypatch.setattr(heal, "heal_all", lambda run, tried: {variant.name: record for variant in tried})
    rules = rule.LineRule(prune=rule.PruneRule(layers_to_drop=(1,), healing="lora"))
    run = step.start(tmp_path, step.RunSpec(number=2, base="", base_name=""), rules)
    run.step("freeze").mkdir()
    (run.step("freeze") / "dev.jsonl").touch()
    heal.healed(run, heal.Variant(1, "lora")).mkdir(parents=True)
    return run


@pytest.mark.parametrize(("work", "prefix"), [(merge.merge, ""), (prune.prune, "drop1: "), (heal.heal, "drop1: ")])
def test_a_model_that_is_another_after_saving_is_noticed(work: step.Work, prefix: str, saving: step.Run) -> None:
    found = work(saving, saving.directory / "result")
    assert isinstance(found, step.Findings)
    assert broken(found.checks) == {f"{prefix}change of a logit by saving and loading": 0.002}


def score(name: str, samples: int, left: str = "") -> Score:
    candidate = Candidate(name=name, checkpoint="", reference="", quantiser="rtn", block=64, dropped=())
    return Score(
        candidate=candidate, accuracy=1, exact=1, faults=0, divergence=0, artefact_bytes=1, samples=samples, left=left
    )


def test_a_choice_among_candidates_that_were_not_asked_the_same_is_noticed() -> None:
    best, gone = score("a", 120), score("b", 30, left="surely behind a")
    assert broken(measure.promises(best, [best, gone], 120)) == {}
    silent = "candidates that neither answered them nor left with a reason"
    assert broken(measure.promises(best, [best, score("c", 119)], 120)) == {silent: 1}
    few = score("d", 60)
    assert broken(measure.promises(few, [few], 120)) == {"dev samples that the chosen one answered": 60, silent: 1}


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(publish.PRIVATE_KEY, PRIVATE)
    artefact = tmp_path / "artefact"
    artefact.mkdir()
    for name in ("llm.mnn", "llm.mnn.weight"):
        (artefact / name).write_bytes(name.encode() * 100)
    manifest = Manifest(
        version="v2-00000000", previous="", base_model="tiny", prompt_version="p1", engine="none", quantiser="none",
        layers_dropped=(), files=(), artefact_bytes=0, min_free_bytes=0, measured=None, steps=(), lineage={},
        reason="test", created_at_ms=1,
    )  # fmt: skip
    publish.pack(artefact, tmp_path / "release", manifest)
    return tmp_path / "release"


def test_a_packed_release_can_be_verified(release: Path) -> None:
    assert broken(publish.promises(release)) == {}
    assert signing.verify(publish.read_manifest(release), PUBLIC)


def flip(release: Path) -> None:
    content = bytearray((release / "llm.mnn").read_bytes())
    content[7] ^= 1
    (release / "llm.mnn").write_bytes(content)


def add(release: Path) -> None:
    (release / "calibration.txt").write_text("text")


def forge(release: Path) -> None:
    forged = msgspec.structs.replace(publish.read_manifest(release), min_free_bytes=1)
    (release / step.MANIFEST).write_bytes(msgspec.json.encode(forged))


def unsign(release: Path) -> None:
    unsigned = msgspec.structs.replace(publish.read_manifest(release), signature="")
    (release / step.MANIFEST).write_bytes(msgspec.json.encode(unsigned))


@pytest.mark.parametrize("key", ["", "c2hvcnQ="])
def test_without_a_key_nothing_is_released(release: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(publish.PRIVATE_KEY, key)
    with pytest.raises(ConfigurationError, match="INTENTLOOP_RELEASE__PRIVATE_KEY"):
        publish.pack(release, release.with_name("again"), publish.read_manifest(release))
    assert not (release.with_name("again") / step.MANIFEST).exists()


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (flip, "files unlike their size, SHA-256 or MD5"),
        (add, "files that the manifest does not name"),
        (forge, "signatures that do not verify"),
        (unsign, "signatures that do not verify"),
    ],
)
def test_a_release_that_a_phone_would_refuse_is_noticed(
    damage: Callable[[Path], None], name: str, release: Path
) -> None:
    damage(release)
    assert broken(publish.promises(release)) == {name: 1}


def told(monkeypatch: pytest.MonkeyPatch, directory: Path, incumbent: dict[str, Any]) -> dict[str, float]:
    """Judge promises of a candidate and an incumbent that differ in what is given."""
    usual = {"engine": "MNN 3.6.1", "dataset_sha256": "a", "ids": ("1", "2")}
    reports = {}
    for name, values in (("candidate", usual), ("incumbent", usual | incumbent)):
        (directory / f"{name}.json").touch()
        measured = SimpleNamespace(engine=values["engine"], dataset_sha256=values["dataset_sha256"])
        outcomes = [SimpleNamespace(sample_id=each) for each in values["ids"]]
        thinking = values.get("thinking", 0)
        reports[name] = SimpleNamespace(measured=measured, outcomes=outcomes, thinking=thinking)
    monkeypatch.setattr(judge, "read_report", lambda path: reports[path.stem])
    return broken(judge.promises(directory, "3.6.1"))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"engine": "MNN 3.5.0"}, "engines beside the exporting one"),  # M14
        ({"dataset_sha256": "b"}, "golden sets beside the candidate's"),
        ({"ids": ("2", "1")}, "contenders that were asked other samples"),
    ],
)
def test_contenders_that_were_not_asked_the_same_are_noticed(
    other: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, tmp_path, {}) == {}
    assert told(monkeypatch, tmp_path, other) == {name: 1}


def test_a_candidate_that_thinks_is_noticed_and_an_incumbent_that_does_is_not_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, tmp_path, {"thinking": 3}) == {}
    measured = SimpleNamespace(engine="MNN 3.6.1", dataset_sha256="a")
    thinking_twice = SimpleNamespace(measured=measured, outcomes=[], thinking=2)
    monkeypatch.setattr(judge, "read_report", lambda path: thinking_twice)
    assert broken(judge.promises(tmp_path, "3.6.1")) == {"candidate's answers that think": 2}  # M08


def test_an_artefact_of_another_engines_converter_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, tmp_path, {})
    assert broken(judge.promises(tmp_path, "3.4.0")) == {"engines beside the exporting one": 1}  # M14
