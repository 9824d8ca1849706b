"""POST /v1/telemetry: a phone's batch in, 202 only after Kafka has it.

read → sort → store → answer. A bad event is set aside with its index and reason and never hurts its neighbours; a bad
body is 4xx, not worth a retry; a broker that does not confirm is 503, worth one. The same batch twice is fine: events
carry ids, and streams count each once.
"""

import asyncio
import time
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.openapi.datastructures import ResponseSpec

from gateway.describe import TelemetryOperation
from gateway.faults import BodyFault
from gateway.read_body import Receive, check_head, read_body
from gateway.services import Services, services_of
from gateway.sort_batch import Repaired, SetAside, Sorted, sort_batch
from intentloop.adapters import metrics
from intentloop.adapters.clock import now_ms
from intentloop.adapters.codec import encode
from intentloop.adapters.facts_producer import MAX_REQUEST_BYTES
from intentloop.adapters.telemetry_producer import Position
from intentloop.events import Rejection
from intentloop.facts import DeadLetter
from intentloop.topics import TELEMETRY, dead

PATH = "/v1/telemetry"
_IN_THREAD_BYTES = 262_144  # a body that large may take long to read slowly; others must not wait for it
_DEAD = dead(TELEMETRY)
_ACCEPTED, _REJECTED = (metrics.GATEWAY_EVENTS.labels(outcome) for outcome in ("accepted", "rejected"))


class TelemetryAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a batch. `repaired` tells which events were kept after a repair; absent if none."""

    accepted: int
    rejected: tuple[Rejection, ...]
    repaired: tuple[Repaired, ...] = ()


@post(
    PATH,
    status_code=202,
    request_max_body_size=None,
    operation_class=TelemetryOperation,
    responses={202: ResponseSpec(TelemetryAnswer, description="Kafka has the batch.", generate_examples=False)},
)
async def receive_telemetry(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Take one phone's batch of up to 200 events, as JSON or gzipped JSON."""
    length, encoding = request.headers.get("content-length"), request.headers.get("content-encoding")
    answer = await store_batch(services_of(request), length, encoding, request.receive)
    return Response(answer, status_code=202, media_type="application/json")


async def store_batch(
    services: Services, content_length: str | None, content_encoding: str | None, receive: Receive
) -> bytes:
    """What is the phone told of its batch, once Kafka has it? An encoded `TelemetryAnswer`.

    Raises:
        BodyFault: the body as a whole cannot be taken.
        UnavailableError: Kafka did not confirm in time.
    """
    gzipped = check_head(content_length, content_encoding, services.body_rule)
    body = await read_body(receive, gzipped, services.body_rule)
    arguments = (body, now_ms(), services.hash_user, services.intake_rule)
    found = sort_batch(*arguments) if len(body) < _IN_THREAD_BYTES else await asyncio.to_thread(sort_batch, *arguments)
    begun = time.perf_counter()
    await _store(services, found)
    metrics.GATEWAY_STORE.observe(time.perf_counter() - begun)
    _count(found)
    rejected = tuple(Rejection(each.index, each.reason) for each in found.set_aside)
    return encode(TelemetryAnswer(accepted=found.accepted, rejected=rejected, repaired=found.repaired))


async def _store(services: Services, found: Sorted) -> None:
    """Envelopes first: their position is what a dead letter refers to. All are confirmed before the phone is told."""
    values = [(envelope.user_id, encode(envelope)) for envelope in found.envelopes]
    for _, value in values:
        if len(value) > MAX_REQUEST_BYTES:
            raise BodyFault(
                413, f"the batch takes {len(value)} bytes, the limit is {MAX_REQUEST_BYTES}; send it in parts"
            )
    if len(values) == 1:  # nearly always; a task for it would cost as much as sending it
        positions = [await services.store(TELEMETRY, *values[0])]
    else:
        positions = await asyncio.gather(*(services.store(TELEMETRY, user, value) for user, value in values))
    if found.set_aside:
        letters = [_dead_letter(each, positions[0]) for each in found.set_aside]
        key = f"{positions[0].partition}-{positions[0].offset}"
        await asyncio.gather(*(services.store(_DEAD, key, encode(letter)) for letter in letters))


def _dead_letter(event: SetAside, envelope: Position) -> DeadLetter:
    return DeadLetter(
        source_topic=TELEMETRY.name,
        source_partition=envelope.partition,
        source_offset=envelope.offset,
        index=event.index,
        reason=event.reason,
        sha256=event.sha256,
        size_bytes=event.size_bytes,
        excerpt=event.excerpt,
    )


def _count(found: Sorted) -> None:
    _ACCEPTED.inc(found.accepted)
    _REJECTED.inc(len(found.set_aside))
    for repaired in found.repaired:
        for note in repaired.notes:
            metrics.GATEWAY_REPAIRS.labels(note).inc()
