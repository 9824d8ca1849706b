"""What is remembered of a model version's fleet between two looks, and how does a look move it? A pure fold.

Exact totals of the streams go in, windows and blocks come out, so a watcher that was killed goes on with what differs.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from intentloop import fleet_drift
from intentloop.facts import FleetDrifted, FleetSignal, SampleLabelled
from intentloop.fleet_drift import MIXES, Baseline, FleetRule, RateBlocks
from intentloop.training_set import teachers_agreement

PREFIX = "fleet"  # of the streams' counters: fleet:<version>:said:<intent>, :fault:<kind>, :top:<bucket>
DEGENERATE = "faults_degenerate"  # and of broken outputs: faults_degenerate:<version>
OTHER = "other"  # stands for versions that nobody released, once too many of them were named
Counts = Mapping[str, int]


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """All that survives between two looks at one version.

    `seen` are the totals that earlier looks have taken. `streaks` counts windows in a row, by mix: unlike ones above
    zero, quiet ones below. `stated` are the drifts that hold now, `levels` the rates before those of a rate rose.
    """

    version: str
    baseline: Baseline | None = None
    seen: Counts = msgspec.field(default_factory=dict)
    intents: Counts = msgspec.field(default_factory=dict)
    categories: Counts = msgspec.field(default_factory=dict)
    started_ms: int = 0
    looks: int = 0
    streaks: Mapping[FleetSignal, int] = msgspec.field(default_factory=dict)
    rates: Mapping[FleetSignal, RateBlocks] = msgspec.field(default_factory=dict)
    stated: tuple[FleetSignal, ...] = ()
    levels: Mapping[FleetSignal, float] = msgspec.field(default_factory=dict)


class Looked(NamedTuple):
    """A state after a look, and the drifts that were confirmed by it."""

    state: FleetState
    drifts: tuple[FleetDrifted, ...]


def version_of(name: str) -> str | None:
    """Which version does this counter of the streams belong to? None where it belongs to none in particular."""
    kind, colon, rest = name.partition(":")
    if kind == PREFIX and rest.count(":") >= 2:
        return rest.rsplit(":", 2)[0]  # phones name versions, with colons if they like
    return rest if kind == DEGENERATE and colon else None


def under_other(name: str) -> str:
    """Under which name is a counter of a version kept when it gets none of its own? Empty for all other counters."""
    version = version_of(name)
    if version is None:
        return ""
    kind, _, rest = name.partition(":")
    return f"{kind}:{OTHER}{rest.removeprefix(version)}"


def version_totals(counts: Counts, version: str) -> dict[str, int]:
    """Which of the streams' counters are of this version? Without their prefix: `said:…`, `fault:…`, `top:…`."""
    prefix = f"{PREFIX}:{version}:"
    own = (name for name in counts if name.startswith(prefix) and version_of(name) == version)
    return {name.removeprefix(prefix): counts[name] for name in own}


def take_totals(state: FleetState, totals: Counts, rule: FleetRule, now_ms: int) -> FleetState:
    """What is new since the last look goes into the window and into the rate of faults.

    A total below what was seen means that the counters began anew; then all of it is new.
    """
    fresh = {
        name: count - state.seen.get(name, 0) if count >= state.seen.get(name, 0) else count
        for name, count in totals.items()
    }
    said, faults = _kind(fresh, "said:"), sum(_kind(fresh, "fault:").values())
    blocks = state.rates.get("format_faults", RateBlocks())
    blocks = fleet_drift.add_to_rate(blocks, sum(said.values()) + faults, faults, rule.block)
    return msgspec.structs.replace(
        state,
        seen=dict(totals),
        intents=_sum(state.intents, said),
        categories=_sum(state.categories, _kind(fresh, "top:")),
        started_ms=state.started_ms or now_ms,
        rates={**state.rates, "format_faults": blocks},
    )


def take_label(state: FleetState, label: SampleLabelled, rule: FleetRule) -> FleetState:
    """What does one label say of this version? Whether teachers agree, and whether they agree with the phone.

    The phone is judged on the uniform random share only: hard samples were picked because it is likely wrong there.
    """
    agreed = teachers_agreement(label)
    if label.source != "teachers" or agreed is None:
        return state
    found: dict[FleetSignal, bool] = {"teacher_disagreement": not agreed}
    if label.sample.random and agreed:
        found["device_disagreement"] = label.intent != label.sample.device_intent
    rates = dict(state.rates)
    for signal, bad in found.items():
        rates[signal] = fleet_drift.add_to_rate(rates.get(signal, RateBlocks()), 1, int(bad), rule.label_block)
    return msgspec.structs.replace(state, rates=rates)


