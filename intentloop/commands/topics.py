"""Create the topics of the table where they are missing: what a deployment does before anything starts."""

import typer
from rich.console import Console

from intentloop import topics as table
from intentloop.adapters.settings import KafkaSection, ProcessSettings
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import IntentloopError


class TopicsSettings(ProcessSettings):
    """Where the broker is."""

    kafka: KafkaSection = KafkaSection()


def topics() -> None:
    """Create missing topics; refuse one whose partition count differs from the table."""
    kafka = TopicsSettings().kafka
    try:
        ensure_topics(kafka)
    except IntentloopError as error:
        Console(stderr=True).print(str(error), style="red", highlight=False)
        raise typer.Exit(1) from None
    Console().print(f"{len(table.ALL)} topics are as the table says, on {kafka.bootstrap}", highlight=False)
