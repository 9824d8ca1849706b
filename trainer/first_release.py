"""Where does version 1 come from? The base model as it is: rounded, exported, measured, signed, and not trained.

`python -m trainer.first_release --base DIRECTORY --golden FILE --rule FILE --out DIRECTORY`; the runner does so when
the registry is empty, so that phones have something to run, and to be wrong with.
"""

import argparse
import logging
import shutil
import time
from pathlib import Path

from intentloop import prompt
from intentloop.release import Manifest, StepRecord
from trainer import check, converter, export_checks, judge, publish, quantise, rule, step
from trainer.engine import engine_version

log = logging.getLogger("trainer")


def first_release(base: Path, directory: Path, golden: Path, rules: rule.LineRule, created_at_ms: int) -> Manifest:
    """Make version 1 of `base` in `directory`.

    Args:
        golden: Samples as JSON lines; an empty file leaves the release without a measurement.
    Returns:
        The signed manifest; it lies in `directory/release` with the files it names.
    Raises:
        ContractError: the base's template differs from ours, the block does not fit it, or a promise is broken.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    started = time.monotonic()
    artefact = _export(base, directory / "artefact", rules)
    exported = StepRecord(name="export", seconds=_since(started), peak_bytes=step.peak_bytes())
    started = time.monotonic()
    report = None
    if golden.stat().st_size:
        report = judge.run_on_device(artefact, golden, rules.measure, directory / "report.json")
    steps = (exported, StepRecord(name="measure", seconds=_since(started), peak_bytes=step.peak_bytes()))
    block = rules.quant.quant_blocks[0]
    lineage = {"base": publish.base_sha256(base), "prompt": prompt.digest(""), "quantiser": f"rtn {block}"}
    manifest = Manifest(
        version=publish.version(1, lineage),
        previous="",
        base_model=base.name,
        prompt_version=prompt.VERSION,
        engine=engine_version(),
        quantiser=f"rtn w{rules.quant.quant_bit} block {block}",
        layers_dropped=(),
        files=(),
        artefact_bytes=0,
        min_free_bytes=rules.min_free_bytes,
        measured=report.measured if report else None,
        steps=steps if report else steps[:1],
        lineage=lineage,
        reason="first release: the base model, not trained",
        created_at_ms=created_at_ms,
    )
    done = publish.pack(artefact, directory / "release", manifest, report.prefix.is_safe if report else None)
    check.require(publish.promises(directory / "release"), "the first release")
    return done


def _export(base: Path, artefact: Path, rules: rule.LineRule) -> Path:
    """Check that the base fits prompt and block, and convert it."""
    from trainer import checkpoint, dataset

    block = rules.quant.quant_blocks[0]
    dataset.check_template(checkpoint.tokenizer(base))
    quantise.check_blocks(checkpoint.load(base), block)
    with export_checks.watched() as events:
        converter.convert(base, artefact, "rtn", block, rules.quant)
    check.require(export_checks.checks("the base", artefact, base, events), "the first release")
    return artefact


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)


def main() -> None:
    """Read the command line and make version 1."""
    step.prepare_process()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("base", "golden", "rule", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    rules = rule.read(arguments.rule)
    manifest = first_release(arguments.base, arguments.out, arguments.golden, rules, time.time_ns() // 1_000_000)
    accuracy = manifest.measured.accuracy_all.value if manifest.measured else float("nan")
    log.info("%s: %d bytes, accuracy %.3f", manifest.version, manifest.artefact_bytes, accuracy)


if __name__ == "__main__":
    main()
