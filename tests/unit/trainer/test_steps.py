"""How steps keep their promises: checks in the manifest, logs, kills at every step, one process at a time."""

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from intentloop.errors import ContractError
from intentloop.gate import Evidence, Release
from intentloop.release import Interval
from trainer import check, dataset, judge, rule, run, step


@pytest.fixture
def made(tmp_path: Path) -> step.Run:
    (tmp_path / "inputs").mkdir(parents=True)
    for name in ("training", "golden"):
        dataset.write(tmp_path / "inputs" / f"{name}.jsonl", [])
    return step.start(tmp_path, step.RunSpec(number=2, base="", base_name=""), rule.LineRule())


def test_a_run_killed_while_it_is_written_down_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = step.write_atomically

    def die(path: Path, content: bytes) -> None:
        if path.name == "rule.json":
            raise KeyboardInterrupt
        written(path, content)

    monkeypatch.setattr(step, "write_atomically", die)
    with pytest.raises(KeyboardInterrupt):
        step.start(tmp_path, step.RunSpec(number=2, base="", base_name=""), rule.LineRule())
    assert not (tmp_path / "spec.json").exists()  # by which a run counts as there


@pytest.mark.parametrize(
    ("promise", "holds"),
    [
        (check.at_most("a", 1e-3, 1e-3), True),
        (check.at_most("a", 0.0011, 1e-3), False),
        (check.at_least("a", 1.0, 1.0), True),
        (check.at_least("a", 0.99, 1.0), False),
        (check.at_most("a", float("nan"), 1.0), False),
        (check.at_least("a", float("nan"), 1.0), False),
    ],
)
def test_a_promise_includes_its_limit_and_no_number_that_is_none(promise: check.Check, holds: bool) -> None:
    assert promise.holds is holds


def test_what_must_hold_is_recorded_with_value_and_limit(made: step.Run) -> None:
    promises = (check.at_most("users in two parts", 0, 0), check.at_least("train samples", 30, 20))
    step.perform(made, "freeze", run.needs("freeze"), lambda one, into: step.Findings({"train": 30}, promises))
    manifest = made.manifest("freeze")
    assert manifest is not None
    assert (manifest.metrics, manifest.checks) == ({"train": 30}, promises)


LIBRARIES = {"rtn": "mnn", "hqq": "mnn", "awq": "autoawq", "llmcompressor": "llmcompressor"}


