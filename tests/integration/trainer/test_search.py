"""The search on the tiny model: what was measured or healed before is not done again, and every cut has its reason."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainer import checkpoint, export_checks, heal, measure, prune, quantise, rule, search_device, search_probe, step
from trainer.engine import Engine
from trainer.search_ledger import Entry, Ledger

from .conftest import KilledRun

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that any engine of a contestant is asked from now on."""
    prompts: list[str] = []

    class Counting(Engine):
        def answer(self, rendered_prompt: str, max_tokens: int = 40) -> Any:
            prompts.append(rendered_prompt)
            return super().answer(rendered_prompt, max_tokens)

    monkeypatch.setattr(search_device, "Engine", Counting)
    return prompts


def test_a_finished_measurement_is_read_and_not_repeated(killed_run: KilledRun, asked: list[str]) -> None:
    run = killed_run.run
    candidates = [each for each in quantise.read_candidates(run) if not each.fallback]
    again = measure.contest(run, candidates)
    assert asked == []
    recorded = run.metrics("measure")
    assert [score.accuracy for score in again] == [recorded[score.candidate.name]["accuracy"] for score in again]
    assert measure.choose([score for score in again if not score.left], run.rule) == measure.read_choice(run)


def test_a_measurement_that_was_killed_half_way_asks_only_what_is_missing(
    killed_run: KilledRun, asked: list[str], tmp_path: Path
) -> None:
    run = killed_run.run
    chosen = measure.read_choice(run).candidate
    data = run.step("freeze") / "dev.jsonl"
    whole = contestant(run, chosen, Ledger(run.directory / search_probe.LEDGER)).entry()
    ledger = Ledger(tmp_path)
    half = contestant(run, chosen, ledger)
    for path in (run.directory / search_probe.LEDGER).glob("*.json"):
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        ledger.write(path.stem, msgspec.structs.replace(entry, answers=entry.answers[:7]))
    count = len(data.read_bytes().splitlines())
    answers = half.answers(count)
    assert len(asked) == count - 7
    assert [each.outcome for each in answers] == [each.outcome for each in whole.answers]  # greedy: the same again


def contestant(run: step.Run, candidate: quantise.Candidate, ledger: Ledger) -> search_device.Contestant:
    artefact, reference = run.step("export") / candidate.name, run.directory / candidate.reference
    return search_device.Contestant(artefact, run.step("freeze") / "dev.jsonl", reference, run.rule, ledger)


def test_the_search_is_told_as_table_picture_and_data(killed_run: KilledRun) -> None:
    directory = killed_run.run.step("measure")
    told = json.loads((directory / "candidates.json").read_bytes())
    assert told["chosen"] == measure.read_choice(killed_run.run).candidate.name
    assert {score["candidate"]["name"] for score in told["scores"]} == {"drop1-rtn64", "drop1-awq64"}
    assert f"| {told['chosen']} |" in (directory / "pareto.md").read_text(encoding="utf-8")
    assert (directory / "pareto.svg").read_bytes().startswith(b"<?xml")


def test_what_must_hold_of_an_export_is_recorded_for_every_candidate(killed_run: KilledRun) -> None:
    manifest = killed_run.run.manifest("export")
    assert manifest is not None
    for candidate in quantise.read_candidates(killed_run.run):
        found = [check for check in manifest.checks if check.name.startswith(f"{candidate.name}:")]
        assert len(found) == 3
        assert all(check.value == 0 for check in found)


def test_an_artefact_that_would_sample_or_think_is_noticed(killed_run: KilledRun, tmp_path: Path) -> None:
    source = killed_run.run.step("export") / measure.read_choice(killed_run.run).candidate.name
    artefact = shutil.copytree(source, tmp_path / "artefact")
    assert export_checks.unlike_a_phone(artefact) == []
    config = json.loads((artefact / "config.json").read_bytes())
    (artefact / "config.json").write_text(json.dumps({**config, "sampler_type": "mixed"}))
    assert export_checks.unlike_a_phone(artefact) == ["sampler_type"]
    (artefact / "config.json").write_text(json.dumps({**config, "jinja": {"context": {"enable_thinking": True}}}))
    assert export_checks.unlike_a_phone(artefact) == ["enable_thinking"]


