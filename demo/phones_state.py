"""How do phones and their director tell each other things? Two files in the phones' directory, which outlive both.

`finish`: whoever makes it wants no new visits. `state.json`: what the phones did so far, written every second.
"""

from pathlib import Path

import msgspec

FINISH = "finish"
STATE = "state.json"


class PhonesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the phones of this world did so far; `finished`: no visit goes on and nothing waits to be sent."""

    sent: int = 0
    waiting: int = 0
    refused: int = 0
    inferences: int = 0
    visits: int = 0
    skipped: dict[str, int] = {}
    phones_by_version: dict[str, int] = {}
    finished: bool = False


def read_state(directory: Path) -> PhonesState:
    """What do the phones of this directory say of themselves? Zeros before they said anything."""
    try:
        return msgspec.json.decode((directory / STATE).read_bytes(), type=PhonesState)
    except FileNotFoundError:
        return PhonesState()


def write_state(directory: Path, state: PhonesState) -> None:
    """Tell what the phones did; a reader sees the old or the new, never half of it."""
    draft = directory / f"{STATE}.draft"
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(directory / STATE)


def ask_to_finish(directory: Path) -> None:
    """Tell the phones of this directory to go home and send what they have."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FINISH).touch()


def wants_finish(directory: Path) -> bool:
    """Should no new visit begin?"""
    return (directory / FINISH).exists()
