"""How many phones' posts does one gateway process take? `python -m bench.gateway`; the last line is one JSON object.

Gzipped envelopes of 25 events, acknowledged by Kafka before the phone is told, over 64 connections in a closed loop.
Beside the gateway, one after the other on the same broker: a bare handler with the same producer (plain ASGI, and
Starlette where it is installed), the same handler with other producers, and with none; and a handler in Starlette that
does the gateway's work on a sound batch (`same`), which is the fair comparison: `ratio_same_work`. The bare one checks
nothing and is the ceiling: `ratio`. Server, broker and load share the machine's cores.
"""

import argparse
import asyncio
import socket
import statistics
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench import traffic
from bench.load import Answered, closed_loop
from bench.stack import (
    BROKERS,
    EXTRAS,
    Stack,
    cpu_s,
    environment,
    finish,
    fresh,
    percentile,
    running,
    say,
    stack,
    wait_until,
)
from intentloop.adapters import embedded
from intentloop.adapters.topics_admin import ensure_topics

TOKEN = "bench"
HEAD = (
    b"POST /v1/telemetry HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer bench\r\n"
    b"content-type: application/json\r\n"
)
REQUESTS = 800
CEILING = "asgi ours bare"
BARE = (CEILING, "asgi none bare", "asgi aiokafka bare", "asgi kafka_python bare")
STARLETTE, FAIR = "starlette ours bare", "starlette ours same"


class Measured(msgspec.Struct, frozen=True):
    """One server's run."""

    requests_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_request: float
    wrong: float


def main() -> None:
    """Run everyone, print the table and the JSON."""
    options = _options()
    uvloop.install()
    requests = [request for _, request in traffic.posts(7, REQUESTS, int(time.time() * 1000) - 300_000, HEAD)]
    everyone = ["gateway", *BARE, *([STARLETTE, FAIR] if (options.extras / "starlette").is_dir() else [])]
    names = everyone if options.only is None else options.only
    with stack(options.broker) as services:
        found: dict[str, list[Measured]] = {}
        _run(services, "asgi ours bare", requests, options)  # for the broker: a young JVM is slow, and takes the cores
        for number in range(options.rounds):
            order = deque(names)
            order.rotate(number)
            for name in order:
                found.setdefault(name, []).append(_run(services, name, requests, options))
                say(f"{name:24s} {_line(found[name][-1])}")
    medians = {name: _median(runs) for name, runs in found.items()}
    finish({"bench": "gateway", "broker": options.broker} | _figures(medians, options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run, after a second to warm up")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--broker", choices=BROKERS, default="tansu")
    parser.add_argument("--extras", type=Path, default=EXTRAS, help="where starlette is installed, if it is")
    parser.add_argument("--only", nargs="*", default=None, help='for example "gateway" "asgi ours bare"')
    return parser.parse_args()


def _run(services: Stack, name: str, requests: list[bytes], options: argparse.Namespace) -> Measured:
    prefix, port = fresh(), embedded.free_port()
    kafka, redis = services.kafka(f"{prefix}."), services.redis(prefix)
    ensure_topics(kafka)
    env = environment(kafka, redis, gateway_settings(port, services.directory))
    arguments = ["gateway"] if name == "gateway" else ["bench.bare_handler", *name.split(), str(port)]
    if name in {STARLETTE, FAIR}:
        env["PYTHONPATH"] = str(options.extras.resolve())
    with running(arguments, env, services.directory / f"{prefix}.log") as process:
        wait_until(lambda: _answers(port, requests[0]), f"{name} did not answer")
        asyncio.run(closed_loop(port, requests, options.connections, min(1.0, options.seconds)))
        before_s = cpu_s(process.pid)
        answered = asyncio.run(closed_loop(port, requests, options.connections, options.seconds))
        return _measured(answered, cpu_s(process.pid) - before_s)


def gateway_settings(port: int, directory: Path) -> dict[str, str]:
    """What does a gateway need besides its broker and Redis?"""
    return {
        "INTENTLOOP_HTTP__PORT": str(port),
        "INTENTLOOP_PRIVACY__USER_KEY": "bench",
        "INTENTLOOP_AUTH__DEVICE_TOKEN": TOKEN,
        "INTENTLOOP_BLOBS__ROOT": str(directory / "blobs"),
    }


def _answers(port: int, request: bytes) -> bool:
    """Does it take a post yet?"""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as client:
        client.settimeout(5)
        client.sendall(request)
        return client.recv(64).startswith(b"HTTP/1.1 202")
    return False


def _measured(answered: Answered, cpu: float) -> Measured:
    count = len(answered.seconds)
    return Measured(
        count / answered.wall_s,
        percentile(answered.seconds, 0.5) * 1000,
        percentile(answered.seconds, 0.99) * 1000,
        cpu * 1e6 / count,
        answered.wrong,
    )


def _median(runs: list[Measured]) -> Measured:
    columns = zip(*(msgspec.structs.astuple(one) for one in runs), strict=True)
    return Measured(*(statistics.median(column) for column in columns))


def _line(one: Measured) -> str:
    return (
        f"{one.requests_s:8,.0f} requests/s  p50 {one.p50_ms:6.1f} ms  p99 {one.p99_ms:6.1f} ms  "
        f"{one.cpu_us_request:6.0f} µs CPU a request  {one.wrong:.0f} not 202"
    )


def _figures(medians: dict[str, Measured], options: argparse.Namespace) -> dict[str, Any]:
    ours = medians["gateway"]
    named = {name.replace(" ", "_"): one for name, one in medians.items()}

    def ratio(peer: str) -> float | None:
        return ours.requests_s / medians[peer].requests_s if peer in medians else None

    return {
        "ours": ours.requests_s,
        "peer": medians[CEILING].requests_s if CEILING in medians else None,
        "ratio": ratio(CEILING),
        "ratio_same_work": ratio(FAIR),
        "ratio_starlette": ratio(STARLETTE),
        "events_s": ours.requests_s * traffic.PER_ENVELOPE,
        "p99_ms": ours.p99_ms,
        "cpu_us_request": ours.cpu_us_request,
        "connections": options.connections,
        "refused": ours.wrong,
        "requests_s": {name: round(one.requests_s) for name, one in named.items()},
        "p99_ms_of": {name: round(one.p99_ms, 1) for name, one in named.items()},
    }


if __name__ == "__main__":
    main()
