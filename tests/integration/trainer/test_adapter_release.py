"""An adapter learns beside the weights that phones have, and the engine answers with base and adapter together."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from intentloop.adapters import signing
from intentloop.errors import ContractError
from intentloop.release import artefact_sha256, check_base
from tests.integration.trainer.conftest import BASE, RULE, Keys
from trainer import dataset, engine, publish, rule, run, step, tiny_corpus, tune
from trainer import freeze as frozen
from trainer.adapter_release import base, export, graph, judge, measure, train
from trainer.adapter_release import publish as adapter_publish
from trainer.engine import Engine

PRECISE = {"precision": "high", "memory": "high"}  # the engine as a calculator, without the device's short cuts


def logits(model: Any, runner: Engine, text: str, said: str) -> np.ndarray[Any, Any]:
    """What does the model of torch score for each token of `said` after `text`?"""
    read, answer = runner.tokens(text), runner.tokens(said)
    with torch.no_grad():
        scores: np.ndarray[Any, Any] = (
            model(input_ids=torch.tensor([read + answer])).logits[0, len(read) - 1 : -1].numpy()
        )
    return scores


@pytest.fixture(scope="module")
def sample() -> tuple[str, str]:
    made = tiny_corpus.samples(9, 1, 1.0)[0]
    return dataset.prompt_text(made), dataset.answer_text(made)


def test_training_sees_the_numbers_that_the_engine_computes_with(
    first: Path, sample: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import checkpoint

    for name, value in PRECISE.items():
        monkeypatch.setitem(engine.CONFIGURATION, name, value)
    runner = Engine(first, reuse=False)
    told = runner.forced_logits(*sample)
    rebuilt = logits(base.load(first, BASE, ()), runner, *sample)
    before_rounding = logits(checkpoint.load(BASE), runner, *sample)
    assert np.abs(rebuilt - told).max() < 1e-3
    assert np.abs(before_rounding - told).max() > 0.05  # so the first line says something


def test_a_base_that_was_cut_otherwise_is_refused(first: Path) -> None:
    with pytest.raises(Exception, match="the release was made from another base"):
        base.load(first, BASE, (2,))


class Made(msgspec.Struct, frozen=True):
    """An adapter run done in this process, step after step, and what its base's weight file was before."""

    run: step.Run
    weights_sha256: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, first: Path, golden_file: Path, release_keys: Keys) -> Made:
    directory = tmp_path_factory.mktemp("adapter-run")
    (directory / "inputs").mkdir()
    dataset.write(directory / "inputs" / "training.jsonl", tiny_corpus.samples(5, 120, 0.5))
    dataset.write(directory / "inputs" / "golden.jsonl", dataset.read(golden_file))
    spec = step.RunSpec(
        number=2,
        base=str(BASE),
        base_name="tiny-qwen3",
        incumbent=str(first),
        previous=publish.read_manifest(first).version,
        reason="a test asked for it",
        created_at_ms=1,
        kind="adapter",
        base_release=str(first),
    )
    before = step.sha256(first / base.WEIGHTS)
    current = step.start(directory, spec, small_rule())
    work: dict[str, step.Work] = {
        "freeze": frozen.freeze,
        train.NAME: train.train,
        export.NAME: export.export,
        measure.NAME: measure.measure,
        judge.NAME: judge.judge,
        adapter_publish.NAME: adapter_publish.publish,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(publish.PRIVATE_KEY, release_keys.private)
        while (name := run.next_step(current)) is not None:
            step.perform(current, name, run.needs(name), work[name])
    return Made(current, before)


def small_rule() -> rule.LineRule:
    """As little training as still beats the untrained base; the gate asks for a gain and nothing else."""
    usual = rule.read(RULE)
    replace = msgspec.structs.replace
    lax = {"min_accuracy": 0, "min_recall": 0, "max_recall_loss": 1, "max_loss": 1, "min_fix_ratio": 0}
    return replace(
        usual,
        tune=replace(usual.tune, num_train_epochs=2),
        split=replace(usual.split, dev_samples=24, calibration_samples=8),
        gate=replace(usual.gate, max_fault_ratio=1, **lax),
        adapter=replace(usual.adapter, release_kind="auto", ranks=(4,)),
        measure=replace(usual.measure, speed_lengths=(128,), stability_runs=5),
    )


def test_an_adapter_is_released_alone_with_the_base_it_needs_and_is_better(
    made: Made, first: Path, release_keys: Keys
) -> None:
    ended = run.result(made.run)
    assert ended.manifest is not None
    assert ended.release is not None
    assert ended.manifest.kind == "adapter"
    assert [file.name for file in ended.manifest.files] == ["lora.mnn"]
    full = publish.read_manifest(first)
    check_base(ended.manifest, full)
    assert ended.manifest.base is not None
    assert ended.manifest.base.sha256 == artefact_sha256(full.files)
    assert signing.verify(ended.manifest, release_keys.public)
    assert ended.manifest.artefact_bytes == (ended.release / "lora.mnn").stat().st_size < full.artefact_bytes
    assert ended.manifest.measured is not None
    assert full.measured is not None
    assert ended.manifest.measured.accuracy_all.low > full.measured.accuracy_all.value
    assert step.sha256(first / base.WEIGHTS) == made.weights_sha256


@pytest.mark.parametrize(("storage", "apart"), [("fp16", 0.01), ("int8", 0.2)])
def test_the_engine_adds_to_the_base_what_training_added(
    made: Made, first: Path, sample: tuple[str, str], monkeypatch: pytest.MonkeyPatch, storage: str, apart: float
) -> None:
    from peft import PeftModel

    for name, value in PRECISE.items():
        monkeypatch.setitem(engine.CONFIGURATION, name, value)
    runner = Engine(made.run.step(export.NAME) / "engines" / f"r4-{storage}", reuse=False)
    alone = base.load(first, BASE, ())
    before = logits(alone, runner, *sample)
    trained = PeftModel.from_pretrained(alone, made.run.step(train.NAME) / "r4").eval()
    after = logits(trained, runner, *sample)
    told = runner.forced_logits(*sample)
    assert np.abs(told - after).max() < apart
    assert np.abs(told - before).max() > 2 * apart  # an adapter that does nothing would be near here


def test_the_choice_was_measured_and_dev_left_it_a_chance(made: Made) -> None:
    choice = measure.read_choice(made.run)
    assert choice.reaches
    told = made.run.metrics(measure.NAME)
    assert (
        told[choice.candidate.name]["accuracy"]
        >= max(told[f"r4-{each}"]["accuracy"] for each in ("int8", "fp16")) - 0.01
    )
    assert {candidate.name for candidate in export.read_candidates(made.run)} == {"r4-int8", "r4-fp16"}
    assert made.run.metrics(judge.NAME)["judged_on"] == "golden"


def test_a_base_whose_files_are_not_the_released_ones_trains_nothing(first: Path, tmp_path: Path) -> None:
    for path in first.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    train.check_files(tmp_path)
    weights = bytearray((tmp_path / base.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (tmp_path / base.WEIGHTS).write_bytes(weights)
    with pytest.raises(Exception, match="its manifest says"):
        train.check_files(tmp_path)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_an_adapter_is_trained_only_beside_a_base_that_the_engine_computes_with(
    factor: float, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made.run.directory, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / train.NAME)
    again, load = step.Run(tmp_path / "run"), base.load

    def spoiled(artefact: Path, source: Path, dropped: Any) -> Any:
        model = load(artefact, source, dropped)
        model.model.layers[0].mlp.down_proj.weight.data *= factor
        return model

    monkeypatch.setattr(base, "load", spoiled)
    monkeypatch.setattr(tune, "train", lambda *_: {"best_eval_loss": 0.1})
    if factor == 1:
        step.perform(again, train.NAME, train.NEEDS, train.train)
        return
    with pytest.raises(
        ContractError, match=r"KL of the device's base to the one trained on is .*, must be at most 0\.01"
    ):
        step.perform(again, train.NAME, train.NEEDS, train.train)


def test_int8_takes_fewer_bytes_than_fp16(made: Made) -> None:
    sizes = {candidate.storage: candidate.update_bytes for candidate in export.read_candidates(made.run)}
    assert sizes["int8"] < sizes["fp16"]
    assert graph.GRAPH not in {path.name for path in (made.run.step(export.NAME) / "files" / "r4-int8").iterdir()}
