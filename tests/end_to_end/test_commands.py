"""`up`, `status` and `replay` as a person uses them, on embedded services."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.end_to_end.conftest import ROOT, Run


def taobao_rows() -> str:
    """Three users with visits of four goods each, out of a good row's way three bad ones."""
    lines = []
    for user in (1, 2, 3):
        for visit in range(4):
            for view in range(4):
                seconds = 1_511_544_070 + visit * 7_200 + view * 60
                lines.append(f"{user},{user * 100 + visit * 10 + view},{visit},pv,{seconds}")
    lines[5:5] = ["1,2,3", "1,2,3,stare,1511544070"]
    lines.append("1,2,3,pv,1")
    return "\n".join(lines) + "\n"


def test_a_replay_accounts_for_every_row_and_really_runs_the_model(start: Callable[..., Run], tmp_path: Path) -> None:
    file, report_file = tmp_path / "rows.csv", tmp_path / "report.json"
    file.write_text(taobao_rows(), encoding="utf-8")
    run = start("replay", str(file), "--format", "taobao-userbehaviour", "--report", str(report_file))
    assert run.process.wait(240) == 0, run.text()
    report = json.loads(report_file.read_bytes())
    assert (report["rows_read"], report["rows_rejected"], report["users"], report["visits"]) == (51, 3, 3, 12)
    assert [row["line"] for row in report["rejections"]] == [6, 7, 51]
    assert report["inferences"] == 12
    assert report["events_sent"] == report["events_accounted"] == 48 + 12
    assert report["events_lost"] == 0
    assert report["counts"]["applied"] == 48
    assert report["model_version"].startswith("v1")
    assert "made up" in report["titles"]
    assert "simulated" in run.text()


def test_up_runs_until_it_is_stopped_and_status_shows_it_on_one_screen(start: Callable[..., Run]) -> None:
    run = start("up")
    settings = run.directory / "run" / "settings.toml"
    run.wait_for(lambda: "v1-" in status(settings), 120, "the first release")
    shown = status(settings)
    for words in ("phone.telemetry-reported.v1", "label", "golden set", "600", "retrain decision"):
        assert words in shown
    assert len(shown.splitlines()) <= 50
    tree = run.tree()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(40) == 0
    assert "SIMULATED" in run.text()
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert [process.cmdline() for process in alive] == []


def status(settings: Path) -> str:
    if not settings.exists():
        return ""
    command = [sys.executable, "-m", "intentloop", "status", "--settings", str(settings)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT).stdout
