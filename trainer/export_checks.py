"""What must hold of an exported artefact, and of the export itself? Looked at for each one, not only in tests."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer import check

REACHING_OUT = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.posix_spawn")

_watches: list[list[str]] = []  # one list of events for each `watched` that is open
_hooked = False


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Note every connection and every program that Python starts inside; the converter needs neither."""
    global _hooked
    if not _hooked:  # a hook cannot be taken out again, so there is one for all
        sys.addaudithook(_note)
        _hooked = True
    events: list[str] = []
    _watches.append(events)
    try:
        yield events
    finally:
        _watches[:] = [other for other in _watches if other is not events]  # two lists may hold the same


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in REACHING_OUT:
        for events in _watches:
            events.append(f"{event}: {arguments!r}"[:200])


def checks(name: str, artefact: Path, checkpoint: Path, events: list[str]) -> tuple[check.Check, ...]:
    """State what must hold of one candidate's artefact."""
    layers = json.loads((checkpoint / "config.json").read_bytes())["num_hidden_layers"]
    exported = json.loads((artefact / "llm_config.json").read_bytes())["layer_nums"]
    return (
        check.at_most(f"{name}: connections and programs of the converter", len(events), 0),
        check.at_most(f"{name}: settings that are not a phone's", len(unlike_a_phone(artefact)), 0),
        check.at_most(f"{name}: layers more or less than its checkpoint has", abs(exported - layers), 0),
    )


def unlike_a_phone(artefact: Path) -> list[str]:
    """Which settings of an artefact would make a phone answer otherwise: not greedy, or thinking?"""
    config = json.loads((artefact / "config.json").read_bytes())
    wrong = [] if config.get("sampler_type") == "greedy" else ["sampler_type"]
    thinks = config.get("jinja", {}).get("context", {}).get("enable_thinking")
    return wrong if thinks is False else [*wrong, "enable_thinking"]
