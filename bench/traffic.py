"""Which messages does a bench send? Envelopes of phones as the demo's shoppers make them, many times over.

A few hundred envelopes are made by the shoppers of `intentloop/shoppers.py`, each with what the phone's model read and
said; then each is stamped again and again with other users, ids and times, on its bytes, since making them costs more
than folding them.
"""

import zlib
from collections.abc import Iterator, Sequence
from random import Random

import msgspec
from confluent_kafka import Message, Producer

from intentloop import compress, prompt, shoppers
from intentloop.adapters.codec import encode
from intentloop.adapters.settings import KafkaSection
from intentloop.events import Behaviour, Envelope, Event, Inference, InferenceSkipped
from intentloop.topics import TELEMETRY

PER_ENVELOPE = 25
TEMPLATES = 400
_STAMP = "#STAMP##"  # eight characters, replaced in ids; the user has its own
_USER = "#USER" + "#" * 27  # as long as the gateway's hash of a user
_ERA = 179_610  # the first digits of every time; one more is three hours later
_ERA_MS = 10_000_000
START_MS = _ERA * _ERA_MS
ANSWERS = ("闲逛", "闲逛", "闲逛", "比价犹豫|{leaf}", "场景购物|{leaf}", "!!!!!!!!!!", "比价犹豫|不在这里")
_RULE = shoppers.ShopperRule()


class Sent(msgspec.Struct, frozen=True):
    """What lies on the topic: the last offset of each partition, and how many envelopes, events and users that is."""

    last: dict[int, int]
    envelopes: int
    events: int
    users: int


def templates(seed: int, count: int, start_ms: int = START_MS, answers: Sequence[str] = ANSWERS) -> list[Envelope]:
    """Envelopes of `PER_ENVELOPE` events; the last one is a run of the model, in one of five a skipped run."""
    random = Random(seed)
    return [_template(random, start_ms, answers) for _ in range(count)]


def _template(random: Random, start_ms: int, answers: Sequence[str]) -> Envelope:
    behaviours: list[Behaviour] = []
    now_ms = start_ms
    while len(behaviours) < PER_ENVELOPE - 1:
        for step in shoppers.session(random, _RULE).steps[: PER_ENVELOPE - 1 - len(behaviours)]:
            now_ms += step.gap_ms // 10
            behaviours.append(_behaviour(step, len(behaviours), now_ms))
    last: Event = _inference(random, behaviours, now_ms + 1, answers)
    if answers is ANSWERS and random.random() < 0.2:  # who names the answers wants one in every envelope
        last = InferenceSkipped(event_id=f"{_STAMP}-s", ts_ms=now_ms + 1, check="fatigued")
    return Envelope(
        batch_id=_STAMP,
        user_id=_USER,
        device_id=f"d-{_USER}",
        device_model="Redmi K80",
        app_version="9.1.0",
        sent_at_ms=now_ms + 900,
        received_at_ms=now_ms + 1_000,
        events=(*behaviours, last),
    )


def _behaviour(step: shoppers.Step, seq: int, ts_ms: int) -> Behaviour:
    return Behaviour(
        event_id=f"{_STAMP}-{seq}",
        action=step.action,
        ts_ms=ts_ms,
        seq=seq,
        item_id=step.item_id,
        title=step.title,
        category=step.category,
        price_yuan=step.price_yuan,
        dwell_ms=step.dwell_ms or None,
    )


def _inference(random: Random, read: Sequence[Behaviour], ts_ms: int, answers: Sequence[str]) -> Inference:
    items = compress.compress(read, compress.CompressRule())
    leaf = next(item.category.rsplit(".", 1)[-1] for item in reversed(items) if item.category)
    return Inference(
        event_id=f"{_STAMP}-i",
        ts_ms=ts_ms,
        model_version="v1",
        prompt_version=prompt.VERSION,
        read=items,
        sequence_digest=prompt.digest(prompt.sequence_text(items)),
        answer=random.choice(answers).format(leaf=leaf),
        confidence=random.random(),
    )


def messages(seed: int, envelopes: int, users: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of many envelopes: users take turns in a new order each time, and every turn is hours later."""
    random = Random(seed)
    made = templates(seed, TEMPLATES)
    assert max(one.received_at_ms for one in made) < START_MS + _ERA_MS
    bodies = [encode(one) for one in made]
    order = list(range(users))
    for number in range(envelopes):
        turn, place = divmod(number, users)
        if place == 0:
            random.shuffle(order)
        user = b"%032x" % order[place]
        body = bodies[random.randrange(TEMPLATES)]
        body = body.replace(_USER.encode(), user).replace(_STAMP.encode(), b"%08x" % number)
        yield user, body.replace(b":%d" % _ERA, b":%d" % (_ERA + turn))


def fill(kafka: KafkaSection, envelopes: int, users: int, seed: int = 7) -> Sent:
    """Put telemetry on its topic, each user in the partition that the gateway would choose."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "acks": "all",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    last: dict[int, int] = {}

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"the broker refused telemetry: {error}")
        partition, offset = message.partition() or 0, message.offset() or 0
        last[partition] = max(offset, last.get(partition, -1))

    topic = f"{kafka.prefix}{TELEMETRY.name}"
    for key, value in messages(seed, envelopes, users):
        producer.produce(topic, value, key, on_delivery=on_delivery)
        producer.poll(0)
        while len(producer) > 5_000:
            producer.poll(0.05)
    if producer.flush(60):
        raise TimeoutError("the broker did not take all telemetry within 60 s")
    return Sent(last, envelopes, envelopes * PER_ENVELOPE, users)


def envelopes(
    seed: int, count: int, start_ms: int, answers: Sequence[str] = ANSWERS, posted: bool = False
) -> Iterator[tuple[str, bytes]]:
    """(id, value) of envelopes around `start_ms`, each of a shopper of its own; ids of one seed are that seed's own.

    As `posted` by a phone, which does not know when a batch is received.
    """
    made = templates(seed, min(count, TEMPLATES), start_ms, answers)
    bodies = [encode(msgspec.structs.replace(one, received_at_ms=0) if posted else one) for one in made]
    for number in range(count):
        name = f"{seed:03x}{number:05x}"
        body = bodies[number % len(bodies)].replace(_USER.encode(), b"%027x%05x" % (seed, number))
        yield name, body.replace(_STAMP.encode(), name.encode())


def posts(
    seed: int, count: int, start_ms: int, head: bytes, answers: Sequence[str] = ANSWERS
) -> Iterator[tuple[str, bytes]]:
    """(id, whole HTTP request) of gzipped envelopes as phones post them."""
    for name, body in envelopes(seed, count, start_ms, answers, posted=True):
        squeezed = _gzip(body)
        yield name, head + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(squeezed) + squeezed


def _gzip(body: bytes) -> bytes:
    squeezer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return squeezer.compress(body) + squeezer.flush()
