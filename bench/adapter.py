"""How small is an update that is an adapter? `python -m bench.adapter`; the last line is one JSON object.

A Qwen3-0.6B of real size without six of its 28 layers, randomly initialised, is exported as the line exports it; beside
it stand adapters of all its linear layers, written as the line writes them. `ours` is what a phone with the base
fetches for rank 8 in int8, `peer` what it fetches for a full release. Sizes do not depend on what the weights are.

`--accuracy 400` also trains both on the tiny model, on the same samples and from the same incumbent, and says what the
device engine makes of them on the same golden set (about ten minutes on two cores).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from intentloop.adapters import signing
from trainer import step

OURS = (8, "int8")
OTHERS = ((4, "int8"), (4, "fp16"), (8, "fp16"), (16, "int8"))
TRAINER = Path(step.__file__).parent
GOLDEN_SAMPLES = 300


def main() -> None:
    """Make the artefacts, weigh them, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--accuracy", type=int, default=0, metavar="SAMPLES")
    options = parser.parse_args()
    step.prepare_process()
    with tempfile.TemporaryDirectory() as directory:
        figures = weigh(Path(directory), options.layers)
    if options.accuracy:
        with tempfile.TemporaryDirectory() as directory:
            figures["accuracy"] = compare(Path(directory), options.accuracy)
    print(json.dumps(figures))


def weigh(directory: Path, layers: int) -> dict[str, Any]:
    """How many bytes have full release and adapters?"""
    from trainer import real_size

    source, artefact = directory / "source", directory / "artefact"
    real_size.build(source, layers)
    say(f"a random model of {layers} layers is built")
    real_size.export(source, artefact)
    shutil.rmtree(source)
    peer = sum(path.stat().st_size for path in artefact.iterdir())
    say(f"full release: {peer:,} bytes")
    sizes = {}
    for rank, storage in (OURS, *OTHERS):
        name = f"r{rank}-{storage}"
        sizes[name], _ = real_size.adapter(artefact, rank, storage, directory / name)
        say(f"adapter {name}: {sizes[name]:,} bytes, {sizes[name] / peer:.2%}")
    ours = sizes[f"r{OURS[0]}-{OURS[1]}"]
    ratios = {name: round(size / peer, 4) for name, size in sizes.items()}
    found = {"bench": "adapter", "ours": ours, "peer": peer, "ratio": ours / peer}
    return {**found, "layers": layers, "ratios": ratios}


def compare(directory: Path, samples: int) -> dict[str, Any]:
    """How accurate are an adapter and a full release of the same data, on the tiny model, in the engine?"""
    from trainer import dataset, first_release, measure, publish, rule, run, tiny_corpus
    from trainer.adapter_release import export as adapter_export
    from trainer.adapter_release import measure as adapter_measure

    os.environ[publish.PRIVATE_KEY], _ = signing.generate_keys()  # nobody will check it
    golden = directory / "golden.jsonl"
    dataset.write(golden, tiny_corpus.samples(6, GOLDEN_SAMPLES, 0.5))
    rules = rule.read(TRAINER / "tiny.yaml")
    first_release.first_release(TRAINER / "tiny_qwen3", directory / "first", golden, rules, 1)
    found: dict[str, Any] = {"samples": samples, "golden": GOLDEN_SAMPLES}
    found["incumbent"] = accuracy(directory / "first" / "release", golden, rules, directory)
    for kind in ("adapter", "full"):
        current = prepare(directory / kind, kind, directory / "first" / "release", samples)
        dataset.write(current.directory / "inputs/golden.jsonl", dataset.read(golden))
        say(f"training a {kind} release on {samples} samples")
        run.run_line(current)
        artefact = current.step("export")
        size = 0
        if kind == "adapter":
            choice = adapter_measure.read_choice(current).candidate
            artefact, size = adapter_export.engine_directory(current, choice), choice.update_bytes
        else:
            artefact /= measure.read_choice(current).candidate.name
        found[kind] = accuracy(artefact, golden, rules, directory) | ({"bytes": size} if size else {})
    return found


def accuracy(artefact: Path, golden: Path, rules: Any, directory: Path) -> dict[str, Any]:
    """What does the device engine make of the golden set with this artefact? Also where the gate was not asked."""
    from trainer import judge

    measured = judge.run_on_device(artefact, golden, rules.measure, directory / "report.json").measured
    return {
        "all": msgspec.to_builtins(measured.accuracy_all),
        "weak": msgspec.to_builtins(measured.accuracy_weak),
        "bytes": measured.artefact_bytes,
    }


def prepare(directory: Path, kind: Any, base: Path, samples: int) -> step.Run:
    """A run of the line on made-up samples, its incumbent and its base the first release."""
    from trainer import dataset, publish, rule, tiny_corpus

    (directory / "inputs").mkdir(parents=True)
    dataset.write(directory / "inputs/training.jsonl", tiny_corpus.samples(5, samples, 0.5))
    rules = rule.read(TRAINER / "tiny.yaml")
    spec = step.RunSpec(
        number=2,
        base=str(TRAINER / "tiny_qwen3"),
        base_name="tiny-qwen3",
        incumbent=str(base),
        previous=publish.read_manifest(base).version,
        reason="a bench asked for it",
        created_at_ms=1,
        kind=kind,
        base_release=str(base) if kind == "adapter" else "",
    )
    adapter = msgspec.structs.replace(rules.adapter, release_kind=kind)
    return step.start(directory, spec, msgspec.structs.replace(rules, adapter=adapter))


def say(line: str) -> None:
    """Tell a person how far it is."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
