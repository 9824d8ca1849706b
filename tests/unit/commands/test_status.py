"""One screen tells how the loop stands, also before anything has happened."""

from io import StringIO

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from intentloop.adapters.jobs import QueueCounts
from intentloop.commands.app import app
from intentloop.commands.status import Status, render
from intentloop.training_set import TrainingCounts

NONE = QueueCounts(waiting=0, running=0, buried=0, done=0)
EMPTY = Status(
    counts={},
    behind={},
    queues={"label": NONE, "train": NONE, "people": NONE},
    training=msgspec.convert(
        {
            "samples": 0,
            "hard": 0,
            "hard_new": 0,
            "golden": 0,
            "labelled": 0,
            "failed": 0,
            "duplicates": 0,
            "both_voted": 0,
            "agreed": 0,
            "agreement_ratio": None,
            "cost_yuan": 0.0,
            "revision": 0,
        },
        TrainingCounts,
    ),
    manifests=(),
    current="",
    decision={},
    requests=(),
)


def text(status: Status) -> str:
    screen = StringIO()
    Console(file=screen, width=160).print(render(status))
    return screen.getvalue()


def test_a_system_in_which_nothing_has_happened_says_so() -> None:
    shown = text(EMPTY)
    assert "release" in shown
    assert shown.count("none yet") >= 3


def test_queues_lag_and_the_last_decision_with_its_reason_are_shown() -> None:
    shown = text(
        msgspec.structs.replace(
            EMPTY,
            counts={"records": 1234, "applied": 900, "rejected": 7, "picked": 50},
            behind={"phone.telemetry-reported.v1": 17},
            queues={**EMPTY.queues, "label": QueueCounts(waiting=9, running=1, buried=0, done=40)},
            decision={"kind": "wait", "reason": "96 of 150 new hard samples"},
            current="v3",
        )
    )
    for words in ("1,234", "907 events", "rejected 7", "17", "wait: 96 of 150 new hard samples", "v3"):
        assert words in shown
    picked = next(line for line in shown.splitlines() if "sample-picked" in line)
    assert "10" in picked  # 50 picked, 40 labelled


def test_status_of_nothing_says_what_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTENTLOOP_SETTINGS_FILE", "")
    monkeypatch.setenv("INTENTLOOP_REDIS__URL", "redis://127.0.0.1:1/0")
    monkeypatch.chdir("/")
    found = CliRunner().invoke(app, ["status"])
    assert found.exit_code == 1
    assert "no status" in found.output


def test_every_command_is_there_with_a_line_of_help() -> None:
    found = CliRunner().invoke(app, ["--help"])
    for command in ("demo", "replay", "up", "status", "topics", "annotate"):
        assert command in found.output
