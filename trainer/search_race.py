"""Which candidates are hopeless, and may leave before the whole dev set is spent on them?

Cheap looks come first. In this order a candidate leaves, with its reason kept in the run's `candidates.json`:

1. its artefact is larger than the gate's limit (known without loading it);
2. even the fastest of several prefills of a long dev prompt is slower than the gate's limit;
3. a sibling, made from the same full-precision model and no larger, is `divergence_factor` times nearer to it: a dev
   set of hundreds cannot rank quantisers, KL over a few answers can;
4. after a share of the dev set its accuracy is surely more than the slack below the leader's: the upper bound of the
   paired difference, at `confidence_z`, is below minus the slack.

Rules 1, 3 and 4 give the same answer whenever the same artefacts are measured; 2 is a clock's, so times are limits
here and never break a tie. Nothing in this module measures.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from intentloop import gate


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the cheap looks found out. `family` names the full-precision model that `divergence` is measured from."""

    name: str
    family: str
    artefact_bytes: int
    divergence: float
    long_ttft_ms: float


def too_large(sizes: Mapping[str, int], max_bytes: int) -> dict[str, str]:
    """Which artefacts are over the limit? Reason by name; none when all are, since the gate is to say so."""
    over = {name: f"{size:,} bytes, the limit is {max_bytes:,}" for name, size in sizes.items() if size > max_bytes}
    return (
        over
        if len(over) < len(sizes) or not sizes
        else _all_but(over, min(sizes, key=lambda name: (sizes[name], name)))
    )


def too_slow(times_ms: Mapping[str, float], max_ms: float) -> dict[str, str]:
    """Which candidates are surely over the limit for the first token? All but the fastest when all are."""
    over = {
        name: f"first token of a long prompt after {time:.0f} ms at best, the limit is {max_ms:.0f} ms"
        for name, time in times_ms.items()
        if time > max_ms
    }
    return (
        over
        if len(over) < len(times_ms) or not times_ms
        else _all_but(over, min(times_ms, key=lambda name: (times_ms[name], name)))
    )


def farther(looks: Sequence[Look], factor: float) -> dict[str, str]:
    """Which candidates have a sibling that is no larger and `factor` times nearer to full precision?"""
    reasons = {}
    for look in looks:
        siblings = [each for each in looks if each.family == look.family and each.artefact_bytes <= look.artefact_bytes]
        nearest = min(siblings, key=lambda each: (each.divergence, each.name))
        if nearest.divergence * factor < look.divergence:
            reasons[look.name] = (
                f"KL {look.divergence:.4f}, {nearest.name} is no larger and has {nearest.divergence:.4f}"
            )
    return reasons


def rounds(samples: int, shares: Iterable[float]) -> tuple[int, ...]:
    """After how many answers is the race looked at? Ascending, ends with all of them."""
    return (*sorted({round(share * samples) for share in shares} - {0, samples}), samples)


def race(
    names: Sequence[str],
    looks_at: Sequence[int],
    answer: Callable[[str, int], Sequence[bool]],
    behind_by: Callable[[Mapping[str, Sequence[bool]]], dict[str, str]],
) -> dict[str, str]:
    """Let candidates answer more and more samples; who falls behind leaves.

    Args:
        looks_at: How many samples are answered before each look, from `rounds`.
        answer: Which of the first so many samples does this candidate get right? The same samples for all.
        behind_by: The judge of a look, usually `behind` with its slack.
    Returns:
        Why a candidate left, by name; those who stayed to the end are not in it.
    """
    left: dict[str, str] = {}
    for count in looks_at:
        right = {name: answer(name, count) for name in names if name not in left}
        if count != looks_at[-1]:
            left |= behind_by(right)
    return left


def behind(right: Mapping[str, Sequence[bool]], slack: float, z: float) -> dict[str, str]:
    """Who is surely more than `slack` below the leader, the earliest named of the most accurate?"""
    leader = max(right, key=lambda name: sum(right[name]))
    reasons = {}
    for name, answers in right.items():
        gain = gate.paired_gain(list(zip(answers, right[leader], strict=True)), z)
        if gain.high < -slack:
            reasons[name] = (
                f"after {len(answers)} answers {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] against {leader}"
            )
    return reasons


def _all_but(reasons: dict[str, str], kept: str) -> dict[str, str]:
    return {name: reason for name, reason in reasons.items() if name != kept}
