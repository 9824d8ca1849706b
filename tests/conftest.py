"""Real services for tests: one broker and one Redis a session (and xdist worker), a prefix of its own a test."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection, RedisSection

# the same examples on every machine, and no verdict by the clock of a busy one
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("repeatable")


class Services(msgspec.Struct, frozen=True):
    """Addresses of the broker and Redis that tests share."""

    bootstrap: str
    redis_url: str


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A real broker and a real Redis on free loopback ports."""
    directory: Path = tmp_path_factory.mktemp("services")
    with embedded.services(directory) as (bootstrap, redis_url):
        yield Services(bootstrap, redis_url)


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test has, for topics, groups and keys."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def kafka(services: Services, prefix: str) -> KafkaSection:
    return KafkaSection(bootstrap=services.bootstrap, prefix=f"{prefix}.")


@pytest.fixture
def redis_section(services: Services, prefix: str) -> RedisSection:
    return RedisSection(url=services.redis_url, prefix=prefix)
