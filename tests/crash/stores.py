"""A Redis that can be killed, cut, wiped, stalled, filled and failed over, and brokers that can be killed."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from intentloop.adapters import embedded
from tests.integration.conftest import start_apache_kafka


class Door:
    """A TCP address that leads to the Redis that is primary now; open connections stay with the one they had."""

    def __init__(self) -> None:
        self.target = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            finally:
                back.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Store:
    """One primary on its own directory, and after a failover its former replica; all behind one door."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []
        self._door = Door()
        self.port = 0

    async def open(self) -> None:
        self.port = await self._door.open()
        self._processes.append(await self._start(embedded.free_port()))
        self._door.target = self._ports[0]

    def close(self) -> None:
        self._door.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def client(self) -> Redis:
        """A client of the primary itself, past the door."""
        return Redis(port=self._door.target)

    async def kill_and_return(self, cut_bytes: int = 0, wipe: bool = False) -> None:
        """`kill -9`; then the same directory again, perhaps without the end of its newest file, or without all."""
        process, port = self._processes[-1], self._ports[-1]
        process.kill()
        process.wait()
        data = self._data(port)
        if wipe:
            assert any(data.iterdir()), "Redis has kept nothing that could be lost"
            shutil.rmtree(data)
        elif cut_bytes:
            newest = max(data.glob("appendonlydir/*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)
            assert newest.stat().st_size, "there is nothing to cut off"
            os.truncate(newest, max(0, newest.stat().st_size - cut_bytes))
        self._ports.pop()
        self._processes[-1] = await self._start(port)

    async def flush(self) -> None:
        async with self.client() as redis:
            await redis.flushall()

    async def stall(self, seconds: float) -> None:
        """The process is there and its port is open, but nothing answers."""
        self._processes[-1].send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._processes[-1].send_signal(signal.SIGCONT)

    async def pause(self, seconds: float) -> None:
        async with self.client() as redis:
            await redis.client_pause(int(seconds * 1000))
        await asyncio.sleep(seconds)

    async def refuse_writes(self, seconds: float) -> None:
        """OOM: every write is an error for a while, reads go on."""
        async with self.client() as redis:
            await redis.config_set("maxmemory", 1)
            with contextlib.suppress(OutOfMemoryError):
                await redis.set("probe", 1)
                raise AssertionError("a full Redis took a write")
            await asyncio.sleep(seconds)
            await redis.config_set("maxmemory", 0)

    async def fail_snapshots(self, seconds: float) -> None:
        """MISCONF: the background save fails, and Redis refuses writes until one succeeds."""
        in_the_way = self._data(self._ports[-1]) / "dump.rdb"
        in_the_way.mkdir()
        async with self.client() as redis:
            await redis.config_set("save", "3600 1")
            await redis.bgsave()
            await asyncio.sleep(seconds)
            refused = (await redis.info("persistence"))["rdb_last_bgsave_status"]
            in_the_way.rmdir()
            await redis.bgsave()
            await redis.config_set("save", "")
        assert refused == "err", "the background save did not fail"

    async def fail_over(self) -> None:
        """A replica becomes primary; the old primary lives on as its replica, and nobody's connection is closed."""
        port = embedded.free_port()
        replica = await self._start(port)
        old = self.client()
        async with Redis(port=port) as new, old:
            await new.replicaof("127.0.0.1", str(self._door.target))
            async with asyncio.timeout(30):
                while (await new.info("replication")).get("master_link_status") != "up":
                    await asyncio.sleep(0.05)
            await new.replicaof("NO", "ONE")
            await asyncio.sleep(0.05)  # what the old primary confirms now is lost
            self._door.target = port
            await old.replicaof("127.0.0.1", str(port))
        self._processes.append(replica)

    async def _start(self, port: int) -> subprocess.Popen[bytes]:
        process = await asyncio.to_thread(embedded.start_redis, port, self._data(port), self._directory / "redis.log")
        self._ports.append(port)
        return process

    def _data(self, port: int) -> Path:
        return self._directory / f"redis-{port}"


class EmbeddedBroker:
    """tansu: what it holds is gone when it stops, so a return is a broker whose offsets start again."""

    name = "tansu"

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, embedded.free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._process = embedded.start_broker(self._port, directory / "broker.log")

    def close(self) -> None:
        embedded.stop(self._process)

    async def kill_and_return(self, away_s: float) -> None:
        self._process.kill()
        self._process.wait()
        await asyncio.sleep(away_s)
        self._process = await asyncio.to_thread(embedded.start_broker, self._port, self._directory / "broker.log")


class ApacheBroker:
    """Apache Kafka of ../shared/kafka: it comes back with its topics."""

    name = "apache"

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, embedded.free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self._process = self._start()

    def close(self) -> None:
        embedded.stop(self._process, timeout_s=20)
        self._forget()

    async def kill_and_return(self, away_s: float) -> None:
        for child in psutil.Process(self._process.pid).children(recursive=True):
            child.kill()
        await asyncio.to_thread(self._process.wait, 20)
        self._forget()
        await asyncio.sleep(away_s)
        self._process = await asyncio.to_thread(self._start)

    def _start(self) -> subprocess.Popen[bytes]:
        return start_apache_kafka(self._port, self._directory / "kafka", self._directory / "kafka.log")

    def _forget(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()


Broker = EmbeddedBroker | ApacheBroker