def look_at_mixes(state: FleetState, rule: FleetRule, now_ms: int) -> Looked:
    """Judge the window when it is full and old enough; the first one is the reference where no snapshot is."""
    if sum(state.intents.values()) < rule.window or now_ms - state.started_ms < rule.window_ms:
        return Looked(state, ())
    if state.baseline is None:
        first = Baseline(intents=state.intents, categories=state.categories, source="first_window")
        return Looked(_next_window(state, now_ms, baseline=first), ())
    look = state.looks + 1
    streaks, stated = dict(state.streaks), list(state.stated)
    drifts: list[FleetDrifted] = []
    for signal in MIXES:
        sides = _sides(state, state.baseline, signal, rule)
        unlike = fleet_drift.is_unlike(fleet_drift.mix_test(sides.before, sides.after), look, rule.alpha, sides.floor)
        streaks[signal] = _streak(streaks.get(signal, 0), unlike)
        if streaks[signal] >= rule.confirm and signal not in stated:
            stated.append(signal)
            drifts.append(_mix_drifted(state, sides, look, now_ms))
        elif streaks[signal] <= -rule.clear and signal in stated:
            stated.remove(signal)
    return Looked(_next_window(state, now_ms, looks=look, streaks=streaks, stated=tuple(stated)), tuple(drifts))


class RateRise(NamedTuple):
    """What detectors found in a rate: the means before and after the change, and how many values each is of."""

    before: float
    after: float
    before_samples: int
    after_samples: int


def rate_drifted(state: FleetState, signal: FleetSignal, rise: RateRise, floor: float, now_ms: int) -> FleetDrifted:
    """Which fact states that a rate rose?"""
    look = state.rates[signal].total
    return FleetDrifted(
        id=f"fleet-{state.version}-{signal}-{look}",
        model_version=state.version,
        signal=signal,
        test="adwin_and_page_hinkley",
        statistic=rise.after - rise.before,
        p_value=None,
        effect=rise.after - rise.before,
        floor=floor,
        reference="own_past",
        before={signal: rise.before},
        after={signal: rise.after},
        before_samples=rise.before_samples,
        after_samples=rise.after_samples,
        look=look,
        reason=f"{signal} rose from {rise.before:.1%} of {rise.before_samples} to {rise.after:.1%} of "
        f"{rise.after_samples}; {floor:.1%} matters",
        detected_at_ms=now_ms,
    )


def state_rate(state: FleetState, drift: FleetDrifted) -> FleetState:
    """After a rate has drifted: it is stated, and what comes after is the new past.

    A rate that rises in steps has to come back to where it was before the first one.
    """
    level = min(drift.before[drift.signal], state.levels.get(drift.signal, 1.0))
    rates = {**state.rates, drift.signal: RateBlocks(total=state.rates[drift.signal].total)}
    stated = tuple(dict.fromkeys((*state.stated, drift.signal)))
    return msgspec.structs.replace(state, rates=rates, stated=stated, levels={**state.levels, drift.signal: level})


def settle_rate(state: FleetState, signal: FleetSignal, size: int, rule: FleetRule) -> FleetState:
    """Is a rate that had risen back? Then its drift holds no longer.

    Args:
        size: Values in one of its blocks.
    """
    blocks = -(-rule.clear_values // size)
    means = state.rates.get(signal, RateBlocks()).means[-blocks:]
    level = state.levels.get(signal)
    if level is None or len(means) < blocks or sum(means) / blocks > level + rule.rate_floor / 2:
        return state
    stated = tuple(other for other in state.stated if other != signal)
    return msgspec.structs.replace(
        state, stated=stated, levels={other: rate for other, rate in state.levels.items() if other != signal}
    )


def _kind(counts: Counts, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix) and count > 0}


def _sum(one: Counts, other: Counts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _streak(before: int, unlike: bool) -> int:
    """One more of the same, or one of the other kind."""
    return max(before, 0) + 1 if unlike else min(before, 0) - 1


class _Sides(NamedTuple):
    """What is compared for one signal."""

    signal: FleetSignal
    before: Counts
    after: Counts
    floor: float


def _sides(state: FleetState, baseline: Baseline, signal: FleetSignal, rule: FleetRule) -> _Sides:
    if signal == "intent_mix":
        return _Sides(signal, baseline.intents, state.intents, rule.intent_floor)
    return _Sides(signal, baseline.categories, state.categories, rule.category_floor)


def _mix_drifted(state: FleetState, sides: _Sides, look: int, now_ms: int) -> FleetDrifted:
    test = fleet_drift.mix_test(sides.before, sides.after)
    before, after = fleet_drift.shares(sides.before), fleet_drift.shares(sides.after)
    return FleetDrifted(
        id=f"fleet-{state.version}-{sides.signal}-{look}",
        model_version=state.version,
        signal=sides.signal,
        test="g_test",
        statistic=test.statistic,
        p_value=test.p_value,
        effect=test.distance,
        floor=sides.floor,
        reference=state.baseline.source if state.baseline else "own_past",
        before=before,
        after=after,
        before_samples=test.before,
        after_samples=test.after,
        look=look,
        reason=f"{sides.signal} moved by {test.distance:.3f}, {sides.floor} matters: "
        f"{fleet_drift.largest_moves(before, after)} in {test.after} inferences (p {test.p_value:.1e})",
        detected_at_ms=now_ms,
    )


def _next_window(state: FleetState, now_ms: int, **changes: object) -> FleetState:
    return msgspec.structs.replace(state, intents={}, categories={}, started_ms=now_ms, **changes)
