"""A release counts when it is complete, whatever was killed when."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from intentloop.adapters import blobs
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import RedisSection
from intentloop.errors import ContractError
from intentloop.release import Rollout
from tests.integration.gateway.release_fixture import build_release

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def redis(redis_section: RedisSection, anyio_backend: str) -> AsyncIterator[Redis]:
    client = connect(redis_section)
    yield client
    await client.aclose()


@pytest.fixture
def registry(redis: Redis, redis_section: RedisSection, tmp_path: Path) -> Registry:
    return Registry(redis, Keys(redis_section.prefix), tmp_path / "blobs")


async def test_before_the_first_release_there_is_none(registry: Registry) -> None:
    assert await registry.current() is None
    assert await registry.versions() == []
    with pytest.raises(ContractError, match="'v1'"):
        await registry.manifest("v1")


async def test_a_published_release_is_current_and_the_one_before_is_its_previous(
    registry: Registry, tmp_path: Path
) -> None:
    first = build_release(tmp_path / "run1", "v1", {"llm.mnn": b"graph", "sub/config.json": b"{}"})
    second = build_release(tmp_path / "run2", "v2", {"llm.mnn": b"graph two"})
    await registry.publish(first, tmp_path / "run1")
    assert await registry.current() == Rollout(version="v1", previous="", share=1.0)
    await registry.publish(second, tmp_path / "run2")
    assert await registry.current() == Rollout(version="v2", previous="v1", share=1.0)
    assert await registry.versions() == ["v1", "v2"]
    assert await registry.manifest("v1") == first
    directory = await registry.directory("v1")
    assert (directory / "sub/config.json").read_bytes() == b"{}"
    assert msgspec.json.decode((directory / "manifest.json").read_bytes())["version"] == "v1"


async def test_publishing_an_old_release_again_takes_no_phone_back(registry: Registry, tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        manifest = build_release(tmp_path / version, version, {"llm.mnn": version.encode()})
        await registry.publish(manifest, tmp_path / version)
    await registry.publish(await registry.manifest("v1"), tmp_path / "v1")
    assert await registry.current() == Rollout(version="v2", previous="v1", share=1.0)


async def test_a_file_that_differs_from_the_manifest_is_never_released(registry: Registry, tmp_path: Path) -> None:
    manifest = build_release(tmp_path / "run", "v1", {"llm.mnn": b"graph"})
    (tmp_path / "run" / "llm.mnn").write_bytes(b"grapH")
    with pytest.raises(ContractError, match=hashlib.sha256(b"grapH").hexdigest()):
        await registry.publish(manifest, tmp_path / "run")
    assert await registry.current() is None
    assert list((tmp_path / "blobs" / "releases").iterdir()) == []


async def test_one_version_never_names_two_contents(registry: Registry, tmp_path: Path) -> None:
    await registry.publish(build_release(tmp_path / "a", "v1", {"llm.mnn": b"a"}), tmp_path / "a")
    with pytest.raises(ContractError, match="another manifest"):
        await registry.publish(build_release(tmp_path / "b", "v1", {"llm.mnn": b"b"}), tmp_path / "b")


async def test_a_stored_copy_that_was_damaged_is_replaced(registry: Registry, tmp_path: Path) -> None:
    manifest = build_release(tmp_path / "run", "v1", {"llm.mnn": b"graph"})
    await registry.publish(manifest, tmp_path / "run")
    stored = await registry.directory("v1") / "llm.mnn"
    stored.write_bytes(b"rot")
    await registry.publish(manifest, tmp_path / "run")
    assert stored.read_bytes() == b"graph"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ".hidden", "a\\b", "", "manifest.json", "a//b"])
def test_a_file_name_cannot_leave_its_release(name: str) -> None:
    with pytest.raises(ContractError, match="plain relative path"):
        blobs.check_name(name)


@pytest.mark.parametrize("version", ["", "..", "a/b", ".x", "v" * 129, "a..b", "v1\n"])
def test_a_version_cannot_leave_the_releases(version: str) -> None:
    with pytest.raises(ContractError, match="version"):
        blobs.check_version(version)


_PUBLISH = """
import asyncio, msgspec, sys
from pathlib import Path
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import RedisSection
from intentloop.release import Manifest
url, prefix, root, run = sys.argv[1:]
async def main():
    redis = connect(RedisSection(url=url, prefix=prefix))
    manifest = msgspec.json.decode((Path(run) / "manifest.json").read_bytes(), type=Manifest)
    print("go", flush=True)
    await Registry(redis, Keys(prefix), Path(root)).publish(manifest, Path(run))
asyncio.run(main())
"""


async def test_a_publisher_that_is_killed_leaves_all_or_nothing_and_the_next_one_finishes(
    registry: Registry, redis_section: RedisSection, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    manifest = build_release(run, "v1", {"llm.mnn.weight": os.urandom(48 << 20), "llm.mnn": b"graph"})
    (run / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    arguments = [redis_section.url, redis_section.prefix, str(tmp_path / "blobs"), str(run)]
    killed = 0
    for wait_s in (0.0, 0.01, 0.03, 0.06):
        publisher = subprocess.Popen([sys.executable, "-c", _PUBLISH, *arguments], stdout=subprocess.PIPE)
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"go\n"
        time.sleep(wait_s)
        os.kill(publisher.pid, signal.SIGKILL)
        killed += publisher.wait() == -signal.SIGKILL
        publisher.stdout.close()
        if await registry.current() is not None:
            blobs.verify(manifest, await registry.directory("v1"))
    assert killed >= 2
    await registry.publish(manifest, run)
    assert await registry.current() == Rollout(version="v1")
    blobs.verify(manifest, await registry.directory("v1"))
    assert [path.name for path in (tmp_path / "blobs" / "releases").iterdir()] == ["v1"]
