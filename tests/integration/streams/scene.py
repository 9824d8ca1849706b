"""One test's broker, Redis and worker processes, and how they are asked."""

import asyncio
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis

from intentloop.adapters.codec import encode
from intentloop.adapters.keys import Keys
from intentloop.adapters.settings import KafkaSection, RedisSection
from intentloop.adapters.topics_admin import ensure_topics
from intentloop.topics import ALL, TELEMETRY, Topic
from tests.integration.streams import world


class Scene:
    """One test's broker, Redis and worker processes."""

    def __init__(self, kafka: KafkaSection, section: RedisSection, directory: Path) -> None:
        self.kafka, self.section, self.directory = kafka, section, directory
        self.keys, self.source = Keys(section.prefix), TELEMETRY
        self.redis = Redis.from_url(section.url)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, module: str = "streams", **extra: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"worker{len(self.workers)}.log"
        self.workers.append(world.start_worker(self.kafka, self.section, log, module, **extra))
        return self.workers[-1]

    def log(self, number: int) -> str:
        return (self.directory / f"worker{number}.log").read_text()

    async def shared_out(self, each: int, timeout_s: float = 120.0) -> None:
        """Until every worker has been given that many partitions."""
        async with asyncio.timeout(timeout_s):
            while any(self.partitions(number) != each for number in range(len(self.workers))):
                await asyncio.sleep(0.1)

    def partitions(self, number: int) -> int:
        lines = [line for line in self.log(number).splitlines() if "partitions begin at offsets" in line]
        return lines[-1].count(":") - lines[0].split("partitions")[0].count(":") if lines else 0

    async def truth(self) -> world.Truth:
        return world.replay(await world.read_records(self.kafka, self.source), self.keys)

    async def applied(self, truth: world.Truth, timeout_s: float = 120.0) -> None:
        async with asyncio.timeout(timeout_s):
            while await world.watermarks(self.redis, self.keys, truth.watermarks) != truth.watermarks:
                assert self.workers[-1].poll() is None, self.log(len(self.workers) - 1)
                await asyncio.sleep(0.1)


@asynccontextmanager
async def scene(
    kafka: KafkaSection, section: RedisSection, directory: Path, table: tuple[Topic, ...] = ALL
) -> AsyncIterator[Scene]:
    ensure_topics(kafka, table)
    opened = Scene(kafka, section, directory)
    opened.source = next(topic for topic in table if topic.name == TELEMETRY.name)
    try:
        yield opened
    finally:
        for worker in opened.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        await opened.redis.aclose()


def envelopes(count: int, seed: int = 3) -> Iterator[tuple[str, bytes | None]]:
    for envelope in world.traffic(seed, count, users=40):
        yield envelope.user_id, encode(envelope)


async def wait_exit(worker: subprocess.Popen[bytes], timeout_s: float = 120.0) -> int:
    return await asyncio.wait_for(asyncio.to_thread(worker.wait), timeout_s)


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
