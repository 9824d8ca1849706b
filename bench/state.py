"""How much memory does a user take in Redis? `python -m bench.state`; the last line is one JSON object.

States of shoppers, folded by the real fold until each has `--window` events, are written by the real script under as
many keys as there are users, and Redis is asked for its memory before and after: keys, expiry and all. Then users come
and go with a short life, and memory must stay where one life's users put it. The peer is Metarank's published
0.8 GiB for a million users.
"""

import argparse
import asyncio
import time
from typing import Any

import msgspec
from redis.asyncio import Redis

from bench import traffic
from bench.stack import finish, fresh, say, stack
from intentloop import window
from intentloop.adapters.keys import Keys
from intentloop.adapters.state_store import NO_WATERMARK, PartitionWrite, StateStore
from intentloop.events import Envelope
from intentloop.fold import FoldRule, fold
from intentloop.picks import Spending
from intentloop.refusal import Source
from intentloop.topics import TELEMETRY
from intentloop.window import UserState

SHOPPERS = 500  # different states; each is written for many users
DAY_S = 86_400
METARANK_BYTES = 0.8 * 2**30 / 1e6  # published, see FACTS of the design
CHUNK = 1_000


class Writer:
    """Writes users' states as a worker does, one partition after the other."""

    def __init__(self, redis: Redis, states: list[bytes], ttl_s: int) -> None:
        self._keys = Keys(fresh())
        self._store, self._states = StateStore(redis, self._keys, ttl_s), states
        self._watermarks = dict.fromkeys(range(TELEMETRY.partitions), NO_WATERMARK)

    async def write(self, first: int, count: int) -> None:
        """Write users `first` to `first + count`."""
        for start in range(first, first + count, CHUNK):
            partition = start // CHUNK % TELEMETRY.partitions
            numbers = range(start, min(start + CHUNK, first + count))
            states = {
                self._keys.user(partition, f"{number:032x}"): self._states[number % len(self._states)]
                for number in numbers
            }
            expected = self._watermarks[partition]
            self._watermarks[partition] = expected + CHUNK
            await self._store.apply([PartitionWrite(partition, expected, expected + CHUNK, states, {})])


def main() -> None:
    """Measure, print the JSON."""
    options = _options()
    with stack("tansu") as services:
        finish({"bench": "state"} | asyncio.run(_measure(services.redis_url, options)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=40, help="events of each user")
    parser.add_argument("--lives", type=int, default=5, help="how many lives of users come and go")
    parser.add_argument("--life-seconds", type=int, default=2)
    return parser.parse_args()


async def _measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    redis = Redis.from_url(url)
    figures: dict[str, Any] = {}
    for name, events in (("", options.window), ("_busiest", window.MAX_IDS + 50)):
        states = folded_states(events)
        each = await _bytes_per_user(redis, states, options.users if not name else options.users // 5)
        packed = sum(map(len, states)) / len(states)
        say(f"{events} events a user: {each:.0f} bytes in Redis, {packed:.0f} of them packed state")
        figures |= {f"bytes_user{name}": each, f"packed_bytes{name}": packed}
    plateau = await _plateau(redis, folded_states(options.window), options)
    await redis.aclose()
    ours = figures["bytes_user"]
    peer = {"peer": METARANK_BYTES, "ratio": ours / METARANK_BYTES}
    return {"ours": ours} | peer | {"users": options.users, "window_events": options.window} | figures | plateau


def folded_states(events: int) -> list[bytes]:
    """Packed states of shoppers who did that many things each, by the real fold."""
    rule, source = FoldRule(), Source(TELEMETRY.name, 0, 0)
    made = traffic.templates(seed=11, count=SHOPPERS)
    states: list[bytes] = []
    for number in range(SHOPPERS):
        state, done = UserState(), 0
        while done < events:
            one = _later(made[(number + done) % SHOPPERS], done, events - done)
            state = fold(state, one, source, Spending(), rule).state
            done += len(one.events)
        states.append(window.pack(state))
    return states


def _later(envelope: Envelope, done: int, left: int) -> Envelope:
    """The envelope's last `left` events under new ids, after the `done` events before."""
    shift_ms = done * 60_000
    events = tuple(
        msgspec.structs.replace(event, event_id=f"{done}-{event.event_id}", ts_ms=event.ts_ms + shift_ms)
        for event in envelope.events[-left:]
    )
    received_ms = envelope.received_at_ms + shift_ms
    return msgspec.structs.replace(envelope, events=events, received_at_ms=received_ms, sent_at_ms=None)


async def _bytes_per_user(redis: Any, states: list[bytes], users: int) -> float:
    await redis.execute_command("FLUSHDB", "SYNC")  # else memory is freed while the next users come
    before = await _used(redis)
    await Writer(redis, states, DAY_S).write(0, users)
    return (await _used(redis) - before) / users


async def _plateau(redis: Any, states: list[bytes], options: argparse.Namespace) -> dict[str, float]:
    """New users come all the time and live `life_seconds`: does memory settle, and does it go when they have gone?"""
    await redis.execute_command("FLUSHDB", "SYNC")  # else memory is freed while the next users come
    before = await _used(redis)
    writer, life_s = Writer(redis, states, options.life_seconds), options.life_seconds
    wave = max(CHUNK, options.users // 20)
    peaks: list[float] = []
    number = 0
    for _ in range(options.lives):
        peak, until_s = 0, time.monotonic() + life_s
        while time.monotonic() < until_s:
            await writer.write(number, wave)
            number += wave
            peak = max(peak, await _used(redis) - before)
            await asyncio.sleep(life_s / 20)
        peaks.append(peak)
        say(f"life {len(peaks)}: {number} users came so far, at most {peak / 2**20:.1f} MiB")
    await asyncio.sleep(life_s * 2)
    left = await _used(redis) - before
    settled = min(peaks[1:3] or peaks)
    return {
        "plateau_users": number,
        "plateau_first_mib": peaks[0] / 2**20,
        "plateau_last_mib": peaks[-1] / 2**20,
        "plateau_growth_ratio": peaks[-1] / settled,
        "left_after_expiry_mib": left / 2**20,
    }


async def _used(redis: Any) -> int:
    return int((await redis.info("memory"))["used_memory"])


if __name__ == "__main__":
    main()
