"""The loop turns: phones' logs become a better model that the same phones then run, whatever is killed meanwhile."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.crash.stores import ApacheBroker
from tests.end_to_end.conftest import Run

SMALL = ("--phones", "120", "--golden", "150", "--hard-new", "110")
STEPS = ["freeze", "adapt", "merge", "influence", "prune", "heal", "quantise", "export", "measure", "gate"]
DEMO_TIMEOUT_S = 960  # the demo itself gives up after 900 s


def assert_the_loop_turned(run: Run) -> dict[str, Any]:
    code = run.process.wait(DEMO_TIMEOUT_S)
    assert code == 0, run.text()
    report = run.report()
    first, last = report["releases"][0], report["releases"][-1]
    assert len(report["releases"]) >= 2
    assert last["accuracy_weak"]["low"] > first["accuracy_weak"]["high"]
    assert last["accuracy_all"]["value"] > first["accuracy_all"]["value"]
    assert [step["name"] for step in last["steps"]] == STEPS
    assert all(release["artefact_bytes"] > 100_000 for release in report["releases"])
    assert report["events_lost"] == 0
    assert report["events_sent"] == report["events_accounted"] > 1_000
    assert report["samples_picked"] >= report["samples_labelled"] > 0
    assert 110 <= report["samples_hard"] < report["samples_labelled"]
    assert report["samples_to_people"] > 0
    assert report["triggers_emitted"] > 0
    assert 0.8 < report["teacher_agreement_ratio"] < 0.97  # they are wrong about 5 % and 7 %
    assert report["label_cost"] > 0
    assert report["phones_by_version"][last["version"]] > 100
    assert "simulated" in run.text()
    return report


def test_the_demo_ends_well_although_every_process_is_killed_once(start: Callable[..., Run], tmp_path: Any) -> None:
    run = start("demo", *SMALL, "--report", str(tmp_path / "run0" / "report.json"))
    run.wait_for(lambda: "phones" in run.pids(), 120, "the phones' start")
    for name in ("gateway", "streams", "workers", "phones", "redis", "teacher-qwen", "teacher-kimi"):
        time.sleep(4)
        kill(run, name)
    run.wait_for(lambda: "retrain requested" in run.text(), 200, "a retrain request")
    run.wait_for(lambda: any("trainer.adapt" in line for line in command_lines(run)), 60, "training")
    kill(run, "trainer")
    report = assert_the_loop_turned(run)
    killed = {"gateway", "streams", "workers", "phones", "redis", "teacher-qwen", "teacher-kimi", "trainer"}
    assert {name for name, count in report["restarts"].items() if count} == killed


@pytest.mark.needs_apache_kafka
def test_the_demo_runs_on_a_real_apache_kafka_even_one_that_is_killed(start: Callable[..., Run], tmp_path: Any) -> None:
    broker = ApacheBroker(tmp_path)
    try:
        run = start("demo", *SMALL, "--broker", broker.bootstrap, "--report", str(tmp_path / "run0" / "report.json"))
        run.wait_for(lambda: "phones" in run.pids(), 120, "the phones' start")
        time.sleep(15)
        asyncio.run(broker.kill_and_return(away_s=3))
        report = assert_the_loop_turned(run)
    finally:
        broker.close()
    assert report["broker"] == "configured"
    assert report["restarts"].get("broker") is None, "the demo starts no broker where one is given"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["ctrl_c", "closed_terminal"])
def test_an_interrupted_demo_leaves_no_process_behind(start: Callable[..., Run], number: signal.Signals) -> None:
    run = start("demo", "--phones", "20", "--golden", "20")
    run.wait_for(lambda: "phones" in run.pids(), 120, "the phones' start")
    tree = run.tree()
    assert len(tree) >= 10
    run.process.send_signal(number)
    assert run.process.wait(40) == 130
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert [process.cmdline() for process in alive] == []
    assert not run.report_file.exists()


def test_a_director_that_is_killed_takes_everything_with_it(start: Callable[..., Run]) -> None:
    run = start("demo", "--phones", "20", "--golden", "20")
    run.wait_for(lambda: {"broker", "redis", "trainer"} <= set(run.pids()), 60, "the trainer's start")
    tree = run.tree()
    run.process.kill()
    _, alive = psutil.wait_procs(tree, timeout=15)
    assert [process.cmdline() for process in alive if process.is_running()] == []


def kill(run: Run, name: str) -> None:
    """`kill -9` a process, then wait until another has taken its place."""
    before = run.pids()[name]
    os.kill(before, signal.SIGKILL)
    run.wait_for(lambda: run.pids().get(name, before) != before, 30, f"{name}'s restart")


def command_lines(run: Run) -> list[str]:
    lines = []
    for process in run.tree():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return lines
