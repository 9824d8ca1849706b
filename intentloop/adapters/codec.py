"""How do facts become bytes and back? One encoder and one decoder for each type of `topics.py`."""

from typing import Any

import msgspec

from intentloop import events, facts, topics

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
