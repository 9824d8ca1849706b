"""Who may read the golden set? The step that cuts it, the gate that judges by it, and what comes after; nobody else.

A choice that has seen the judges proves nothing. So a step before the gate runs under a hook that ends it when Python
opens a golden file of its run, by whatever name or library the path was found. It does not see what C code opens.
"""

import os
import sys
from pathlib import Path
from typing import Any

from intentloop.errors import ContractError

READERS = frozenset({"freeze", "gate", "publish", "adapter-gate", "adapter-publish"})
FILE = "golden.jsonl"


def forbid(run: Path, name: str) -> None:
    """Keep step `name` of this run away from the golden set, for the rest of the process, if it is not a reader.

    Raises (when such a file is opened):
        ContractError: names the step and the file.
    """
    if name in READERS:
        return
    forbidden = {str(run.resolve() / part / FILE) for part in ("inputs", "freeze")}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(arguments[0])
        if path.endswith(FILE) and os.path.realpath(path) in forbidden:
            raise ContractError(f"step {name!r} opened {path}; golden samples judge once, in the gate")

    sys.addaudithook(watch)
