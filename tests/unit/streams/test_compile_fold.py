"""A worker folds in compiled code where it can, and plainly where it cannot."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from intentloop.fold import FoldRule
from streams import keep_compiled
from streams.compile_fold import compiled_walk

COMPILED = tuple(
    f"streams.{name}"
    for name in ("fold_columns", "fold_kernel", "code_texts", "columns", "pack_states", "keep_compiled")
)


@pytest.fixture
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in COMPILED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in COMPILED:
        sys.modules.pop(name, None)


def test_compiled_code_is_ready_when_it_is_handed_out() -> None:
    assert compiled_walk(FoldRule()) is not None
    assert compiled_walk(FoldRule(), wanted=False) is None


@pytest.mark.usefixtures("nothing_imported")
def test_a_worker_without_numba_folds_plainly_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled_walk(FoldRule()) is None
    assert "pip install 'intentloop[compiled]'" in caplog.text


@pytest.mark.usefixtures("nothing_imported")
def test_a_worker_that_may_write_nowhere_folds_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(f"read-only: {self}")

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert compiled_walk(FoldRule()) is None
    assert "set NUMBA_CACHE_DIR" in caplog.text


def test_machine_code_of_other_sources_is_kept_elsewhere(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("PRIME = 7")
    second.write_text("def f(): ...")
    before = keep_compiled.digest([first, second])
    first.write_text("PRIME = 11")
    assert keep_compiled.digest([first, second]) != before
    assert keep_compiled.digest([second, first]) != before


def test_machine_code_is_kept_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    assert keep_compiled.directory([tmp_path / "file", tmp_path / "b"], "fold-1") == tmp_path / "b" / "fold-1"


def test_all_compiled_sources_are_in_the_digest() -> None:
    folder = Path(keep_compiled.__file__).parent
    using = {path.name for path in folder.glob("*.py") if "@compiled" in path.read_text()}
    assert using | {"columns.py", "keep_compiled.py", "window.py", "drift.py"} == {
        path.name for path in keep_compiled._SOURCES
    }
