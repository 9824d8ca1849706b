"""How does a checkpoint become an MNN artefact? Through llmexport, kept on a short leash.

llmexport 0.0.5 imports its own modules by bare names, empties `sys.argv`, writes logs where it stands and records every
argument; the MNN converter it calls would install a package and send a machine id. A module that is in the way of
that stands in `sys.modules`, and what is left beside the artefact is removed.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intentloop.errors import ContractError
from trainer.engine import CONFIGURATION
from trainer.rule import Quantiser, QuantRule

KEPT = ("config.json", "llm_config.json", "llm.mnn", "llm.mnn.weight", "tokenizer.mtok", "embeddings_bf16.bin")
TELEMETRY = "MNN.tools.utils.log"


def convert(checkpoint: Path, directory: Path, quantiser: Quantiser, block: int, rule: QuantRule) -> None:
    """Write the artefact of `checkpoint` into `directory`, configured as a phone runs it: greedy, thinking off."""
    block_telemetry()
    llmexport = _load_llmexport()
    parser = argparse.ArgumentParser()
    llmexport.build_args(parser)
    arguments = parser.parse_args(["--path", str(checkpoint.resolve()), "--dst_path", str(directory.resolve())])
    arguments.export, arguments.mnnconvert = "mnn", ""
    arguments.quant_bit, arguments.quant_block = rule.quant_bit, block
    arguments.lm_quant_bit, arguments.lm_quant_block = rule.lm_quant_bit, block
    arguments.hqq = quantiser == "hqq"
    directory.mkdir(parents=True, exist_ok=True)
    with _quiet_in(directory):
        # not llmexport.export(): it takes any path that holds the letters "bge" for an embedding model
        llmexport.LlmExporter(arguments).export("mnn")
    tidy(directory)


def block_telemetry() -> None:
    """Put a module without a logger where the converter looks for the one that phones home."""
    stub = types.ModuleType(TELEMETRY)
    stub.mnn_logger = None  # type: ignore[attr-defined]
    sys.modules[TELEMETRY] = stub


def tidy(directory: Path) -> None:
    """Keep what a phone needs and nothing else; the exporter's records hold paths and arguments."""
    for path in directory.rglob("*"):
        if path.is_file() and path.relative_to(directory).as_posix() not in KEPT:
            path.unlink()
    config = json.loads((directory / "config.json").read_bytes())
    config = {name: config[name] for name in ("llm_model", "llm_weight", "backend_type", "tokenizer_file")}
    (directory / "config.json").write_text(json.dumps({**config, "thread_num": 2, **CONFIGURATION}, indent=1) + "\n")


def check_no_text(directory: Path, texts: list[str]) -> None:
    """Is any of these texts in any file of the artefact?

    Raises:
        ContractError: one is; people's behaviour must not travel with a model.
    """
    needles = [(text.encode(), json.dumps(text)[1:-1].encode()) for text in texts if text]
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if any(plain in content or escaped in content for plain, escaped in needles):
            raise ContractError(f"{path.name} holds calibration text; an artefact must not")


def _load_llmexport() -> Any:
    found = importlib.util.find_spec("llmexport")
    assert found is not None
    assert found.origin is not None
    home = str(Path(found.origin).parent)
    if home not in sys.path:
        sys.path.insert(0, home)  # its modules import `utils.…` as if it were the top level
    sys.modules.pop("llmexport", None)
    spec = importlib.util.spec_from_file_location("llmexport_exporter", f"{home}/llmexport.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _quiet_in(directory: Path) -> Iterator[None]:
    """Work inside `directory` with `sys.argv` and standard output put aside, and bring both back."""
    here, arguments = Path.cwd(), sys.argv
    os.chdir(directory)
    sys.argv = ["llmexport"]
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        sys.argv = arguments
        os.chdir(here)
