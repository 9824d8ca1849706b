"""Who reaches out while an artefact is made, and what else must hold of it: each promise is broken once, and seen."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import export_checks
from trainer.engine import CONFIGURATION


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An artefact of 7 layers beside the checkpoint that it was made from."""
    for name, files in (
        ("artefact", {"config.json": CONFIGURATION, "llm_config.json": {"layer_nums": 7}}),
        ("checkpoint", {"config.json": {"num_hidden_layers": 7}}),
    ):
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(json.dumps(content))
    return tmp_path


def broken(made: Path, events: list[str]) -> dict[str, float]:
    promises = export_checks.checks("a", made / "artefact", made / "checkpoint", events)
    return {each.name: each.value for each in promises if not each.holds}


def connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()):
        pass


def look_up() -> None:
    socket.getaddrinfo("127.0.0.1", 80)


def start_program() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize(
    ("act", "event"),
    [(connect, "socket.connect"), (look_up, "socket.getaddrinfo"), (start_program, "subprocess.Popen")],
)
def test_a_converter_that_reaches_out_is_noticed(act: Callable[[], None], event: str, made: Path) -> None:
    act()
    with export_checks.watched() as outer:
        with export_checks.watched() as events:
            act()
        seen = len(events)
        act()
    act()
    assert any(found.startswith(f"{event}: ") for found in events)
    assert len(events) == seen, "what happens afterwards is not the converter's"
    assert len(outer) == 2 * seen
    assert broken(made, events) == {"a: connections and programs of the converter": seen}
    assert broken(made, []) == {}


@pytest.mark.parametrize("layers", [6, 8])
def test_an_artefact_with_layers_more_or_less_than_its_checkpoint_is_noticed(layers: int, made: Path) -> None:
    (made / "artefact" / "llm_config.json").write_text(json.dumps({"layer_nums": layers}))
    assert broken(made, []) == {"a: layers more or less than its checkpoint has": 1}


def test_an_artefact_that_would_not_answer_as_a_phone_does_is_noticed(made: Path) -> None:
    thinking = {**CONFIGURATION, "sampler_type": "mixed", "jinja": {}}
    (made / "artefact" / "config.json").write_text(json.dumps(thinking))
    assert broken(made, []) == {"a: settings that are not a phone's": 2}
