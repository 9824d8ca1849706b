"""How many cores, partitions and bytes do so many daily users take? `python -m bench.scale FILE` prints the table.

FILE holds the last lines of `bench.streams`, `bench.gateway` and `bench.state`, one JSON object a line; the last one of
each bench counts. The formulas are in `cores_and_bytes`, and in words in `docs/scaling.md`. Not here: labelling and
training, which grow with the picker's budget, not with users.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import msgspec

MILLIONS = (1, 10, 100)


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """What a user does in a day, and how the load is spread; all of it is assumed, none of it measured."""

    events_day: int = 300
    events_envelope: int = 25
    peak_ratio: float = 3.0  # the busiest second against the mean one
    busy_ratio: float = 0.6  # of a core, so that a lost worker's share fits on the others
    retention_days: int = 3
    replicas: int = 3


def cores_and_bytes(users: int, figures: dict[str, dict[str, Any]], habit: Habit) -> dict[str, float]:
    """What do so many daily users take, with all of them active within the life of a state?"""
    streams, gateway, state = figures["streams"], figures["gateway"], figures["state"]
    events_s = users * habit.events_day / 86_400 * habit.peak_ratio
    requests_s = events_s / habit.events_envelope
    cores = {
        "gateway": requests_s * gateway["cpu_us_request"],
        "streams": events_s * streams["cpu_us_event"],
        "redis": events_s * streams["redis_cpu_us_event"],
        "broker": events_s * streams["broker_cpu_us_event"] * habit.replicas,
    }
    taken = {name: math.ceil(us / 1e6 / habit.busy_ratio) for name, us in cores.items()}
    stored = users * habit.events_day / habit.events_envelope * streams["envelope_bytes"]
    return {
        "peak_events_s": events_s,
        **{f"{name}_cores": count for name, count in taken.items()},
        "partitions": max(8, 2 ** math.ceil(math.log2(2 * taken["streams"]))),
        "redis_gb": users * state["bytes_user_busiest"] / 1e9,
        "kafka_gb": stored * habit.retention_days * habit.replicas / 1e9,
        "ingress_mbit_s": requests_s * streams["envelope_bytes"] * 8 / 1e6,
    }


def main() -> None:
    """Print a table in Markdown."""
    figures = {line["bench"]: line for line in map(json.loads, Path(sys.argv[1]).read_text().splitlines())}
    columns = [cores_and_bytes(millions * 1_000_000, figures, Habit()) for millions in MILLIONS]
    print("| |", " | ".join(f"{millions}M users a day" for millions in MILLIONS), "|")
    print("|---|" + "---:|" * len(columns))
    for name in columns[0]:
        print(f"| {name} |", " | ".join(f"{column[name]:,.0f}" for column in columns), "|")


if __name__ == "__main__":
    main()
