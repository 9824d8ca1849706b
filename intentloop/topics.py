"""Which topics exist, who owns them, how they are keyed and cut: the one table that creates and names all of them."""

from typing import Literal

import msgspec

from intentloop.errors import ContractError

DAY_MS = 86_400_000


class Topic(msgspec.Struct, frozen=True):
    """`event` is the type that every value decodes to; `retention_ms` -1 keeps for ever."""

    name: str
    event: str
    key: Literal["user", "sample", "model", "source"]
    partitions: int
    retention_ms: int


TELEMETRY = Topic("phone.telemetry-reported.v1", "Envelope", "user", 8, 3 * DAY_MS)
DRIFTED = Topic("stream.intent-drifted.v1", "IntentDrifted", "user", 8, 3 * DAY_MS)
TRIGGERED = Topic("stream.intent-triggered.v1", "IntentTriggered", "user", 8, DAY_MS)
PICKED = Topic("stream.sample-picked.v1", "SamplePicked", "sample", 4, 14 * DAY_MS)
LABELLED = Topic("label.sample-labelled.v1", "SampleLabelled", "sample", 4, -1)
RETRAIN_REQUESTED = Topic("loop.retrain-requested.v1", "RetrainRequested", "model", 1, -1)
RELEASED = Topic("loop.model-released.v1", "ModelReleased", "model", 1, -1)
ROLLED_BACK = Topic("loop.model-rolled-back.v1", "ModelRolledBack", "model", 1, -1)
FLEET_DRIFTED = Topic("loop.fleet-drifted.v1", "FleetDrifted", "model", 1, -1)

SOURCES = (TELEMETRY, DRIFTED, TRIGGERED, PICKED, LABELLED, RETRAIN_REQUESTED, RELEASED, ROLLED_BACK, FLEET_DRIFTED)


def dead(topic: Topic) -> Topic:
    """Where does what cannot be processed of `topic` go?"""
    return Topic(f"{topic.name}.dead", "DeadLetter", "source", 1, 14 * DAY_MS)


ALL = (*SOURCES, dead(TELEMETRY), dead(PICKED))


def by_name(name: str) -> Topic:
    """Which topic has this name?

    Raises:
        ContractError: no such topic in the table.
    """
    for topic in ALL:
        if topic.name == name:
            return topic
    raise ContractError(f"topic {name!r} is not in the table of {len(ALL)} topics; add it to intentloop/topics.py")
