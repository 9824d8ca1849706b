"""What may happen to a running system, one by one, and how each is played.

A fault is something that happens to a stage while its workers are in the middle of their work. A scenario is a list of
them with a number of workers; after all of them states, facts and counters must be those of a straight replay.
"""

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

from tests.crash.stage import BROKEN, KILLED, Fault, Stage, stage
from tests.crash.stores import ApacheBroker, Broker, EmbeddedBroker
from tests.integration.streams import world

JOINING = "health on port"  # a worker logs it within its first assignment, so while its group rebalances


async def kill_a_worker(scene: Stage) -> None:
    scene.kill(scene.any_worker())


async def stop_a_worker(scene: Stage) -> None:
    """A clean stop with a backlog: commit, leave, and a new one begins."""
    await scene.stop(scene.any_worker())


async def kill_within_a_rebalance(scene: Stage) -> None:
    """One is replaced, and while its successor joins, another is killed."""
    joining = scene.any_worker()
    await scene.stop(joining)
    await scene.until_logged(joining, JOINING)
    await asyncio.sleep(scene.random.uniform(0, 0.1))
    scene.kill(scene.any_worker())


async def kill_redis(scene: Stage) -> None:
    await scene.store.kill_and_return()


async def cut_redis(scene: Stage) -> None:
    await scene.store.kill_and_return(cut_bytes=scene.random.randrange(100, 60_000))


async def wipe_redis(scene: Stage) -> None:
    await scene.store.kill_and_return(wipe=True)


async def flush_redis(scene: Stage) -> None:
    await scene.store.flush()


async def fail_redis_over(scene: Stage) -> None:
    await scene.store.fail_over()


async def stall_redis(scene: Stage) -> None:
    await scene.store.stall(3.0)


async def stall_redis_beyond_its_time_out(scene: Stage) -> None:
    """Longer than a client waits for an answer: commands run after their callers have given them up."""
    await scene.store.stall(12.0)


async def pause_redis(scene: Stage) -> None:
    await scene.store.pause(2.0)


async def fill_redis(scene: Stage) -> None:
    await scene.store.refuse_writes(2.0)


async def fail_snapshots(scene: Stage) -> None:
    await scene.store.fail_snapshots(2.0)


async def kill_the_broker(scene: Stage) -> None:
    await scene.broker.kill_and_return(away_s=scene.random.uniform(0.5, 3.0))


KILLERS = (kill_a_worker, kill_within_a_rebalance)


class Scenario(NamedTuple):
    """What happens, to how many workers, on which brokers."""

    name: str
    workers: int
    faults: tuple[Fault, ...]
    brokers: tuple[str, ...] = (EmbeddedBroker.name, ApacheBroker.name)


def full(kills: int) -> list[Scenario]:
    """Each kind of fault for itself, in the size of `make crash`."""
    return [
        Scenario("kills-1-worker", 1, (kill_a_worker,) * kills),
        Scenario("kills-3-workers", 3, (kill_a_worker,) * kills),
        Scenario("clean-stops", 3, (stop_a_worker,) * 6),
        Scenario("kills-in-rebalances", 3, (kill_within_a_rebalance,) * 5),
        Scenario("redis-restarts", 2, (kill_redis,) * 5),
        Scenario("redis-cut", 2, (cut_redis,) * 5),
        Scenario("redis-wiped", 2, (wipe_redis, flush_redis)),
        Scenario("redis-failovers", 2, (fail_redis_over,) * 4),
        Scenario("redis-stalled", 2, (stall_redis, pause_redis, stall_redis_beyond_its_time_out)),
        Scenario("redis-refuses", 2, (fill_redis, fail_snapshots)),
        Scenario("broker-killed", 2, (kill_the_broker,) * 4, (ApacheBroker.name,)),
    ]


class Result(NamedTuple):
    """What one scenario came to."""

    name: str
    broker: str
    workers: int
    faults: int
    amid: int  # faults that came while work was waiting
    events: int
    exits: dict[int, int]
    seconds: float
    verdict: str
    fault: str

    def line(self) -> str:
        exits = ", ".join(f"{count} × {code}" for code, count in sorted(self.exits.items())) or "none"
        return (
            f"{'FAILED' if self.fault else 'ok':6} {self.name:20} {self.broker:6} {self.workers} workers "
            f"{self.exits.get(KILLED, 0):3} kills {self.faults:3} faults ({self.amid} amid work) "
            f"{self.events:7} events {self.seconds:5.0f} s  {self.verdict}; exits {exits}"
            f"{'; ' + self.fault if self.fault else ''}"
        )


async def play(scenario: Scenario, broker: Broker, directory: Path, envelopes: int, batch_records: int = 20) -> Result:
    """Play one scenario and compare; `Result.fault` tells what differs from the replay, or what went wrong."""
    started_s = time.monotonic()
    traffic = await asyncio.to_thread(world.traffic, 7, envelopes, max(100, envelopes // 20))
    async with stage(broker, directory, f"{scenario.name}-{time.time_ns():x}") as scene:
        scene.start(scenario.workers, batch_records)
        fault, verdict = "", "no verdict"
        try:
            await scene.play(traffic, scenario.faults)
            found = await scene.verdict()
            verdict = str(found)
            found.check()
            assert set(scene.exits) <= {KILLED, BROKEN}, "a worker ended in a way that nobody meant"
            assert scene.exits.get(KILLED, 0) == sum(map(KILLERS.__contains__, scenario.faults)), "a kill met nobody"
            assert scene.amid, "all of it happened to idle workers"
        except Exception as error:
            fault = f"{type(error).__name__}: {error} (applied {await scene.applied()} of {scene.sent})"
        return Result(
            scenario.name,
            broker.name,
            scenario.workers,
            len(scenario.faults),
            scene.amid,
            scene.events,
            dict(scene.exits),
            time.monotonic() - started_s,
            verdict,
            fault,
        )


async def play_a_new_broker(broker: EmbeddedBroker, directory: Path, envelopes: int) -> Result:
    """The broker comes back empty under running workers: they end, begin at 0, and keep the users' states."""
    started_s, name = time.monotonic(), "broker-anew"
    traffic = await asyncio.to_thread(world.traffic, 7, envelopes, max(100, envelopes // 20))
    old = len(traffic) // 3
    async with stage(broker, directory, f"{name}-{time.time_ns():x}") as scene:
        scene.start(2, 20, INTENTLOOP_STREAMS__RESET_ON_NEW_BROKER="true")
        await scene.feed(traffic[:old])
        await scene.until_applied(scene.sent)
        before = await scene.verdict()
        before.check()
        await scene.renew(traffic[old:])
        await scene.until_applied(scene.sent)
        after = await scene.verdict(before.truth, ".r1")
        after.check()
        return Result(
            name, broker.name, 2, 1, 0, scene.events, dict(scene.exits), time.monotonic() - started_s, str(after), ""
        )
