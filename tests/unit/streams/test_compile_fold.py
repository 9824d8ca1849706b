"""A worker folds in compiled code where it can, and plainly where it cannot."""

import sys
from collections.abc import Iterator

import numba
import pytest

from intentloop.fold import FoldRule
from streams.compile_fold import compiled_walk

COMPILED = (
    "streams.fold_columns",
    "streams.fold_kernel",
    "streams.code_texts",
    "streams.columns",
    "streams.pack_states",
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
    def refuse(**_: object) -> None:
        raise RuntimeError("cannot cache function 'score': no locator available")

    monkeypatch.setattr(numba, "njit", refuse)
    assert compiled_walk(FoldRule()) is None
    assert "set NUMBA_CACHE_DIR" in caplog.text
