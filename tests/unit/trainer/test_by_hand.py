"""Runs that people start keep out of each other's way, as the runner's do."""

import sys
from pathlib import Path

import pytest

from intentloop.errors import UnavailableError
from trainer import run, search


@pytest.mark.parametrize("main", [run.main, search.main])
def test_a_run_by_hand_waits_for_nobody_and_starts_beside_nobody(
    main: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "work" / "mine"
    monkeypatch.setattr(sys, "argv", ["trainer", str(directory)])
    assert callable(main)
    with run.alone(tmp_path / "work"), pytest.raises(UnavailableError, match="another run is at work in"):
        main()
    assert not directory.exists()
