"""What do we keep of something that cannot be processed? Its place, the reason, and a bounded reference to it."""

from hashlib import sha256
from typing import NamedTuple

from intentloop.facts import DeadLetter

EXCERPT_CHARS = 512
WHOLE = -1  # index of a refusal that concerns the record itself, not one of its events


class Source(NamedTuple):
    """Where an envelope lies in Kafka. `kind_suffix` tells offsets of a reset broker from those before."""

    topic: str
    partition: int
    offset: int
    kind_suffix: str = ""


def dead_letter(source: Source, index: int, reason: str, raw: bytes) -> DeadLetter:
    """State that `raw` from this place was set aside."""
    return DeadLetter(
        source_topic=source.topic,
        source_partition=source.partition,
        source_offset=source.offset,
        index=index,
        reason=reason,
        sha256=sha256(raw).hexdigest(),
        size_bytes=len(raw),
        excerpt=raw[: 4 * EXCERPT_CHARS].decode(errors="replace")[:EXCERPT_CHARS],
    )
