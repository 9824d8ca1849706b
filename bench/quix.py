"""The whole job on Quix Streams, a peer: per message with its own state, or in batches into a sink of ours.

Only imported where `quixstreams` is (see `stack.EXTRAS`); it pins other versions of our dependencies, so it is no
dependency of the project, not even of its development.
"""

import asyncio
from typing import Any

from bench.loops import fold_context
from bench.meter import Meter
from intentloop import window
from intentloop.adapters.facts_producer import FactProducer
from intentloop.adapters.keys import Keys
from intentloop.adapters.record_fetcher import Record
from intentloop.adapters.redis_client import connect
from intentloop.adapters.state_store import StateStore
from intentloop.topics import DRIFTED, PICKED, TELEMETRY, TRIGGERED
from streams.apply_batch import BatchApplier
from streams.fold_records import DEAD, FoldContext, Output, decode, fold_batch, state_keys
from streams.settings import StreamsSettings, fold_rule

_OUTPUTS = (DRIFTED, TRIGGERED, PICKED, DEAD)
COMMIT_EVERY = 2_400  # messages between checkpoints of the sink: about 300 of each partition


def build_per_message(settings: StreamsSettings) -> Any:
    """Per message: state as bytes in Quix' own store with its changelog, outputs through its producer."""
    from quixstreams import Application, State, message_context
    from quixstreams.models.serializers.base import Serializer

    app, source = _application(settings, Application, commit_every=0)

    class Encoded(Serializer):  # type: ignore[misc]
        def __call__(self, value: Output, ctx: Any) -> bytes:
            return value.value

    def output_topic(name: str) -> Any:
        return app.topic(f"{settings.kafka.prefix}{name}", value_serializer=Encoded(), key_serializer="str")

    topics = {topic.name: output_topic(topic.name) for topic in _OUTPUTS}
    context = FoldContext(Keys(settings.redis.prefix), fold_rule(settings.rules))
    meter = Meter()

    def apply(value: bytes, state: State) -> Any:
        place = message_context()
        outputs, packed = fold_one(value, place, state.get_bytes("state"), context)
        state.set_bytes("state", packed)
        meter.add(value.count(b'"kind":'))
        meter.tell_now_and_then()
        return outputs

    frame = app.dataframe(source).apply(apply, stateful=True, expand=True)
    frame.to_topic(lambda value, *_: topics[value.topic.name], key=lambda value: value.key)
    return app


def fold_one(value: bytes, place: Any, packed: bytes | None, context: FoldContext) -> tuple[list[Output], bytes]:
    """What does one message do to one packed state? (outputs, packed state) by the product's own fold."""
    decoded = decode([Record(place.partition, place.offset, value)], context.rule)
    budget, *users = state_keys(decoded, context.keys)
    found = {budget: None, **dict.fromkeys(users, packed)}
    outcome = fold_batch(decoded, found, {place.partition: place.offset - 1}, context)
    return outcome.outputs, next((outcome.writes[0].states[user] for user in users), window.pack(window.UserState()))


def build_sink(settings: StreamsSettings) -> Any:
    """In batches: whatever Quix gathers between two checkpoints, by partition, applied by our protocol."""
    from quixstreams import Application
    from quixstreams.sinks import BatchingSink

    loop = asyncio.new_event_loop()
    keys = Keys(settings.redis.prefix)

    async def open_applier() -> BatchApplier:
        store = StateStore(connect(settings.redis), keys, settings.streams.redis_ttl_s)
        producer = await FactProducer(settings.kafka).__aenter__()
        applier = BatchApplier(store, producer, fold_context(settings))
        await applier.positions(dict.fromkeys(range(TELEMETRY.partitions), 0))
        return applier

    applier = loop.run_until_complete(open_applier())

    class ApplyingSink(BatchingSink):  # type: ignore[misc]
        def write(self, batch: Any) -> None:
            records = [Record(batch.partition, one.offset, one.value) for one in batch]
            loop.run_until_complete(applier.apply(records))

    app, source = _application(settings, Application, commit_every=COMMIT_EVERY)
    app.dataframe(source).sink(ApplyingSink())
    return app


_BYTES = {"value_deserializer": "bytes", "key_deserializer": "bytes"}


def _application(settings: StreamsSettings, application: Any, commit_every: int) -> tuple[Any, Any]:
    app = application(
        broker_address=settings.kafka.bootstrap,
        consumer_group=f"{settings.kafka.prefix}{settings.redis.prefix}",
        auto_offset_reset="earliest",
        commit_every=commit_every,
        commit_interval=1.0,
        state_dir=f"/tmp/{settings.redis.prefix}-quix",
        loglevel="WARNING",
        consumer_extra_config={"fetch.queue.backoff.ms": 2, "fetch.wait.max.ms": 20},
    )
    return app, app.topic(f"{settings.kafka.prefix}{TELEMETRY.name}", **_BYTES)
