"""What does our export cost beside llmexport's own way? `python -m bench.export`; the last line is one JSON object.

Three ways from the same checkpoint and calibration samples, each in a process of its own, alternating:

- `ours`: `trainer.converter`, round to nearest; `peer`: the same by llmexport's exporter with the calibration texts as
  its argument, as one calls it for a calibrated quantiser. `ratio` is ours / peer in seconds, `memory_ratio` in peak
  bytes, `bytes_ratio` in what lies in the directory afterwards.
- `ours_awq`: autoawq on whole templated samples, folded, then converted. It has no peer: llmexport 0.0.5's own AWQ ends
  with an error on this model, since the keys that its attention keeps pile up from one pass to the next.

`*_text` says whether the finished directory holds text of the calibration samples. Each artefact must load and answer
in the engine. Libraries are loaded before the clock starts. The converter's telemetry is blocked for the peer, too:
this bench sends nothing.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.stack import finish, say
from intentloop import prompt
from intentloop.errors import ContractError
from trainer import awq_fold, converter, dataset, rule, step, tiny_corpus

WAYS = ("ours", "peer", "ours_awq")
BLOCK = 64
QUANT = rule.QuantRule(calibration_floor_tokens=1)


class Took(msgspec.Struct, frozen=True):
    """One export: `text` is whether calibration text is left, `tokens` those that calibrated (0: none needed)."""

    seconds: float
    peak_bytes: int
    artefact_bytes: int
    text: bool
    tokens: int


def main() -> None:
    """Run the ways in turn and print the JSON; or run the one way that `--way` names and print what it took."""
    options = _options()
    if options.way:
        print(msgspec.json.encode(take(options.way, options.checkpoint, options.out, options.samples)).decode())
        return
    found: dict[str, list[Took]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as directory:
                found[way].append(in_own_process(way, options, Path(directory)))
        say(f"round {number + 1}: " + ", ".join(f"{way} {took[-1].seconds:.2f} s" for way, took in found.items()))
    finish(_figures(found, options))


def in_own_process(way: str, options: argparse.Namespace, directory: Path) -> Took:
    """Export one way in a fresh process and see that its artefact answers."""
    arguments = ["--way", way, "--checkpoint", str(options.checkpoint), "--out", str(directory)]
    command = [sys.executable, "-m", "bench.export", *arguments, "--samples", str(options.samples)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    check = (
        "import sys; from pathlib import Path; from trainer.engine import Engine; Engine(Path(sys.argv[1])).answer('a')"
    )
    subprocess.run([sys.executable, "-c", check, str(directory)], stdout=subprocess.DEVNULL, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Took)


def take(way: str, checkpoint: Path, out: Path, samples: int) -> Took:
    """Export one way in this process."""
    step.prepare_process()
    from trainer import checkpoint as models  # loads torch and transformers before the clock starts

    converter.block_telemetry()
    checkpoint, out = checkpoint.resolve(), out.resolve()
    data = tiny_corpus.samples(5, samples, 0.5)
    rows = [each.input_ids for each in dataset.encode(models.tokenizer(checkpoint), data, 2048)]
    texts = [dataset.prompt_text(each) + dataset.answer_text(each) for each in data]
    started = time.perf_counter()
    tokens = 0
    if way == "ours":
        converter.convert(checkpoint, out, "rtn", BLOCK, QUANT)
    elif way == "ours_awq":
        tokens = _ours_awq(checkpoint, out, rows)
    else:
        _peer(checkpoint, out, texts)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return Took(seconds, step.peak_bytes(), size, holds(out, data), tokens)


def _ours_awq(checkpoint: Path, out: Path, rows: Sequence[Sequence[int]]) -> int:
    with tempfile.TemporaryDirectory() as folded:
        tokens = awq_fold.fold(checkpoint, Path(folded), rows, QUANT, BLOCK)
        converter.convert(Path(folded), out, "awq", BLOCK, QUANT)
    return tokens


def _peer(checkpoint: Path, out: Path, texts: list[str]) -> None:
    """As llmexport's `export(path, **arguments)` does it, where it stands and with what it leaves behind."""
    llmexport = converter._load_llmexport()
    parser = argparse.ArgumentParser()
    llmexport.build_args(parser)
    arguments = parser.parse_args(["--path", str(checkpoint), "--dst_path", str(out), "--mnnconvert", ""])
    arguments.export, arguments.quant_bit, arguments.quant_block = "mnn", QUANT.quant_bit, BLOCK
    arguments.lm_quant_bit, arguments.lm_quant_block = QUANT.lm_quant_bit, BLOCK
    arguments.calib_data = texts
    with converter._quiet_in(out):
        llmexport.LlmExporter(arguments).export("mnn")


def holds(directory: Path, data: Sequence[Any]) -> bool:
    """Does any file hold the behaviour of a calibration sample?"""
    try:
        converter.check_no_text(directory, [prompt.sequence_text(sample.read) for sample in data])
    except ContractError:
        return True
    return False


def _figures(found: dict[str, list[Took]], options: argparse.Namespace) -> dict[str, Any]:
    seconds = {way: median(took.seconds for took in rounds) for way, rounds in found.items()}
    last = {way: rounds[-1] for way, rounds in found.items()}
    figures: dict[str, Any] = {
        "bench": "export",
        "ours": seconds["ours"],
        "peer": seconds["peer"],
        "ratio": seconds["ours"] / seconds["peer"],
        "memory_ratio": last["ours"].peak_bytes / last["peer"].peak_bytes,
        "bytes_ratio": last["ours"].artefact_bytes / last["peer"].artefact_bytes,
        "ours_awq": seconds["ours_awq"],
        "ours_awq_tokens": last["ours_awq"].tokens,
    }
    for way, took in last.items():
        figures |= {f"{way}_text": took.text, f"{way}_bytes": took.artefact_bytes}
    return figures | {"rounds": options.rounds, "samples": options.samples}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    base = Path(step.__file__).with_name("tiny_qwen3")
    parser.add_argument("--checkpoint", type=Path, default=base, help="a model in Hugging Face's format")
    parser.add_argument("--samples", type=int, default=16, help="that calibrate")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