def test_a_step_records_which_version_of_each_quantisers_library_there_is(
    made: step.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package == "autoawq":
            raise importlib.metadata.PackageNotFoundError(package)
        return f"version of {package}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    step.perform(made, "freeze", run.needs("freeze"), lambda one, into: {})
    manifest = made.manifest("freeze")
    assert manifest is not None
    assert set(LIBRARIES) == set(get_args(rule.Quantiser))
    recorded = {name: manifest.versions[name] for name in LIBRARIES.values()}
    expected = {name: f"version of {name}" for name in LIBRARIES.values()}
    assert recorded == {**expected, "autoawq": "absent"}


def test_a_step_records_how_long_its_work_took(made: step.Run) -> None:
    def work(one: step.Run, into: Path) -> step.Metrics:
        time.sleep(0.05)
        return {}

    started = time.monotonic()
    step.perform(made, "freeze", run.needs("freeze"), work)
    passed = time.monotonic() - started
    manifest = made.manifest("freeze")
    assert manifest is not None
    assert 0.05 <= manifest.seconds <= passed + 0.001  # rounded


def test_a_broken_promise_stops_the_line_and_leaves_no_manifest(made: step.Run) -> None:
    broken = (check.at_least("train samples", 30, 20), check.at_most("users in two parts", 2, 0))
    with pytest.raises(ContractError, match="users in two parts is 2, must be at most 0"):
        step.perform(made, "freeze", run.needs("freeze"), lambda one, into: step.Findings({}, broken))
    assert made.manifest("freeze") is None
    assert run.next_step(made) == "freeze"


SLEEPER = """
import sys, time
from pathlib import Path
from trainer import step
def work(one, into):
    (into / "half").write_text("x")
    print("working", flush=True)
    time.sleep(60)
    return {}
step.perform(step.Run(Path(sys.argv[1])), sys.argv[2], tuple(sys.argv[3:]), work)
"""


def _kill_in_the_middle(made: step.Run, name: str) -> None:
    arguments = [sys.executable, "-c", SLEEPER, str(made.directory), name, *run.needs(name)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"working\n"
        os.kill(process.pid, signal.SIGKILL)


def test_a_run_killed_in_any_step_goes_on_at_that_step(made: step.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sure = Interval(value=1.0, low=0.9, high=1.0, samples=100)
    monkeypatch.setattr(judge, "read_decision", lambda *asked: Release((), Evidence(accuracy=sure, faults=sure)))
    done: list[str] = []

    def work(one: step.Run, into: Path) -> step.Metrics:
        done.append(into.name)
        return {}

    for name in run.STEPS:
        _kill_in_the_middle(made, name)
        assert (made.step(name) / "half").exists()
        assert run.next_step(made) == name
        step.perform(made, name, run.needs(name), work)
        assert not (made.step(name) / "half").exists()
    assert done == list(run.STEPS)
    assert run.next_step(made) is None


def _resumable(one: step.Run, into: Path) -> step.Metrics:
    """Work that costs much, unless it was done before a kill."""
    kept = step.unfinished(one, into.name) / "weights"
    resumed = kept.exists()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    return {"resumed": resumed}


def _perform(made: step.Run, name: str) -> step.Metrics:
    step.perform(made, name, run.needs(name), _resumable)
    return made.metrics(name)


def test_what_a_step_can_take_up_again_stays_until_its_manifest_is_there(
    made: step.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("file_hashes", "write_atomically"):  # the step's work is done, its manifest is not
        with monkeypatch.context() as patch:
            patch.setattr(step, function, _interrupt)
            with pytest.raises(KeyboardInterrupt):
                _perform(made, "freeze")
    assert _perform(made, "freeze") == {"resumed": True}
    assert not (made.directory / step.UNFINISHED).exists()


def test_what_a_kill_just_after_the_manifest_left_goes_with_the_next_step(
    made: step.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        _perform(made, "freeze")
    assert step.unfinished(made, "freeze").exists()
    monkeypatch.setattr(step, "file_hashes", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        _perform(made, "adapt")
    assert [path.name for path in (made.directory / step.UNFINISHED).iterdir()] == ["adapt"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_two_processes_on_one_step_take_turns_and_the_later_has_nothing_left_to_do(made: step.Run) -> None:
    program = SLEEPER.replace("time.sleep(60)", "time.sleep(0.5)")
    arguments = [sys.executable, "-c", program, str(made.directory), "freeze", *run.needs("freeze")]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: subprocess.run(arguments, capture_output=True, check=True), range(2)))
    assert sorted(process.stdout for process in both) == [b"", b"working\n"]


def test_a_steps_lines_are_kept_in_the_run(made: step.Run, tmp_path: Path) -> None:
    code = "import sys; from trainer import step; step.main('freeze', ('inputs/training.jsonl',), lambda one, into: {})"
    for _ in range(2):  # a step that is taken up again appends
        subprocess.run([sys.executable, "-c", code, str(made.directory)], check=True, stderr=subprocess.DEVNULL)
        (made.step("freeze") / step.MANIFEST).unlink()
    lines = (made.directory / "logs" / "freeze.log").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 2)[2].split(" in ")[0] for line in lines] == ["freeze: started", "freeze: done"] * 2


def test_of_several_processes_on_a_step_only_the_first_writes(made: step.Run, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from trainer import step\n"
        "def work(one, into): pathlib.Path(sys.argv[1], f'helped-{step.leads()}').touch(); return {}\n"
        "step.main('freeze', ('inputs/training.jsonl',), work)"
    )
    helper = {**os.environ, "RANK": "1"}
    subprocess.run([sys.executable, "-c", code, str(made.directory)], check=True, env=helper)
    assert (tmp_path / "helped-False").exists()
    assert not made.step("freeze").exists()
    assert not (tmp_path / "logs").exists()


def test_only_training_is_shared_by_processes_when_a_rule_asks_for_it(made: step.Run) -> None:
    alone = {name: run.command(name, made)[0][2] for name in run.STEPS}
    assert alone == {**run.STEPS}
    shared = step.start(made.directory, made.spec, rule.LineRule(num_processes=4))
    assert run.command("adapt", shared)[0][2:5] == ["trainer.launch", "4", "trainer.adapt"]
    assert {name for name in run.STEPS if run.command(name, shared)[0][2] == "trainer.launch"} == {"adapt", "heal"}


def test_a_person_is_told_how_far_a_run_is() -> None:
    assert run.whereabouts("merge") == "step 3 of 11: merge"
