"""How often does fleet drift cry wolf, and how late does it notice? `python -m bench.fleet_drift`; last line: JSON.

Seeded fleets of 20,000 inferences each: unchanged, changed suddenly in the middle, changing gradually from there on.
Mixes go through the real fold (`fleet_state`), rates of faults through the real detectors. Peers on the same fleets:
fire always, fire never, and a plain threshold (the same floors without a test or a confirmation; a block's rate above
the usual one by the floor); for rates also each of river's detectors alone. No clock is involved, so load does not
matter.

`false_alarms` are looks in alarm per 10,000 inferences of unchanged fleets, `delay` is the median number of inferences
from the change to the first alarm after it, `found` the share of changes that were noticed at all. A gradual change
matters only once it has passed its floor: `matters_after` inferences.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from river.drift import ADWIN

from intentloop import fleet_drift, fleet_state
from intentloop.adapters import fleet_detectors
from intentloop.adapters.fleet_detectors import DetectorRule
from intentloop.fleet_drift import Baseline, FleetRule
from intentloop.fleet_state import FleetState

SAMPLES, CHANGE = 20_000, 10_000
RULE = FleetRule(window_ms=0)
DETECTORS = DetectorRule(floor=RULE.rate_floor)
SNAPSHOT = 300  # labels in the random share of a snapshot
INTENTS = {"闲逛": (0.78, 0.60), "比价犹豫": (0.15, 0.15), "场景购物": (0.07, 0.25)}  # before, after
CATEGORIES = 1.0 / np.arange(1, fleet_drift.CATEGORY_BUCKETS + 1)  # Zipf, as shops are
FAULTS = (0.02, 0.12)  # before, after
KINDS = ("none", "sudden", "gradual")

Looks = list[tuple[int, bool]]  # (inferences so far, in alarm)
Method = Callable[[Any], Looks]


def main() -> None:
    """Run all methods on all fleets, print a table and the JSON."""
    options = _options()
    mixes = _score({"ours": _ours_mix, "threshold": _threshold_mix, **_constant()}, _mixes, options)
    rates = _score(
        {"ours": _ours_rate, "adwin": _adwin, "page_hinkley": _hinkley, "threshold": _threshold_rate, **_constant()},
        _rates,
        options,
    )
    for name, table in (("mix", mixes), ("rate", rates)):
        for method, row in table.items():
            print(f"{name:5} {method:13} {row}")
    ours, peer = (mixes[method]["false_alarms"] + rates[method]["false_alarms"] for method in ("ours", "threshold"))
    print(
        json.dumps(
            {
                "bench": "fleet_drift",
                "unit": "looks in alarm per 10,000 inferences of unchanged fleets, mix and rate together",
                "ours": round(ours, 4),
                "peer": round(peer, 4),
                "peer_name": "plain threshold",
                "ratio": round(ours / peer, 4) if peer else None,
                "mix": mixes,
                "rate": rates,
                "fleets": options.fleets,
                "matters_after": {"mix": _mix_matters_after(), "rate": _matters_after(FAULTS[1] - FAULTS[0])},
            },
            ensure_ascii=False,
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=30, help="of each kind")
    parser.add_argument("--seed", type=int, default=20_261_130)
    return parser.parse_args()


def _score(
    methods: Mapping[str, Method], fleets: Callable[[str, int], Any], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, method in methods.items():
        row: dict[str, Any] = {}
        for kind in KINDS:
            looks = [method(fleets(kind, options.seed + number)) for number in range(options.fleets)]
            if kind == "none":
                alarms = sum(alarm for each in looks for _, alarm in each)
                row["false_alarms"] = round(alarms / (options.fleets * SAMPLES / 10_000), 4)
                continue
            delays = [delay for delay in map(_delay, looks) if delay is not None]
            row[kind] = {
                "found": round(len(delays) / options.fleets, 3),
                "delay": statistics.median(delays) if delays else None,
            }
        found[name] = row
    return found


def _delay(looks: Looks) -> int | None:
    return next((at - CHANGE for at, alarm in looks if alarm and at > CHANGE), None)


def _constant() -> dict[str, Method]:
    ends = range(RULE.window, SAMPLES + 1, RULE.window)
    return {"always": lambda _: [(at, True) for at in ends], "never": lambda _: [(at, False) for at in ends]}


def _progress(kind: str) -> np.ndarray[Any, Any]:
    """How far has the world moved at each inference, from 0 to 1?"""
    at = np.arange(SAMPLES)
    if kind == "none":
        return np.zeros(SAMPLES)
    return (at >= CHANGE).astype(float) if kind == "sudden" else np.clip((at - CHANGE) / (SAMPLES - CHANGE), 0, 1)


class Mixes(msgspec.Struct, frozen=True):
    """One fleet: what its version learnt from, and its counters after each window."""

    baseline: Baseline
    windows: list[dict[str, int]]


def _mixes(kind: str, seed: int) -> Mixes:
    """Intents move towards scenes, and categories towards the rare ones: to their reversed shares, by a third."""
    random = np.random.default_rng(seed)
    intents = [np.array([shares[side] for shares in INTENTS.values()]) for side in (0, 1)]
    usual = CATEGORIES / CATEGORIES.sum()
    categories = usual, usual * 2 / 3 + usual[::-1] / 3
    moved = _progress(kind).reshape(-1, RULE.window).mean(axis=1)

    def draw(count: int, share: float) -> tuple[dict[str, int], dict[str, int]]:
        said = random.multinomial(count, intents[0] * (1 - share) + intents[1] * share)
        tops = random.multinomial(count, categories[0] * (1 - share) + categories[1] * share)
        names = [f"c{number}" for number in range(len(usual))]
        return dict(zip(INTENTS, map(int, said), strict=True)), dict(zip(names, map(int, tops), strict=True))

    learnt = draw(SNAPSHOT, 0.0)
    windows = [draw(RULE.window, share) for share in moved]
    totals = [
        {f"said:{name}": count for name, count in said.items()} | {f"top:{name}": count for name, count in tops.items()}
        for said, tops in windows
    ]
    return Mixes(Baseline(intents=learnt[0], categories=learnt[1], source="snapshot"), totals)


def _ours_mix(fleet: Mixes) -> Looks:
    state, looks, totals = FleetState(version="v", baseline=fleet.baseline), [], dict[str, int]()
    for number, window in enumerate(fleet.windows, start=1):
        totals = {name: totals.get(name, 0) + count for name, count in window.items()}
        state = fleet_state.take_totals(state, totals, RULE, number)
        state = fleet_state.look_at_mixes(state, RULE, number).state
        looks.append((number * RULE.window, bool(state.stated)))
    return looks


def _threshold_mix(fleet: Mixes) -> Looks:
    looks: Looks = []
    for number, window in enumerate(fleet.windows, start=1):
        sides = (
            ("said:", fleet.baseline.intents, RULE.intent_floor),
            ("top:", fleet.baseline.categories, RULE.category_floor),
        )
        alarm = False
        for prefix, before, floor in sides:
            after = {name.removeprefix(prefix): count for name, count in window.items() if name.startswith(prefix)}
            alarm = alarm or _distance(before, after) >= floor
        looks.append((number * RULE.window, alarm))
    return looks


def _mix_matters_after() -> int:
    """The earlier of both mixes."""
    intents = sum(abs(before - after) for before, after in INTENTS.values()) / 2
    usual = CATEGORIES / CATEGORIES.sum()
    categories = float(np.abs(usual - usual[::-1]).sum()) / 6
    floors = ((intents, RULE.intent_floor), (categories, RULE.category_floor))
    return min(_matters_after(change, floor) for change, floor in floors)


def _matters_after(change: float, floor: float = RULE.rate_floor) -> int:
    return round((SAMPLES - CHANGE) * floor / change)


def _distance(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    one, other = fleet_drift.shares(before), fleet_drift.shares(after)
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in {*one, *other}) / 2


def _rates(kind: str, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    rate = FAULTS[0] + (FAULTS[1] - FAULTS[0]) * _progress(kind)
    return [int(value) for value in random.random(SAMPLES) < rate]


def _alarms(values: Sequence[int], notice: Callable[[Sequence[int]], int | None]) -> Iterator[int]:
    """After each alarm the detector begins anew, as the watcher does."""
    start = 0
    while start < len(values):
        found = notice(values[start:])
        if found is None:
            return
        yield start + found + 1
        start += found + 1


def _looks(values: Sequence[int], notice: Callable[[Sequence[int]], int | None]) -> Looks:
    return [(at, True) for at in _alarms(values, notice)]


def _ours_rate(values: Sequence[int]) -> Looks:
    def notice(rest: Sequence[int]) -> int | None:
        found = fleet_detectors.rise(rest, DETECTORS)
        return found.noticed if found else None

    return _looks(values, notice)


def _adwin(values: Sequence[int]) -> Looks:
    """As it comes: any change, of any size, upwards or downwards."""
    detector, looks = ADWIN(), list[tuple[int, bool]]()
    for at, value in enumerate(values, start=1):
        detector.update(value)
        if detector.drift_detected:
            looks.append((at, True))
    return looks


def _hinkley(values: Sequence[int]) -> Looks:
    return _looks(values, lambda rest: fleet_detectors.page_hinkley_rise(rest, DETECTORS))


def _threshold_rate(values: Sequence[int]) -> Looks:
    """Each block of what the watcher remembers on its own, against the usual rate and the floor."""
    ends = range(RULE.block, SAMPLES + 1, RULE.block)
    return [(end, sum(values[end - RULE.block : end]) / RULE.block > FAULTS[0] + RULE.rate_floor) for end in ends]


if __name__ == "__main__":
    main()
