"""What phones hand over reaches Kafka, whatever is killed or away meanwhile; every event id, at its own time."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from demo.courier import Courier
from demo.device_model import DeviceModels, DownloadError
from demo.outbox import Outbox, read_sent
from demo.phones_state import ask_to_finish, read_state
from demo.uplink import Report, Uplink
from intentloop.adapters import embedded, signing
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.errors import IntentloopError
from intentloop.events import Behaviour, Envelope
from intentloop.release import Manifest, ReleaseFile
from intentloop.topics import TELEMETRY
from tests.integration.gateway.conftest import TOKEN, RunningGateway, stored, wait_for
from tests.integration.gateway.conftest import gateway as gateway
from tests.integration.gateway.conftest import shared as shared
from tests.integration.gateway.conftest import shared_redis as shared_redis

NOW_MS = time.time_ns() // 1_000_000


def report(name: str, count: int) -> tuple[Report, list[str]]:
    events = [
        Behaviour(event_id=f"{name}-{number}", action="item_view", ts_ms=NOW_MS - 1000 + number, title="帐篷")
        for number in range(count)
    ]
    written = tuple(msgspec.Raw(msgspec.json.encode(event)) for event in events)
    return Report(batch_id=name, user_id="u", device_id="d", events=written), [event.event_id for event in events]


def carry(outbox: Outbox, url: str, resend_ratio: float, *reports: tuple[Report, list[str]]) -> None:
    async def scene() -> None:
        uplink = Uplink(url, TOKEN)
        courier = Courier("p", outbox, uplink, lambda: time.time_ns() // 1_000_000, resend_ratio)
        for each, event_ids in reports:
            courier.put(each, event_ids)
        await asyncio.wait_for(courier.empty(), 60)
        await uplink.close()

    asyncio.run(scene())


def envelopes(kafka: KafkaSection, expected: int) -> list[Envelope]:
    return [value for _, value in stored(kafka, TELEMETRY, expected)]


def test_a_batch_waits_for_a_gateway_that_is_away_and_keeps_its_times(
    kafka: KafkaSection, redis_section: RedisSection, tmp_path: Path
) -> None:
    port = embedded.free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
        "INTENTLOOP_REDIS__URL": redis_section.url,
        "INTENTLOOP_REDIS__PREFIX": redis_section.prefix,
        "INTENTLOOP_HTTP__PORT": str(port),
        "INTENTLOOP_PRIVACY__USER_KEY": "user-key",
        "INTENTLOOP_AUTH__DEVICE_TOKEN": TOKEN,
        "INTENTLOOP_BLOBS__ROOT": str(tmp_path / "blobs"),
    }
    outbox = Outbox(tmp_path / "outbox.sqlite")

    async def scene() -> None:
        uplink = Uplink(url, TOKEN)
        courier = Courier("p", outbox, uplink, lambda: time.time_ns() // 1_000_000, 0.0)
        courier.put(*report("b1", 3))
        carrying = asyncio.create_task(courier.empty())
        await asyncio.sleep(1.0)
        assert not carrying.done()
        late = subprocess.Popen([sys.executable, "-m", "gateway"], env=environment)
        try:
            await asyncio.wait_for(carrying, 60)
        finally:
            embedded.stop(late)
            await uplink.close()

    asyncio.run(scene())
    assert outbox.sent().waiting == 0
    outbox.close()
    (found,) = envelopes(kafka, 1)
    assert [event.ts_ms for event in found.events] == [NOW_MS - 1000 + number for number in range(3)]
    assert found.sent_at_ms is not None
    assert abs(found.received_at_ms - found.sent_at_ms) < 2_000  # of the attempt that arrived, not of the first


def test_a_batch_that_is_sent_again_after_a_lost_answer_has_the_same_id_and_events(
    gateway: RunningGateway, kafka: KafkaSection, tmp_path: Path
) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    carry(outbox, gateway.url, 1.0, report("b1", 2))
    outbox.close()
    first, second = envelopes(kafka, 2)
    assert first.batch_id == second.batch_id == "b1"
    assert first.events == second.events


def test_a_batch_that_is_refused_for_good_does_not_block_the_next(
    gateway: RunningGateway, kafka: KafkaSection, tmp_path: Path
) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    carry(outbox, gateway.url, 0.0, report("too-many", 201), report("b2", 2))
    sent = outbox.sent()
    outbox.close()
    assert (sent.waiting, sent.refused) == (0, 1)
    assert [found.batch_id for found in envelopes(kafka, 1)] == ["b2"]


def test_phones_that_are_killed_and_started_again_lose_nothing_they_had_written_down(
    gateway: RunningGateway, kafka: KafkaSection, tmp_path: Path
) -> None:
    directory = tmp_path / "phones"
    environment = {
        **os.environ,
        "INTENTLOOP_PHONES__COUNT": "12",
        "INTENTLOOP_PHONES__GATEWAY": gateway.url,
        "INTENTLOOP_PHONES__TOKEN": TOKEN,
        "INTENTLOOP_PHONES__DIRECTORY": str(directory),
        "INTENTLOOP_PHONES__TIME_SCALE": "2000",
        "INTENTLOOP_PHONES__PAUSE_S": "0.3",
        "INTENTLOOP_PHONES__BROKEN_RATIO": "0.02",
        "INTENTLOOP_RELEASE__PUBLIC_KEY": signing.generate_keys()[1],
    }
    command = [sys.executable, "-m", "demo.phones"]
    first = subprocess.Popen(command, env=environment)
    wait_for(lambda: read_sent(directory / "outbox.sqlite").events > 200, "phones sent nothing")
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.Popen(command, env=environment)
    try:
        killed_at = read_sent(directory / "outbox.sqlite").events
        wait_for(lambda: read_sent(directory / "outbox.sqlite").events > killed_at + 100, "phones did not go on")
        ask_to_finish(directory)
        wait_for(lambda: read_state(directory).finished, "phones did not finish")
    finally:
        embedded.stop(second)
    sent = read_sent(directory / "outbox.sqlite")
    state = read_state(directory)
    assert (sent.waiting, sent.refused) == (0, 0)
    assert state.inferences == 0
    assert state.skipped["model_not_ready"] > 0  # there is no release, and phones say so
    found = envelopes(kafka, sent.batches)
    ids = {event.event_id for envelope in found for event in envelope.events}
    rejected = {(envelope.batch_id, each.index) for envelope in found for each in envelope.rejected}
    assert len(ids) + len(rejected) == sent.events
    assert rejected


def published(root: Path, redis: RedisSection, version: str, signer: str) -> None:
    """Register a release whose only file holds no model, signed by `signer`."""
    content = b"weights"
    source = root / f"made-{version}"
    source.mkdir(parents=True)
    (source / "llm.mnn").write_bytes(content)
    file = ReleaseFile(
        name="llm.mnn",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        md5=hashlib.md5(content, usedforsecurity=False).hexdigest(),
    )
    manifest = signing.sign(
        Manifest(
            version=version,
            previous="",
            base_model="m",
            prompt_version="p1",
            engine="e",
            quantiser="q",
            layers_dropped=(),
            files=(file,),
            artefact_bytes=len(content),
            min_free_bytes=1_000,
            measured=None,
            steps=(),
            lineage={},
            reason="",
            created_at_ms=1,
        ),
        signer,
    )

    async def publish() -> None:
        client = connect(redis)
        await Registry(client, Keys(redis.prefix), root).publish(manifest, source)
        await client.aclose()

    asyncio.run(publish())


@pytest.mark.parametrize(
    ("version", "trusted", "free_bytes", "words"),
    [
        ("v1-unsigned", False, 0, "not signed by the key this phone trusts"),
        ("v2-large", True, 999, "needs 1000 free bytes, this phone has 999"),
        ("v3-tampered", True, 0, "the manifest says"),
        ("v4-verified", True, 0, "config.json does not exist"),  # only the engine finds that it is no model
    ],
)
def test_a_phone_installs_only_what_it_can_verify_and_hold(
    shared: RunningGateway,
    shared_redis: RedisSection,
    tmp_path: Path,
    version: str,
    trusted: bool,
    free_bytes: int,
    words: str,
) -> None:
    private_key, public_key = signing.generate_keys()
    published(shared.blobs, shared_redis, version, private_key if trusted else signing.generate_keys()[0])
    if version == "v3-tampered":
        (shared.blobs / "releases" / version / "llm.mnn").write_bytes(b"w31ghts")
    models = DeviceModels(tmp_path / "models", public_key, free_bytes)

    async def scene() -> None:
        uplink = Uplink(shared.url, TOKEN)
        try:
            assert (await uplink.config("u", "Redmi K80")).model_version == version
            await models.install(version, uplink)
        finally:
            await uplink.close()

    with pytest.raises(IntentloopError, match=words) as caught:
        asyncio.run(scene())
    models.close()
    is_verified = version == "v4-verified"
    assert isinstance(caught.value, DownloadError) == (not is_verified)
    assert (tmp_path / "models" / version).exists() == is_verified
    assert not models.is_ready(version)
