"""How does the whole system come up? Services, topics, first release, processes; each waited for until it is well."""

import asyncio
import socket
import time
from collections.abc import Sequence

import httpx

from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.supervisor import ProcessSpec, Supervisor
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.commands.stack import Place, Plan, services
from intentloop.errors import UnavailableError

START_TIMEOUT_S = 90.0


async def start_services(plan: Plan, place: Place, supervisor: Supervisor) -> None:
    """Start what is ours of broker and Redis, then make the topics.

    Raises:
        UnavailableError: a service does not answer.
        ConfigurationError: a topic is there with another partition count.
    """
    for spec in services(plan, place):
        supervisor.start(spec)
    await _wait_for_port(plan.bootstrap.split(",")[0])
    await asyncio.to_thread(ensure_topics, kafka_section(plan))


def kafka_section(plan: Plan) -> KafkaSection:
    """Where is the broker?"""
    return KafkaSection(bootstrap=plan.bootstrap, prefix=f"{plan.prefix}." if plan.prefix else "")


def redis_section(plan: Plan) -> RedisSection:
    """Where is Redis?"""
    return RedisSection(url=plan.redis_url, prefix=plan.prefix or "il")


async def start_processes(supervisor: Supervisor, specs: Sequence[ProcessSpec], health: dict[str, str]) -> None:
    """Start processes side by side and wait until each says that it is well.

    Args:
        health: URL by process name; a process that is not in it is not waited for.
    Raises:
        UnavailableError: one is not well in time; the message holds its last words.
    """
    for spec in specs:
        supervisor.start(spec)
    async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
        await asyncio.gather(*(_wait_until_well(client, name, url, supervisor) for name, url in health.items()))


async def _wait_until_well(client: httpx.AsyncClient, name: str, url: str, supervisor: Supervisor) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    last = "no answer"
    while time.monotonic() < deadline:
        try:
            answer = await client.get(url)
            if answer.status_code == 200:
                return
            last = answer.text[:300]
        except httpx.HTTPError as error:
            last = repr(error)
        await asyncio.sleep(0.1)
    raise UnavailableError(f"{name} is not well after {START_TIMEOUT_S:g} s: {last}; see {supervisor.log(name)}")


async def _wait_for_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            await asyncio.to_thread(lambda: socket.create_connection((host, int(port)), 1.0).close())
            return
        except OSError:
            await asyncio.sleep(0.05)
    raise UnavailableError(f"no broker answers on {address} within 30 s")
