"""Which runs stay on disk: the rule of trainer/forget.py, point by point."""

import os
import shutil
from pathlib import Path

import pytest

from intentloop.errors import ContractError, UnavailableError
from trainer import forget, rule, runner
from trainer.settings import TrainerSection

SMALL = ("spec.json", "logs/heal.log", "heal/manifest.json", "heal/training-losses.svg", "freeze/train.jsonl")
BIG = (
    "merge/model.safetensors",
    *(f"export/drop1/{name}" for name in ("llm.mnn", "llm.mnn.weight", "t.mtok", "embeddings_bf16.bin")),
)
RELEASED = ("publish/release/llm.mnn", "publish/release/manifest.json")


def make_run(work: Path, index: int, judged: bool = True) -> Path:
    directory = work / f"run{index}"
    for name in (*SMALL, *BIG, *RELEASED):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x")
    os.utime(directory / "spec.json", (index, index))
    if judged:
        (work / forget.VERDICTS).mkdir(exist_ok=True)
        (work / forget.VERDICTS / f"{directory.name}.json").write_bytes(b"{}")
    return directory


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_older_runs_go_and_of_those_that_stay_only_the_newest_keeps_its_weights(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, index) for index in range(5)]
    forget.forget(tmp_path, keep_runs=3)
    assert [run.exists() for run in runs] == [False, False, True, True, True]
    assert files(runs[2]) == files(runs[3]) == {*SMALL, *RELEASED}
    assert files(runs[4]) == {*SMALL, *BIG, *RELEASED}
    assert len(list((tmp_path / forget.VERDICTS).iterdir())) == 5


def test_a_run_without_a_verdict_stays_whole_until_it_is_too_old(tmp_path: Path) -> None:
    old, waiting, newest = (
        make_run(tmp_path, 0, judged=False),
        make_run(tmp_path, 1, judged=False),
        make_run(tmp_path, 2),
    )
    forget.forget(tmp_path, keep_runs=2)
    assert [run.exists() for run in (old, waiting, newest)] == [False, True, True]
    assert files(waiting) == {*SMALL, *BIG, *RELEASED}


def test_what_is_no_run_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "first" / "artefact").mkdir(parents=True)
    (tmp_path / "first" / "artefact" / "llm.mnn").touch()
    for index in range(3):
        make_run(tmp_path, index)
    forget.forget(tmp_path, keep_runs=1)
    assert (tmp_path / "first" / "artefact" / "llm.mnn").exists()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(bytes(1_000_000))
    return directory


def test_the_room_that_a_run_needs_is_counted_in_copies_of_the_base(base: Path) -> None:
    quant = rule.QuantRule(quantisers=("rtn", "awq"), quant_blocks=(64,), lm_quant_bit=8)
    rules = rule.LineRule(prune=rule.PruneRule(layers_to_drop=(4, 6)), quant=quant)
    # 1 merged + 2 × (1 pruned + 1 healed + 1 folded + 3 candidates × 8/16) = 10 copies, and a fifth for the rest
    assert forget.needed_bytes(base, rules) == 12_000_000


def test_every_quantiser_that_folds_takes_a_copy_for_each_block(base: Path) -> None:
    quant = rule.QuantRule(quantisers=("awq", "llmcompressor"), quant_blocks=(32, 64), lm_quant_bit=8)
    rules = rule.LineRule(prune=rule.PruneRule(layers_to_drop=(4,)), quant=quant)
    # 1 merged + 1 pruned + 1 healed + 4 folded + 5 candidates × 8/16 = 9.5 copies, and a fifth for the rest
    assert forget.needed_bytes(base, rules) == 11_400_000


def test_too_little_room_is_told_with_both_figures(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = rule.LineRule(prune=rule.PruneRule(layers_to_drop=(4,)))
    needed, usual = forget.needed_bytes(base, rules), shutil.disk_usage(base)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usual._replace(free=needed))
    forget.require_room(base, base, rules)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usual._replace(free=needed - 1))
    with pytest.raises(UnavailableError, match=r"needs 0\.0 GB .* has 0\.0 GB"):
        forget.require_room(base, base, rules)


def test_the_base_is_the_rules_or_the_settings_but_never_two(base: Path) -> None:
    theirs = rule.LineRule(model_name_or_path=str(base))
    assert runner.base_of(TrainerSection(), theirs) == (base.resolve(), "base")
    assert runner.base_of(TrainerSection(base=base, base_name="Q"), theirs) == (base.resolve(), "Q")
    assert runner.base_of(TrainerSection(base=base, base_name="Q"), rule.LineRule()) == (base.resolve(), "Q")
    with pytest.raises(ContractError, match="keep one of them"):
        runner.base_of(TrainerSection(base=base.parent), theirs)
    with pytest.raises(ContractError, match=r"'Qwen/Qwen3-0\.6B' is no directory"):
        runner.base_of(TrainerSection(), rule.LineRule(model_name_or_path="Qwen/Qwen3-0.6B"))
