"""Phones learn which release they run, fetch it, and go on where a download broke."""

import asyncio
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import RedisSection
from intentloop.privacy import user_hash
from intentloop.release import Manifest, Rollout, version_for
from tests.integration.gateway.conftest import USER_KEY, RunningGateway
from tests.integration.gateway.release_fixture import build_release

WEIGHTS = os.urandom(700_001)


def publish(section: RedisSection, root: Path, manifest: Manifest, run: Path) -> None:
    async def main() -> None:
        redis = connect(section)
        await Registry(redis, Keys(section.prefix), root).publish(manifest, run)
        await redis.aclose()

    asyncio.run(main())


def set_rollout(section: RedisSection, rollout: Rollout) -> None:
    async def main() -> None:
        redis = connect(section)
        await redis.set(Keys(section.prefix).release, msgspec.json.encode(rollout))
        await redis.aclose()

    asyncio.run(main())


@pytest.fixture(scope="module")
def released(shared: RunningGateway, shared_redis: RedisSection, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Release v1 of the shared gateway, published while it runs."""
    run = tmp_path_factory.mktemp("run")
    manifest = build_release(run, "v1", {"llm.mnn.weight": WEIGHTS, "sub/config.json": b"{}"})
    (run / "secret.txt").write_text("not in the manifest")
    publish(shared_redis, shared.blobs, manifest, run)
    return manifest


@pytest.fixture
def own_released(gateway: RunningGateway, redis_section: RedisSection, tmp_path: Path) -> Manifest:
    """Release v1 of a test's own gateway, for tests that release more."""
    manifest = build_release(tmp_path / "run", "v1", {"llm.mnn": b"one"})
    publish(redis_section, gateway.blobs, manifest, tmp_path / "run")
    return manifest


def test_before_the_first_release_the_config_says_so(gateway: RunningGateway) -> None:
    answer = gateway.client.get("/v1/device/config", params={"user_id": "u1", "device_model": "M"})
    assert answer.status_code == 200
    found = answer.json()
    assert (found["model_version"], found["manifest_path"], found["enabled"]) == ("", "", True)
    assert found["trigger"] == {"min_item_views": 3}


def test_a_phone_finds_fetches_and_verifies_its_release(shared: RunningGateway, released: Manifest) -> None:
    config = shared.client.get("/v1/device/config", params={"user_id": "u1"}).json()
    assert config["model_version"] == "v1"
    raw = shared.client.get(config["manifest_path"]).content
    assert hashlib.sha256(raw).hexdigest() == config["manifest_sha256"]
    manifest = msgspec.json.decode(raw, type=Manifest)
    assert manifest == released
    for entry in manifest.files:
        answer = shared.client.get(f"/v1/models/v1/files/{entry.name}")
        assert (answer.status_code, len(answer.content)) == (200, entry.size_bytes)
        assert hashlib.sha256(answer.content).hexdigest() == entry.sha256
        assert answer.headers["etag"] == f'"{entry.sha256}"'


def test_an_unchanged_config_is_304_and_a_new_release_is_not(
    gateway: RunningGateway, own_released: Manifest, redis_section: RedisSection, tmp_path: Path
) -> None:
    first = gateway.client.get("/v1/device/config", params={"user_id": "u1"})
    assert first.headers["etag"] == f'"{hashlib.md5(first.content).hexdigest()}"'
    same = gateway.client.get(
        "/v1/device/config", params={"user_id": "u1"}, headers={"if-none-match": first.headers["etag"]}
    )
    assert (same.status_code, same.content) == (304, b"")
    second = build_release(tmp_path / "run2", "v2", {"llm.mnn": b"x"})
    publish(redis_section, gateway.blobs, second, tmp_path / "run2")
    changed = gateway.client.get(
        "/v1/device/config", params={"user_id": "u1"}, headers={"if-none-match": first.headers["etag"]}
    )
    assert (changed.status_code, changed.json()["model_version"]) == (200, "v2")


def test_a_staged_rollout_goes_by_the_hashed_user(
    gateway: RunningGateway, own_released: Manifest, redis_section: RedisSection, tmp_path: Path
) -> None:
    second = build_release(tmp_path / "run2", "v2", {"llm.mnn": b"x"})
    publish(redis_section, gateway.blobs, second, tmp_path / "run2")
    rollout = Rollout(version="v2", previous="v1", share=0.5)
    set_rollout(redis_section, rollout)
    seen = set()
    for user in (f"u{number}" for number in range(20)):
        found = gateway.client.get("/v1/device/config", params={"user_id": user}).json()["model_version"]
        assert found == version_for(user_hash(user, USER_KEY.encode()), rollout)
        seen.add(found)
    assert seen == {"v1", "v2"}


def test_a_range_is_sent_and_named(shared: RunningGateway, released: Manifest) -> None:
    for asked, start, stop in (
        ("bytes=0-99", 0, 100),
        ("bytes=300000-", 300_000, 700_001),
        ("bytes=-1", 700_000, 700_001),
        ("bytes=700000-999999999", 700_000, 700_001),
    ):
        answer = shared.client.get("/v1/models/v1/files/llm.mnn.weight", headers={"range": asked})
        assert (answer.status_code, answer.content == WEIGHTS[start:stop]) == (206, True), asked
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/700001"
        assert answer.headers["content-length"] == str(stop - start)


def test_a_broken_download_goes_on_only_with_the_same_content(shared: RunningGateway, released: Manifest) -> None:
    path, etag = "/v1/models/v1/files/llm.mnn.weight", f'"{released.files[0].sha256}"'
    rest = shared.client.get(path, headers={"range": "bytes=500000-", "if-range": etag})
    assert (rest.status_code, WEIGHTS[:500_000] + rest.content == WEIGHTS) == (206, True)
    other = shared.client.get(path, headers={"range": "bytes=500000-", "if-range": '"another"'})
    assert (other.status_code, other.content == WEIGHTS) == (200, True)
    assert shared.client.get(path, headers={"if-none-match": etag}).status_code == 304
    for asked in ("bytes=700001-", "bytes=9-3", "bytes=-0"):
        assert shared.client.get(path, headers={"range": asked}).status_code == 416
    for asked in ("bytes=-", "bytes=1-2,5-6", "items=1-2", "junk"):
        assert shared.client.get(path, headers={"range": asked}).status_code == 200


def test_nothing_but_a_release_s_own_files_can_be_asked_for(shared: RunningGateway, released: Manifest) -> None:
    for path in (
        "/v1/models/v1/files/secret.txt",
        "/v1/models/v1/files/manifest.json",
        "/v1/models/v1/files/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/models/v1/files/%2e%2e/%2e%2e/gateway.log",
        "/v1/models/v1/files//etc/passwd",
        "/v1/models/v1/files/sub%5cconfig.json",
        "/v1/models/v1/files/sub",
        "/v1/models/v1/files/llm.mnn.weight%00",
        "/v1/models/v9/files/llm.mnn.weight",
        "/v1/models/..%2fv1/files/llm.mnn.weight",
        "/v1/models/%2e%2e/manifest.json",
        "/v1/models/v9/manifest.json",
    ):
        assert shared.client.get(path).status_code == 404, path


def test_a_file_that_is_not_whole_here_is_a_matter_of_time(
    gateway: RunningGateway, own_released: Manifest, redis_section: RedisSection
) -> None:
    path = gateway.blobs / "releases" / "v1" / "llm.mnn"
    path.write_bytes(b"on")
    answer = gateway.client.get("/v1/models/v1/files/llm.mnn")
    assert (answer.status_code, answer.json()["retry"]) == (503, True)
    path.write_bytes(b"one")
    assert gateway.client.get("/v1/models/v1/files/llm.mnn").content == b"one"


def test_what_the_framework_refuses_looks_the_same_to_a_phone(shared: RunningGateway) -> None:
    for path, status in (("/v1/nothing", 404), ("/v1/telemetry", 405), ("/v1/device/config", 400)):
        answer = shared.client.get(path)
        assert (answer.status_code, answer.json()["retry"]) == (status, False)
        assert answer.json()["error"]


def test_openapi_describes_what_phones_send(shared: RunningGateway) -> None:
    document = shared.client.get("/schema/openapi.json").json()
    assert {"/v1/telemetry", "/v1/device/config", "/v1/models/{version}/manifest.json"} <= set(document["paths"])
    body = document["paths"]["/v1/telemetry"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["required"]) == {"batch_id", "user_id", "device_id", "events"}
    kinds = [each["properties"]["kind"]["enum"][0] for each in body["properties"]["events"]["items"]["anyOf"]]
    assert kinds == ["behaviour", "inference", "inference_skipped"]
    answer = document["paths"]["/v1/telemetry"]["post"]["responses"]["202"]["content"]["application/json"]["schema"]
    described = document["components"]["schemas"][answer["$ref"].rpartition("/")[2]]
    assert set(described["properties"]) == {"accepted", "rejected", "repaired"}
