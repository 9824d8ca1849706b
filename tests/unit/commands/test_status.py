"""One screen tells how the loop stands, also before anything has happened."""

from io import StringIO

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from intentloop.adapters.jobs import QueueCounts
from intentloop.commands.app import app
from intentloop.commands.status import Status, render
from intentloop.fleet_state import FleetState
from intentloop.retrain import RunVerdict
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


def row(shown: str, word: str) -> str:
    return next(line for line in shown.splitlines() if word in line)


def test_a_fleet_is_shown_with_its_intents_its_faults_and_its_drift() -> None:
    said = {
        "fleet:v3:said:闲逛": 140,
        "fleet:v3:said:比价犹豫": 40,
        "fleet:v3:said:场景购物": 10,
        "fleet:v3:fault:format": 10,
    }
    drifted = FleetState(version="v3", looks=4, stated=("intent_mix",))
    shown = text(
        msgspec.structs.replace(EMPTY, counts={**said, "fleet:v2:said:闲逛": 9}, current="v3", fleets={"v3": drifted})
    )
    fleet = row(shown, "drifted: ")
    for words in ("v3", "200", "闲逛 73.7%", "比价犹豫 21.1%", "场景购物 5.3%", "5.0%", "drifted: intent_mix"):
        assert words in fleet  # 140, 40 and 10 of 190 answers that mean something; 10 faults of 200


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (None, "not looked at yet"),
        (FleetState(version="v3"), "none; no window is full yet"),
        (FleetState(version="v3", looks=3, streaks={"intent_mix": -3, "category_mix": -1}), "none in 3 looks"),
        (FleetState(version="v3", looks=3, streaks={"intent_mix": 1}), "none in 3 looks; unlike in a row: intent_mix"),
    ],
)
def test_a_fleet_that_has_not_drifted_tells_how_far_it_was_looked_at(fleet: FleetState | None, words: str) -> None:
    fleets = {"v3": fleet} if fleet else {}
    assert words in text(msgspec.structs.replace(EMPTY, current="v3", fleets=fleets))


def test_the_last_verdict_of_the_gate_is_shown_with_its_reasons() -> None:
    verdicts = (
        RunVerdict(kind="release", reasons=("better by 0.2",), judged_at_ms=1, release="v2"),
        RunVerdict(kind="reject", reasons=("accuracy 0.40 is below 0.50", "gain in [-0.2, -0.1]"), judged_at_ms=2),
    )
    shown = text(msgspec.structs.replace(EMPTY, verdicts=verdicts))
    assert "reject: accuracy 0.40 is below 0.50; gain in [-0.2, -0.1]" in row(shown, "last verdict")
    assert "release of v2: better by 0.2" in text(msgspec.structs.replace(EMPTY, verdicts=verdicts[:1]))
    assert "none yet" in row(text(EMPTY), "last verdict")


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
