"""Search: which layers, healing, quantiser, block and head are best on a phone? A run that stops before the gate.

`python -m trainer.search DIRECTORY [--like RUN] [--rule FILE]`. Data and base are those of another run, or without one
made-up shoppers and the tiny model; whatever that run made, a search is for full releases. The same call again goes on
where it was killed. The golden set stays untouched: `python -m trainer.run DIRECTORY` goes on with the gate and lets
the chosen candidate out.
"""

import argparse
import logging
import shutil
import subprocess
from pathlib import Path

import msgspec

from trainer import dataset, forget, measure, rule, run, step, tiny_corpus

log = logging.getLogger("trainer")

HERE = Path(__file__).resolve().parent
LAST = "measure"


def search(current: step.Run) -> Path:
    """Do what is left of the steps up to the measurement.

    Returns:
        The directory with `candidates.json`, `pareto.md`, `pareto.svg` and `choice.json`.
    Raises:
        StepFailedError: a step ended with an error.
    """
    for name in steps():
        if not step.is_done(current, name, run.needs(name)):
            arguments, environment = run.command(name, current)
            run.check_ended(name, current, subprocess.run(arguments, env=environment, check=False).returncode)
    return current.step(LAST)


def steps() -> list[str]:
    """Which steps does a search do? All up to the measurement, so none that reads the golden set to judge."""
    names = list(run.STEPS)
    return names[: names.index(LAST) + 1]


def prepare(directory: Path, like: Path | None, rules: Path) -> step.Run:
    """Make the search's run directory with data and base of another run; one that is there stays as it is."""
    if (directory / "spec.json").is_file():
        return step.Run(directory)
    inputs = directory / "inputs"
    if like is None:
        inputs.mkdir(parents=True, exist_ok=True)
        dataset.write(inputs / "training.jsonl", tiny_corpus.samples(5, 400, 0.5))
        dataset.write(inputs / "golden.jsonl", tiny_corpus.samples(6, 200, 0.5))
        spec = step.RunSpec(number=2, base=str(HERE / "tiny_qwen3"), base_name="tiny-qwen3", reason="search")
    else:
        shutil.copytree(like / "inputs", inputs, dirs_exist_ok=True)
        reason = f"search with the data of {like.name}"
        spec = msgspec.structs.replace(step.Run(like).spec, reason=reason, kind="full", base_release="")
    return step.start(directory, spec, rule.read(rules))


def main() -> None:
    """Search as the command line says and show the table."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--like", type=Path, help="a run whose data and base are taken")
    parser.add_argument("--rule", type=Path, default=HERE / "search.yaml", help="the grid and all else, as YAML")
    arguments = parser.parse_args()
    with run.alone(arguments.directory.resolve().parent) as work:
        current = prepare(arguments.directory, arguments.like, arguments.rule)
        forget.require_room(work, current.base, current.rule)
        found = search(current)
    for line in (found / "pareto.md").read_text(encoding="utf-8").splitlines():
        log.info("%s", line)
    log.info("chosen: %s; table and picture are in %s", measure.read_choice(current).candidate.name, found)


if __name__ == "__main__":
    main()
