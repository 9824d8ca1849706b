"""A phone runs an adapter beside the full release it names, fetches that one if it lacks it, and takes no other."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from demo.device_model import DeviceModels
from demo.uplink import Uplink
from intentloop import prompt
from intentloop.adapters import signing
from intentloop.adapters.keys import Keys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import RedisSection
from intentloop.errors import ContractError
from intentloop.release import BaseArtefact, Manifest, artefact_sha256
from tests.integration.gateway.conftest import TOKEN, RunningGateway
from tests.integration.gateway.conftest import shared as shared
from tests.integration.gateway.conftest import shared_redis as shared_redis
from trainer import converter, publish
from trainer.adapter_release import graph
from trainer.rule import QuantRule

BASE = Path(publish.__file__).with_name("tiny_qwen3")
QUESTION = prompt.render("【行为序列】商详页(帐篷,¥199)")


class Released(msgspec.Struct, frozen=True):
    """What lies in the registry, and whom phones trust."""

    public_key: str
    sizes: dict[str, int]


def random_adapter(artefact: Path, seed: int) -> graph.Adapter:
    """An adapter so strong that the model says something else."""
    random = np.random.default_rng(seed)
    pairs: graph.Adapter = {}
    for name, op in graph.convolutions(graph.read(artefact)).items():
        if name.startswith("/layers."):
            common = op["main"]["common"]
            down = random.normal(0, 0.3, (2, common["inputCount"])).astype(np.float32)
            pairs[name] = (down, random.normal(0, 0.3, (common["outputCount"], 2)).astype(np.float32))
    return pairs


@pytest.fixture(scope="module")
def released(shared: RunningGateway, shared_redis: RedisSection, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """A full release v1, two adapters on it (v2, v3), and one that names another base (v4)."""
    directory = tmp_path_factory.mktemp("releases")
    private_key, public_key = signing.generate_keys()
    converter.convert(BASE, directory / "base", "rtn", 64, QuantRule())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(publish.PRIVATE_KEY, private_key)
        full = publish.pack(directory / "base", directory / "v1", manifest("v1"))
        named = BaseArtefact(version="v1", sha256=artefact_sha256(full.files))
        manifests = {"v1": full}
        for seed, (version, on) in enumerate(
            (("v2", named), ("v3", named), ("v4", msgspec.structs.replace(named, sha256="0" * 64)))
        ):
            files = directory / f"files-{version}"
            files.mkdir()
            graph.write(directory / "base", random_adapter(directory / "base", seed), "int8", files)
            draft = msgspec.structs.replace(manifest(version), kind="adapter", base=on)
            manifests[version] = publish.pack(files, directory / version, draft)
    asyncio.run(register(shared_redis, shared.blobs, directory, manifests))
    return Released(public_key, {version: each.artefact_bytes for version, each in manifests.items()})


async def register(redis: RedisSection, root: Path, directory: Path, manifests: dict[str, Manifest]) -> None:
    client = connect(redis)
    registry = Registry(client, Keys(redis.prefix), root)
    for version, each in manifests.items():
        await registry.publish(each, directory / version)
    await client.aclose()


def manifest(version: str) -> Manifest:
    empty: dict[str, Any] = {"previous": "", "reason": "", "files": (), "steps": (), "lineage": {}, "measured": None}
    return Manifest(
        version=version,
        base_model="tiny",
        prompt_version=prompt.VERSION,
        engine="e",
        quantiser="rtn",
        layers_dropped=(),
        artefact_bytes=0,
        min_free_bytes=1,
        created_at_ms=1,
        **empty,
    )


def test_a_phone_without_the_base_fetches_it_once_and_then_only_adapters(
    shared: RunningGateway, released: Released, tmp_path: Path
) -> None:
    models = DeviceModels(tmp_path, released.public_key, 0)

    async def scene() -> tuple[list[int], list[str]]:
        uplink = Uplink(shared.url, TOKEN)
        fetched, said = [], []
        for version in ("v2", "v3", "v1"):
            await models.install(version, uplink)
            fetched.append(models.fetched_bytes)
            said.append((await models.answer(version, QUESTION)).answer)
        await uplink.close()
        return fetched, said

    fetched, said = asyncio.run(scene())
    models.close()
    sizes = released.sizes
    assert fetched == [sizes["v1"] + sizes["v2"], *[sizes["v1"] + sizes["v2"] + sizes["v3"]] * 2]
    assert len(set(said)) == 3  # each adapter says its own, and the base what it always did
    assert (tmp_path / "v1" / "llm.mnn.weight").stat().st_nlink == 3  # on the disk once, for all three


def test_an_adapter_of_another_base_is_refused_however_well_it_is_signed(
    shared: RunningGateway, released: Released, tmp_path: Path
) -> None:
    models = DeviceModels(tmp_path, released.public_key, 0)

    async def scene() -> None:
        uplink = Uplink(shared.url, TOKEN)
        try:
            await models.install("v4", uplink)
        finally:
            await uplink.close()

    with pytest.raises(ContractError, match="needs the full release v1 with SHA-256 0000"):
        asyncio.run(scene())
    models.close()
    assert not models.is_ready("v4")
