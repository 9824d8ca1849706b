"""The Faust app is wired as intended; nothing is connected to look at it."""

from intentloop.adapters.settings import KafkaSection
from streams import transport
from streams.run_worker import build_app
from streams.settings import StreamsSection, StreamsSettings


def test_the_app_reads_telemetry_in_batches_with_one_documented_agent() -> None:
    settings = StreamsSettings(kafka=KafkaSection(prefix="p."), streams=StreamsSection(session_timeout_s=7.0))
    app = build_app(settings)
    (agent,) = app.agents.values()
    assert agent.concurrency == 1
    assert agent.fun.__doc__ is not None
    assert agent.channel.get_topic_name() == "p.phone.telemetry-reported.v1"
    assert app.conf.id.startswith("p.streams")
    assert app.conf.broker_session_timeout == 7.0
    assert app.transport.Consumer is transport.BatchConsumer
    assert not app.tables
