"""When is an update an adapter, which one goes to the gate, and when does a run go back to a full release?"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from intentloop import gate, prompt
from intentloop.gate import Contender, Evidence, Inconclusive, Outcome, Reject, Release
from intentloop.release import BaseArtefact, Interval, Manifest, ReleaseFile, Rollout, artefact_sha256
from trainer import judge as full_judge
from trainer import publish, run, step
from trainer.adapter_release import export, judge, measure, policy
from trainer.engine import engine_version
from trainer.rule import AdapterRule, LineRule


def manifest(version: str, kind: Any = "full", on: Manifest | None = None, **changed: Any) -> Manifest:
    return Manifest(
        **{
            "version": version,
            "previous": "",
            "base_model": "m",
            "prompt_version": prompt.VERSION,
            "engine": engine_version(),
            "quantiser": "rtn",
            "layers_dropped": (),
            "files": (ReleaseFile(name="llm.mnn", size_bytes=1, sha256=version, md5=""),),
            "artefact_bytes": 1,
            "min_free_bytes": 1,
            "measured": None,
            "steps": (),
            "lineage": {"base": "b"},
            "reason": "",
            "created_at_ms": 1,
            "kind": kind,
            "base": BaseArtefact(version=on.version, sha256=artefact_sha256(on.files)) if on else None,
            **changed,
        }
    )


def released(adapters: int = 0, refused: str = "", misfit: str = "") -> policy.Released:
    full = manifest("v1")
    return policy.Released(current=full, base=full, adapters=adapters, refused=refused, misfit=misfit)


@pytest.mark.parametrize(
    ("asked", "state", "kind", "words"),
    [
        ("full", released(), "full", "asked for"),
        ("adapter", None, "full", "nothing is released"),
        ("adapter", released(misfit="another prompt"), "full", "another prompt"),
        ("adapter", released(adapters=99, refused="x"), "adapter", "asked for"),
        ("auto", released(adapters=5), "adapter", "carries 5"),
        ("auto", released(adapters=6), "full", "6 adapters stand on v1, at most 6"),
        ("auto", released(refused="faults 0.2"), "full", "the gate refused an adapter on v1: faults 0.2"),
        ("auto", released(misfit="another engine"), "full", "another engine"),
    ],
)
def test_the_written_rule_says_which_kind_comes_next(
    asked: Any, state: policy.Released | None, kind: str, words: str
) -> None:
    found, reason = policy.choose(AdapterRule(release_kind=asked), state)
    assert found == kind
    assert words in reason


class FakeRegistry:
    """Releases in memory, their directories under `root`."""

    def __init__(self, root: Path, *manifests: Manifest) -> None:
        self._root = root
        self._manifests = {each.version: each for each in manifests}
        for each in manifests:
            (root / each.version).mkdir()
            name = "lora.mnn" if each.kind == "adapter" else "llm.mnn"
            (root / each.version / name).write_text(each.version)
            (root / each.version / "manifest.json").write_bytes(msgspec.json.encode(each))

    async def current(self) -> Rollout | None:
        return Rollout(version=list(self._manifests)[-1]) if self._manifests else None

    async def versions(self) -> list[str]:
        return list(self._manifests)

    async def manifest(self, version: str) -> Manifest:
        return self._manifests[version]

    async def directory(self, version: str) -> Path:
        return self._root / version


def survey(tmp_path: Path, rule: AdapterRule, *manifests: Manifest) -> policy.Ground:
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    (source / "config.json").write_text("{}")
    known = publish.base_sha256(source)
    fitting = [msgspec.structs.replace(each, lineage={"base": known}) for each in manifests]
    releases = tmp_path / "releases"
    releases.mkdir()
    registry: Any = FakeRegistry(releases, *fitting)
    return asyncio.run(policy.survey(registry, source, rule, tmp_path / "runs" / "run"))


AUTO = AdapterRule(release_kind="auto", max_in_row=2)


def test_each_adapter_in_a_row_stands_on_the_same_base_and_replaces_the_one_before(tmp_path: Path) -> None:
    full = manifest("v1")
    ground = survey(tmp_path, AUTO, full, manifest("v2", "adapter", full))
    assert (ground.kind, ground.previous) == ("adapter", "v2")
    assert Path(ground.base_release).name == "v1"
    incumbent = {path.name: path.read_text() for path in Path(ground.incumbent).iterdir()}
    assert incumbent == {"llm.mnn": "v1", "lora.mnn": "v2"}  # what phones run now, nothing of an earlier adapter


def test_as_many_adapters_as_the_rule_allows_are_followed_by_a_full_release(tmp_path: Path) -> None:
    full = manifest("v1")
    ground = survey(tmp_path, AUTO, full, manifest("v2", "adapter", full), manifest("v3", "adapter", full))
    assert (ground.kind, ground.base_release, ground.previous) == ("full", "", "v3")
    assert (Path(ground.incumbent) / "lora.mnn").read_text() == "v3"


def test_a_base_of_another_model_prompt_or_engine_carries_no_adapter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    fitting = manifest("v1", lineage={"base": publish.base_sha256(tmp_path)})
    assert policy.misfit(fitting, tmp_path) == ""
    for changed, words in (
        ({"lineage": {"base": "x"}}, "another base model"),
        ({"prompt_version": "p0"}, "another prompt"),
        ({"engine": "MNN 1"}, "another engine"),
    ):
        assert words in policy.misfit(msgspec.structs.replace(fitting, **changed), tmp_path)


def score(name: str, right: int, size: int, of: int = 100) -> measure.Score:
    outcomes = tuple(
        Outcome(sample_id=str(index), intent="闲逛", said="闲逛" if index < right else "场景购物")
        for index in range(of)
    )
    return measure.Score(
        candidate=export.Candidate(name=name, rank=4, storage="int8", update_bytes=size),
        accuracy=gate.accuracy(outcomes),
        contender=Contender(version=name, outcomes=outcomes, artefact_bytes=size, ttft_p95_ms=1),
    )


def test_the_smallest_adapter_as_good_as_the_best_is_chosen() -> None:
    scores = [score("r16", 90, 400), score("r8", 89, 200), score("r4", 80, 100)]
    assert measure.choose(scores, 0.01).candidate.name == "r8"
    assert measure.choose(scores, 0.0).candidate.name == "r16"
    assert measure.choose(scores, 0.2).candidate.name == "r4"


def test_golden_is_spared_when_dev_shows_a_broken_limit_or_no_gain_at_all() -> None:
    rule = LineRule()
    better, same, worse = score("b", 90, 1), score("s", 70, 1), score("w", 30, 1)
    assert measure.rehearse(better, same.contender, rule).reaches
    assert not measure.rehearse(worse, same.contender, rule).reaches
    assert not measure.rehearse(same, same.contender, rule).reaches  # fixes none of the incumbent's errors


def test_a_gain_that_dev_cannot_rule_out_still_goes_to_the_gate() -> None:
    def told(low: float, high: float) -> Evidence:
        known = Interval(value=0.7, low=0.6, high=0.8, samples=100)
        return Evidence(
            accuracy=known, faults=known, gain_all=Interval(value=(low + high) / 2, low=low, high=high, samples=100)
        )

    assert measure.reaches(Inconclusive((), told(-0.05, 0.05)))
    assert not measure.reaches(Inconclusive((), told(-0.05, 0.0)))
    assert measure.reaches(Release((), told(0.01, 0.05)))
    assert not measure.reaches(Reject((), told(0.01, 0.05)))


def line_at_its_gate(
    directory: Path, kind: Any, judged_on: str, decision: gate.Decision, base_release: str = "x"
) -> step.Run:
    """A run whose adapter steps up to the gate are done; their directories hold only what `run` looks at."""
    (directory / "inputs").mkdir(parents=True)
    for name in ("training", "golden"):
        (directory / "inputs" / f"{name}.jsonl").touch()
    rule = LineRule(adapter=AdapterRule(release_kind=kind))
    spec = step.RunSpec(number=2, base="", base_name="", kind="adapter", base_release=base_release)
    made = step.start(directory, spec, rule)
    do(made, list(run.ADAPTER_STEPS)[:-1], judged_on, decision)
    return made


def do(made: step.Run, names: list[str], judged_on: str, decision: gate.Decision) -> None:
    def work(run: step.Run, target: Path) -> step.Metrics:
        (target / full_judge.DECISION).write_bytes(msgspec.json.encode(decision))
        return {"judged_on": judged_on}

    for name in names:
        step.perform(made, name, run.needs(name), work)


REFUSED = Reject(("no",), Evidence(accuracy=gate.wilson(1, 2), faults=gate.wilson(0, 2)))
ALLOWED = Release(("yes",), Evidence(accuracy=gate.wilson(1, 2), faults=gate.wilson(0, 2)))
OPEN = Inconclusive(("perhaps",), Evidence(accuracy=gate.wilson(1, 2), faults=gate.wilson(0, 2)))


@pytest.mark.parametrize(
    ("kind", "judged_on", "decision", "comes_next"),
    [
        ("auto", "dev", REFUSED, "adapt"),  # no adapter has a chance: the same run goes on as a full one
        ("auto", "golden", REFUSED, None),  # golden was asked: this run is at its end
        ("adapter", "dev", REFUSED, None),  # adapters only
        ("auto", "golden", ALLOWED, "adapter-publish"),
    ],
)
def test_a_run_falls_back_to_the_full_line_only_while_golden_is_untouched(
    tmp_path: Path, kind: str, judged_on: str, decision: gate.Decision, comes_next: str | None
) -> None:
    made = line_at_its_gate(tmp_path / "run", kind, judged_on, decision)
    assert run.next_step(made) == comes_next
    if comes_next is None:
        assert run.result(made) == run.Result(REFUSED, None, None)


@pytest.mark.parametrize(
    ("kind", "judged_on", "decision", "refused"),
    [
        ("auto", "golden", REFUSED, "no"),
        ("adapter", "golden", REFUSED, "no"),  # counts once `auto` is asked for
        ("auto", "golden", OPEN, ""),
        ("auto", "golden", ALLOWED, ""),
        ("auto", "dev", REFUSED, ""),  # the full release that was tried instead is refused, too
        ("adapter", "dev", REFUSED, ""),
    ],
)
def test_only_an_adapter_that_golden_samples_refused_bars_others_from_its_base(
    tmp_path: Path, kind: str, judged_on: str, decision: gate.Decision, refused: str
) -> None:
    full, runs = manifest("v1"), tmp_path / "runs"
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "manifest.json").write_bytes(msgspec.json.encode(full))
    made = line_at_its_gate(tmp_path / "run", kind, judged_on, decision, str(tmp_path / "v1"))
    if judge.falls_back(made):
        do(made, list(run.STEPS)[:-1], judged_on, REFUSED)
        assert run.result(made).release is None
    policy.note(runs, made.spec, judge.refused_on_golden(made))
    assert (policy.refused(runs, "v1"), policy.refused(runs, "v9")) == (refused, "")
    ground = survey(tmp_path, AUTO, full)
    assert ground.kind == ("full" if refused else "adapter")
    assert ("the gate refused an adapter on v1: no" in ground.reason) is bool(refused)


def test_a_full_run_that_is_refused_bars_no_adapter(tmp_path: Path) -> None:
    made = step.start(tmp_path / "run", step.RunSpec(number=2, base="", base_name=""), LineRule())
    policy.note(tmp_path, made.spec, judge.refused_on_golden(made))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_only_the_steps_that_sign_are_given_the_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(publish.PRIVATE_KEY, "secret")
    made = line_at_its_gate(tmp_path / "run", "auto", "golden", ALLOWED)
    given = {name for name in run.MODULES if publish.PRIVATE_KEY in run.command(name, made)[1]}
    assert given == {"publish", "adapter-publish"}


def test_a_refusal_on_dev_says_that_golden_is_untouched() -> None:
    choice = measure.Choice(candidate=score("r4", 1, 1).candidate, rehearsal=REFUSED, reaches=False)
    assert judge.refuse(choice).reasons == ("on dev, golden untouched: no",)
