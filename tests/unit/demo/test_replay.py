"""A replay refuses a command line that makes no sense, and says where titles come from."""

from pathlib import Path

import pytest

from demo.feed import load
from demo.replay import checked_script, titles
from intentloop.errors import ContractError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("1,2,3,pv,1511544070\n1,2,3,pv\n1,4,3,pv,1511544071\n", encoding="utf-8")
    return path


def test_speed_is_a_factor_or_max(file: Path) -> None:
    assert checked_script(file, "otto", "max").speed == 0
    assert checked_script(file, "otto", "2.5").speed == 2.5


@pytest.mark.parametrize("speed", ["0", "-1", "fast", ""])
def test_a_speed_that_is_none_is_refused(file: Path, speed: str) -> None:
    with pytest.raises(ContractError, match="neither 'max' nor a positive number"):
        checked_script(file, "otto", speed)


def test_an_unknown_format_and_a_missing_file_are_refused_by_name(file: Path) -> None:
    with pytest.raises(ContractError, match="'csv' is not known"):
        checked_script(file, "csv", "max")
    with pytest.raises(ContractError, match="is no file"):
        checked_script(file.with_name("absent"), "otto", "max")


def test_a_file_is_loaded_with_its_bad_rows_by_line(file: Path) -> None:
    rows, visits = load(file, "taobao-userbehaviour")
    assert (rows.read, rows.rejected, rows.users, rows.visits, rows.made_up) == (3, 1, 1, 1, 2)
    assert [(row.line, row.reason) for row in rows.rejections] == [
        (2, "has 4 columns, expected 5: user, item, category, behaviour, seconds")
    ]
    assert [row.line for row in visits[0].rows] == [1, 3]


def test_bytes_that_are_no_utf8_do_not_stop_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"1,2,3,pv,1511544070\n\xff\xfe,2,3,pv,1511544070\n1,4,3,pv,1511544071\n")
    rows, _ = load(path, "taobao-userbehaviour")
    assert rows.read == 3


def test_a_report_says_that_titles_are_made_up() -> None:
    assert "made up" in titles("otto", 862)
    assert "862" in titles("otto", 862)
    assert "marks 3 of them as made up" in titles("events-jsonl", 3)
