"""The trainer as the process it is: started by settings alone, it releases version 1 into an empty registry."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from intentloop.adapters import signing
from intentloop.adapters.keys import Keys as RedisKeys
from intentloop.adapters.redis_client import connect
from intentloop.adapters.registry import Registry
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.errors import EXIT_CONFIGURATION
from intentloop.release import Manifest
from trainer.engine import Engine

from .conftest import Keys


def test_a_trainer_without_a_key_says_so_before_it_trains() -> None:
    environment = {**os.environ, "INTENTLOOP_RELEASE__PRIVATE_KEY": ""}
    done = subprocess.run(
        [sys.executable, "-m", "trainer"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_CONFIGURATION
    assert "INTENTLOOP_RELEASE__PRIVATE_KEY is empty" in done.stderr


def test_an_empty_registry_gets_the_base_model_as_its_first_release(
    redis_section: RedisSection, kafka: KafkaSection, tmp_path: Path, golden_file: Path, release_keys: Keys
) -> None:
    ensure_topics(kafka)
    environment = {
        **os.environ,
        "INTENTLOOP_REDIS__URL": redis_section.url,
        "INTENTLOOP_REDIS__PREFIX": redis_section.prefix,
        "INTENTLOOP_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "INTENTLOOP_KAFKA__PREFIX": kafka.prefix,
        "INTENTLOOP_BLOBS__ROOT": str(tmp_path / "blobs"),
        "INTENTLOOP_RELEASE__PRIVATE_KEY": release_keys.private,
        "INTENTLOOP_TRAINER__WORK": str(tmp_path / "runs"),
        "INTENTLOOP_TRAINER__GOLDEN": str(golden_file),
        "INTENTLOOP_TRAINER__BURST": "true",
    }
    subprocess.run([sys.executable, "-m", "trainer"], env=environment, check=True, timeout=180)

    async def released() -> tuple[Manifest, Path]:
        redis = connect(redis_section)
        try:
            registry = Registry(redis, RedisKeys(redis_section.prefix), tmp_path / "blobs")
            rollout = await registry.current()
            assert rollout is not None
            return await registry.manifest(rollout.version), await registry.directory(rollout.version)
        finally:
            await redis.aclose()

    manifest, directory = asyncio.run(released())
    assert manifest.version.startswith("v1-")
    assert signing.verify(manifest, release_keys.public)
    assert manifest.measured is not None
    assert manifest.measured.accuracy_all.samples == 120
    assert Engine(directory).answer("<|im_start|>").prompt_tokens == 1
