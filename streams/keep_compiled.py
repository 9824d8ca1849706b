"""Where is machine code kept, so that a worker starts in a second and never runs code that is older than its source?

Numba compares a function with the file that defines it, and overlooks what that file imports: another prime in
`intentloop/window.py` would leave the old one in the kernel. So the directory carries a digest of all sources.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_SOURCES = (
    *(
        _HERE / f"{name}.py"
        for name in ("keep_compiled", "pack_states", "columns", "code_texts", "track_windows", "fold_kernel")
    ),
    *(_HERE.parent / "intentloop" / f"{name}.py" for name in ("window", "drift")),
)


def digest(sources: Sequence[Path]) -> str:
    """Which sources are these?"""
    return sha256(b"\x00".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def directory(bases: Sequence[Path], name: str) -> Path:
    """Where may machine code be kept? Below the first base in which a directory can be made and written.

    Raises:
        RuntimeError: nowhere.
    """
    for base in bases:
        place = base / name
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / ".writable").touch()
        except OSError:
            continue
        return place
    raise RuntimeError(f"none of {[str(base) for base in bases]} can be written")


def _bases() -> list[Path]:
    chosen = [Path(numba.config.CACHE_DIR)] if numba.config.CACHE_DIR else []
    return [*chosen, _HERE / "__pycache__", Path("~/.cache/intentloop").expanduser()]


numba.config.CACHE_DIR = str(directory(_bases(), f"fold-{digest(_SOURCES)}"))


def compiled(function: Function) -> Function:
    """Compile at the first call, or read the machine code that an earlier process kept.

    Nothing is allocated in here, so references are not counted: that alone took more time than all the rest.
    """
    return cast(Function, numba.njit(cache=True, error_model="numpy", _nrt=False)(function))