def test_a_model_whose_lists_do_not_fit_its_layers_is_noticed(killed_run: KilledRun) -> None:
    model = checkpoint.load(killed_run.run.step("prune") / "drop1")
    assert prune.uneven(model, 7) == []
    model.config.layer_types = ["full_attention"] * 8  # M02
    model.model.layers[3].self_attn.layer_idx = 4  # M01
    assert prune.uneven(model, 7) == ["layer_types", "layer_idx"]


@pytest.fixture(scope="module")
def wide(killed_run: KilledRun, tmp_path_factory: pytest.TempPathFactory) -> step.Run:
    """The same merged model in a search over two numbers of layers and both ways of healing, pruned so far."""
    directory, old = tmp_path_factory.mktemp("search"), killed_run.run
    for name in ("freeze", "merge", "influence"):
        shutil.copytree(old.step(name), directory / name)
    replace = msgspec.structs.replace
    whole = old.metrics("export")["drop1-rtn64_bytes"]
    rules = replace(
        old.rule,
        prune=replace(old.rule.prune, layers_to_drop=(0, 1), healing="both", heal_epochs=0.3),
        gate=replace(old.rule.gate, max_artefact_bytes=whole),
        search=rule.SearchRule(shares=(0.5,), latency_runs=1),
    )
    run = step.start(directory, old.spec, rules)
    step.perform(run, "prune", prune.NEEDS, prune.prune)
    return run


@pytest.fixture(scope="module")
def healed(wide: step.Run) -> Iterator[tuple[step.Run, list[str]]]:
    """The search healed, killed after the first variant and before the manifest; and what was trained after that."""
    tried = heal.variants(prune.kept(wide), "both")
    heal.heal_all(wide, tried[:1])
    trained: list[str] = []
    usual = heal._heal

    def note(run: step.Run, variant: heal.Variant, data: Any, prompts: list[str]) -> step.Metrics:
        trained.append(variant.name)
        return usual(run, variant, data, prompts)

    hashes = step.file_hashes

    def die(directory: Path) -> dict[str, str]:
        if directory == wide.step("heal"):
            raise KeyboardInterrupt
        return hashes(directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heal, "_heal", note)
        patch.setattr(step, "file_hashes", die)
        with pytest.raises(KeyboardInterrupt):
            step.perform(wide, "heal", heal.NEEDS, heal.heal)
        patch.setattr(step, "file_hashes", hashes)
        step.perform(wide, "heal", heal.NEEDS, heal.heal)
        yield wide, trained


def test_layers_that_can_never_be_small_enough_leave_before_they_are_healed(wide: step.Run) -> None:
    left = wide.metrics("prune")["left"]
    assert list(left) == ["drop0"]
    assert "the limit is" in left["drop0"]
    assert not (wide.step("prune") / "drop0").exists()
    assert prune.kept(wide) == [1]


def test_a_healed_model_is_not_healed_again_after_a_kill(healed: tuple[step.Run, list[str]]) -> None:
    assert healed[1] == ["drop1-distil"]


def test_the_better_way_of_healing_goes_on_and_every_other_has_its_reason(healed: tuple[step.Run, list[str]]) -> None:
    run, _ = healed
    metrics = run.metrics("heal")
    chosen = {f"{drop}-{method}" for drop, method in metrics["healing"].items()}
    names = {"drop1-lora", "drop1-distil"}
    assert chosen | set(metrics["left"]) == names
    assert not chosen & set(metrics["left"])
    (name,) = chosen
    assert metrics["probe_accuracy"][name] == max(metrics["probe_accuracy"].values())
    checkpoint.load(run.step("heal") / "drop1")  # refuses what is incomplete
    assert set(metrics["variants"]) == names
    assert not (run.directory / step.UNFINISHED).exists()
    assert not (run.directory / search_probe.PROBES).exists()
