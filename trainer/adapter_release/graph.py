"""How does an adapter become a file that the engine runs beside a released base?

`lora.mnn` is the base's graph once more, without its weights (those stay in the base's own weight file), with two small
convolutions beside each adapted one: y = Wx + B(Ax), the adapter's scale folded into B. It is made from the very graph
that phones have, so that every offset into their weight file is right; the base is never exported again.

The two are stored as fp16, or as int8 with one scale a row. The engine wants their biases, zeros, written out.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from intentloop.errors import ContractError
from trainer import converter
from trainer.engine import ADAPTER

Storage = Literal["fp32", "fp16", "int8"]
Matrix = NDArray[np.float32]
Adapter = dict[str, tuple[Matrix, Matrix]]  # convolution → A (rank, inputs) and B (outputs, rank), scale folded in
Graph = dict[str, Any]  # the engine's schema as JSON

GRAPH = "llm.mnn"

_LEVELS = 127  # of int8 on each side of zero
_FP16, _LINEAR = 3, 1  # `IDSTQuan.type` of the engine's schema
_QUANTISED = {
    "useInt32": False,
    "quantScale": 1.0,
    "scaleIn": 0.0,
    "scaleOut": 0.0,
    "aMin": 0,
    "readType": 0,
    "has_scaleInt": False,
    "shapeInt32": False,
    "weightSize": 0,
}


def write(base: Path, adapter: Adapter, storage: Storage, directory: Path) -> Path:
    """Write `adapter` for the artefact in `base` into `directory`; returns the one file that a phone fetches.

    Raises:
        ContractError: the adapter names a layer that the base lacks, or does not fit one.
    """
    graph = read(base)
    insert(graph, adapter, storage)
    target = directory.resolve() / ADAPTER
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        text = Path(scratch) / "graph.json"
        text.write_bytes(msgspec.json.encode(graph))
        _convert("JSON", text, "MNNModel", target)
    return target


def read(base: Path) -> Graph:
    """Which operations does the artefact in `base` consist of? As the engine's own converter tells it."""
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "graph.json"
        _convert("MNN", base.resolve() / GRAPH, "JsonFile", text)
        graph: Graph = msgspec.json.decode(text.read_bytes())
    return graph


def convolutions(graph: Graph) -> dict[str, dict[str, Any]]:
    """Which linear layers does the graph hold? By name; the engine knows them as 1×1 convolutions."""
    return {op["name"]: op for op in graph["oplists"] if op["type"] == "Convolution"}


def insert(graph: Graph, adapter: Adapter, storage: Storage) -> None:
    """Put the adapter's convolutions into the graph, in place.

    Raises:
        ContractError: a layer of the adapter is not there, or has another shape.
    """
    missing = sorted(set(adapter) - set(convolutions(graph)))
    if missing:
        raise ContractError(f"the base has no layer {missing[0]!r} ({len(missing)} are missing); it was cut otherwise")
    operations: list[dict[str, Any]] = []
    sums: dict[int, int] = {}  # output of a layer → output of its sum with the adapter
    for op in graph["oplists"]:
        if "inputIndexes" in op:  # whatever follows: the converter drops layout changes where it can
            op = {**op, "inputIndexes": [sums.get(index, index) for index in op["inputIndexes"]]}
        operations.append(op)
        if op["name"] in adapter and op["type"] == "Convolution":
            beside = _beside(graph, op, adapter[op["name"]], storage)
            operations.extend(beside)
            sums[op["outputIndexes"][0]] = beside[-1]["outputIndexes"][0]
    graph["oplists"] = operations


