"""How do facts become bytes and back? One encoder and one decoder for each type of `topics.py`."""

from typing import Any

import msgspec

from intentloop import events, facts, topics
from intentloop.errors import ContractError
from intentloop.topics import Topic

_TYPES: dict[str, type[msgspec.Struct]] = {
    "Envelope": events.Envelope,
    "IntentDrifted": facts.IntentDrifted,
    "IntentTriggered": facts.IntentTriggered,
    "SamplePicked": facts.SamplePicked,
    "SampleLabelled": facts.SampleLabelled,
    "RetrainRequested": facts.RetrainRequested,
    "ModelReleased": facts.ModelReleased,
    "ModelRolledBack": facts.ModelRolledBack,
    "FleetDrifted": facts.FleetDrifted,
    "DeadLetter": facts.DeadLetter,
}

encode = msgspec.json.Encoder().encode

DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    topic.name: msgspec.json.Decoder(_TYPES[topic.event]) for topic in topics.ALL
}


def read(topic: Topic, value: bytes | None) -> Any:
    """Which fact does a record of this topic hold?

    Raises:
        ContractError: none. Nothing else is raised, whatever the bytes are.
    """
    if value is None:
        raise ContractError(f"tombstone: facts of {topic.name} are never deleted by key")
    try:
        return DECODERS[topic.name].decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ContractError(f"not {topic.event}: {error}") from error
