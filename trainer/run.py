"""The model line: freeze → adapt → merge → influence → prune → heal → quantise → export → measure → gate → publish.

Each step is a process of its own and leaves a manifest; a run that was killed goes on at the first step without one.
`next_step` says what to do and does nothing itself; the runner drives it, and `python -m trainer.run RUN_DIRECTORY`
does a prepared run by hand.
"""

import fcntl
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from intentloop import gate
from intentloop.errors import IntentloopError, UnavailableError
from intentloop.release import Manifest
from trainer import judge, publish, step
from trainer.adapter_release import export as adapter_export
from trainer.adapter_release import judge as adapter_judge
from trainer.adapter_release import measure as adapter_measure
from trainer.adapter_release import publish as adapter_publish
from trainer.adapter_release import train as adapter_train

log = logging.getLogger("trainer")

STEPS: Mapping[str, str] = {
    "freeze": "trainer.freeze",  # which data does this run see
    "adapt": "trainer.adapt",  # LoRA on the answers
    "merge": "trainer.merge",  # adapter into weights
    "influence": "trainer.influence",  # which blocks change least
    "prune": "trainer.prune",  # leave K of them out
    "heal": "trainer.heal",  # learn again what the cut took
    "quantise": "trainer.quantise",  # prepare candidates for rounding
    "export": "trainer.export",  # artefacts of the device engine
    "measure": "trainer.measure",  # choose one on the dev set
    "gate": "trainer.judge",  # candidate against incumbent on the golden set
    "publish": "trainer.publish",  # signed release
}


# An update that is an adapter of the released base. Where dev leaves it no chance, `auto` goes on with the line above.
ADAPTER_STEPS: Mapping[str, str] = {
    "freeze": "trainer.freeze",
    adapter_train.NAME: "trainer.adapter_release.train",  # LoRA beside the base's own rounded weights
    adapter_export.NAME: "trainer.adapter_release.export",  # the one file that phones fetch
    adapter_measure.NAME: "trainer.adapter_release.measure",  # choose rank and storage on the dev set
    adapter_judge.NAME: "trainer.adapter_release.judge",  # base and adapter against the incumbent
    adapter_publish.NAME: "trainer.adapter_release.publish",  # signed, naming its base
}
MODULES: Mapping[str, str] = {**STEPS, **ADAPTER_STEPS}

TRAINING = ("adapt", "heal")  # what several processes can share


class StepFailedError(IntentloopError):
    """A step of the line ended with an error; the run can be taken up again after its cause is gone."""


class Result(msgspec.Struct, frozen=True):
    """What came of a run: the gate's decision, and the release if it said yes."""

    decision: gate.Decision
    release: Path | None
    manifest: Manifest | None


def next_step(run: step.Run) -> str | None:
    """Which step is to be done now? None when the line is at its end, which a refusing gate also is."""
    if run.spec.kind == "adapter":
        name = _first_open(run, ADAPTER_STEPS, adapter_judge.NAME)
        if name is not None or not adapter_judge.falls_back(run):
            return name
    return _first_open(run, STEPS, judge.NAME)


def _first_open(run: step.Run, steps: Mapping[str, str], gate_name: str) -> str | None:
    *_, last = steps
    for name in steps:
        if name == last and not isinstance(judge.read_decision(run, gate_name), gate.Release):
            return None
        if not step.is_done(run, name, needs(name)):
            return name
    return None


def result(run: step.Run) -> Result:
    """What came of a run that is at its end?"""
    name = gate_name(run)
    decision = judge.read_decision(run, name)
    if not isinstance(decision, gate.Release):
        return Result(decision, None, None)
    release = run.step("publish" if name == judge.NAME else adapter_publish.NAME) / "release"
    return Result(decision, release, publish.read_manifest(release))


def gate_name(run: step.Run) -> str:
    """Which gate decided a run that is at its end?"""
    adapter = run.spec.kind == "adapter" and not adapter_judge.falls_back(run)
    return adapter_judge.NAME if adapter else judge.NAME


def needs(name: str) -> tuple[str, ...]:
    """Which earlier steps or input files does a step read?"""
    found: tuple[str, ...] = importlib.import_module(MODULES[name]).NEEDS
    return found


def command(name: str, run: step.Run) -> tuple[list[str], dict[str, str]]:
    """How is a step started? Command line and environment; only the last step is given the private key."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    if name not in ("publish", adapter_publish.NAME):
        environment.pop(publish.PRIVATE_KEY, None)
    together = run.rule.num_processes
    launcher = ["trainer.launch", str(together)] if together > 1 and name in TRAINING else []
    return [sys.executable, "-m", *launcher, MODULES[name], str(run.directory)], environment


def whereabouts(name: str) -> str:
    """How far is a run that does this step now?"""
    steps = STEPS if name in STEPS else ADAPTER_STEPS
    return f"step {list(steps).index(name) + 1} of {len(steps)}: {name}"


def check_ended(name: str, run: step.Run, returncode: int) -> None:
    """Did the step end well?

    Raises:
        StepFailedError: it did not, or it left no manifest.
    """
    if returncode != 0 or not step.is_done(run, name, needs(name)):
        raise StepFailedError(f"step {name} ended with {returncode} in {run.directory}; its own lines say why")


def run_line(run: step.Run) -> Result:
    """Do what is left of a run, one process after the other.

    Raises:
        StepFailedError: a step ended with an error.
    """
    while (name := next_step(run)) is not None:
        log.info("%s", whereabouts(name))
        arguments, environment = command(name, run)
        check_ended(name, run, subprocess.run(arguments, env=environment, check=False).returncode)
    return result(run)


@contextmanager
def alone(work: Path) -> Iterator[Path]:
    """Hold the directory of runs; two runs at once would share cores, memory and disk, or even files.

    Raises:
        UnavailableError: another trainer's run is at work there; the job waits.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnavailableError(f"another run is at work in {work}; this one waits") from error
        yield work


def main() -> None:
    """Do the run that the command line names and say what came of it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    directory = Path(sys.argv[1])
    with alone(directory.resolve().parent):
        current = step.Run(directory)
        ended = run_line(current)
    log.info("%s: %s", type(ended.decision).__name__, "; ".join(ended.decision.reasons))
    if (current.step(gate_name(current)) / "candidate.json").is_file():
        report = [sys.executable, "-m", "trainer.report", str(current.directory), "--phones-s", "0"]
        subprocess.run(report, check=True)


if __name__ == "__main__":
    main()
