"""`make crash`: every scenario at full size on both brokers, one line each; exit 1 when anything differs."""

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.crash import scenarios
from tests.crash.stores import ApacheBroker, Broker, EmbeddedBroker
from tests.integration.conftest import RUN_KAFKA

EVENTS_PER_ENVELOPE = 10.6  # of tests/integration/streams/world.py's traffic
BROKERS: dict[str, Callable[[Path], Broker]] = {EmbeddedBroker.name: EmbeddedBroker, ApacheBroker.name: ApacheBroker}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--events", type=int, default=200_000, help="of each scenario, at least")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--broker", choices=[*BROKERS], action="append", help="default: all that are here")
    parser.add_argument("--only", action="append", help="names of scenarios")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that is killed is no news here
    present = [name for name in BROKERS if name != ApacheBroker.name or (RUN_KAFKA.is_file() and shutil.which("java"))]
    results: list[scenarios.Result] = []
    for name in arguments.broker or present:
        results += asyncio.run(on_broker(name, arguments))
    failed = [result.name for result in results if result.fault]
    kills = sum(result.exits.get(-9, 0) for result in results)
    say(f"{len(results)} scenarios, {kills} kills, {sum(r.events for r in results)} events, {len(failed)} failed")
    return 1 if failed else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # a run takes long, and its rows are worth having when it is cut short
    sys.stdout.flush()


async def on_broker(name: str, arguments: argparse.Namespace) -> list[scenarios.Result]:
    """All scenarios on one broker, which they share; each has a Redis of its own."""
    envelopes = int(arguments.events / EVENTS_PER_ENVELOPE) + 400
    results: list[scenarios.Result] = []
    with tempfile.TemporaryDirectory(prefix="intentloop-crash-") as directory:
        broker = BROKERS[name](Path(directory))
        try:
            for scenario in scenarios.full(arguments.kills):
                if name in scenario.brokers and scenario.name in (arguments.only or [scenario.name]):
                    found = await scenarios.play(scenario, broker, Path(directory) / scenario.name, envelopes)
                    say(found.line())
                    results.append(found)
            if isinstance(broker, EmbeddedBroker) and "broker-anew" in (arguments.only or ["broker-anew"]):
                found = await scenarios.play_a_new_broker(broker, Path(directory) / "broker-anew", envelopes)
                say(found.line())
                results.append(found)
        finally:
            broker.close()
    return results


if __name__ == "__main__":
    sys.exit(main())