def _beside(graph: Graph, op: dict[str, Any], pair: tuple[Matrix, Matrix], storage: Storage) -> list[dict[str, Any]]:
    """A, B and the sum, to stand behind a layer."""
    down, up = pair
    common = op["main"]["common"]
    wanted = (common["inputCount"], common["outputCount"])
    if (down.shape[1], up.shape[0]) != wanted or down.shape[0] != up.shape[1]:
        raise ContractError(f"{op['name']} maps {wanted}, its adapter is {down.shape} and {up.shape}")
    first = _convolution(op, f"{op['name']}/A", down, storage)
    second = _convolution(op, f"{op['name']}/B", up, storage)
    total: dict[str, Any] = {
        "type": "BinaryOp",
        "name": f"{op['name']}/sum",
        "main_type": "BinaryOp",
        "main": {"opType": "ADD", "T": "DT_FLOAT", "activationType": 0},
        "defaultDimentionFormat": "NHWC",
    }
    at = [_tensor(graph, each["name"]) for each in (first, second, total)]
    first |= {"inputIndexes": op["inputIndexes"], "outputIndexes": [at[0]]}
    second |= {"inputIndexes": [at[0]], "outputIndexes": [at[1]]}
    total |= {"inputIndexes": [op["outputIndexes"][0], at[1]], "outputIndexes": [at[2]]}
    return [first, second, total]


def _tensor(graph: Graph, name: str) -> int:
    graph["tensorName"].append(name)
    return len(graph["tensorName"]) - 1


def _convolution(op: dict[str, Any], name: str, weight: Matrix, storage: Storage) -> dict[str, Any]:
    outputs, inputs = weight.shape
    main: dict[str, Any] = {
        "common": {**op["main"]["common"], "outputCount": outputs, "inputCount": inputs},
        "bias": [0.0] * outputs,
    }
    if storage == "fp32":
        main["weight"] = weight.ravel().tolist()
    else:
        main["quanParameter"] = _half(weight) if storage == "fp16" else _int8(weight)
    return {
        "type": "Convolution",
        "name": name,
        "main_type": "Convolution2D",
        "main": main,
        "defaultDimentionFormat": op["defaultDimentionFormat"],
    }


def _half(weight: Matrix) -> dict[str, Any]:
    return {**_QUANTISED, "type": _FP16, "aMaxOrBits": 0, "buffer": _signed(weight.astype("<f2").tobytes())}


def _int8(weight: Matrix) -> dict[str, Any]:
    """Symmetric, one scale a row. Buffer: number of dimensions, outputs and inputs, the 256 levels, then the codes."""
    levels, scales = quantise_rows(weight)
    outputs, inputs = weight.shape
    header = b"\x02" + np.array([outputs, inputs], "<i2").tobytes() + bytes([0])  # 0 stands for 256 levels
    codes = (levels.astype(np.int16) + 128).astype(np.uint8)
    table = np.arange(-128, 128, dtype=np.int8)
    buffer = _signed(header + table.tobytes() + codes.tobytes())
    return {**_QUANTISED, "type": _LINEAR, "aMaxOrBits": 8, "buffer": buffer, "alpha": scales.tolist()}


def quantise_rows(weight: Matrix) -> tuple[NDArray[np.int8], Matrix]:
    """Round a matrix to int8 with one scale a row: levels (rows, columns) and scales (rows), weight ≈ level × scale."""
    scales = np.maximum(np.abs(weight).max(axis=1), np.finfo(np.float32).tiny) / _LEVELS
    return np.rint(weight / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def _signed(content: bytes) -> list[int]:
    signed: list[int] = np.frombuffer(content, dtype=np.int8).tolist()
    return signed


def _convert(kind: str, source: Path, target_kind: str, target: Path) -> None:
    """Let the engine's converter turn one form of a graph into another.

    Raises:
        ContractError: it wrote nothing.
    """
    converter.block_telemetry()
    from MNN.tools import mnnconvert

    arguments = sys.argv
    sys.argv = ["mnnconvert", "-f", kind, "--modelFile", str(source), f"--{target_kind}", str(target)]
    try:
        with _quiet():
            mnnconvert.main()
    finally:
        sys.argv = arguments
    if not target.is_file():
        raise ContractError(f"the engine's converter made no {target.name} of {source}; is it an exported model?")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what native code prints off this process's standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
