"""Shall a new model be trained now? Enough hard samples or a confirmed drift, and nothing that speaks against it.

A fold over facts without memory of its own: what was asked before comes in with the facts, so the answer is the same
after a crash. The reason is written for the person who reads the audit.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

INTENTS = ("闲逛", "比价犹豫", "场景购物")
DAY_MS = 86_400_000


class RetrainRule(msgspec.Struct, frozen=True, kw_only=True):
    """`hard_new`: hard samples since the last release that are enough. `rearm_hard`: how many more than at the last
    request, or as its run has seen, must be there to ask again, so that a rejected candidate is not trained again from
    the same data.

    `min_per_class` counts samples of each intent in the whole set. `cooldown_s` is between two requests.
    `drift_min_hard` is what a confirmed drift needs at least.
    """

    hard_new: int = 200
    rearm_hard: int = 50
    min_per_class: int = 20
    cooldown_s: float = 3600.0
    daily_requests: int = 4
    drift_min_hard: int = 20


class LoopFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when the question is asked; `revision` is that of the training set.

    `asked_at_ms` are the times of earlier requests; `hard_at_last_request` is how many of the new hard samples the last
    request for this release and its run have seen, 0 when there was none.
    """

    now_ms: int
    release: str
    hard_new: int
    samples: int
    per_class: Mapping[str, int]
    revision: int = 0
    training_now: bool = False
    asked_at_ms: tuple[int, ...] = ()
    hard_at_last_request: int = 0
    drift_confirmed: bool = False


class Request(msgspec.Struct, frozen=True):
    """Train now."""

    reason: str


class Wait(msgspec.Struct, frozen=True):
    """Do not train now."""

    reason: str


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate said of a run's candidate; `release` is the version that came of it, empty where none did.

    `hard_seen`: how many hard samples, new to the current release, the run has learnt from.
    """

    kind: Literal["release", "reject", "inconclusive"]
    reasons: tuple[str, ...]
    judged_at_ms: int
    release: str = ""
    hard_seen: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The last decision as it is stored for whoever asks why (`Keys.decision`, JSON)."""

    kind: Literal["request", "wait"]
    reason: str
    at_ms: int
    release: str


def decide(facts: LoopFacts, rule: RetrainRule) -> Request | Wait:
    """Is it time for a new model? The first obstacle is the reason to wait."""
    obstacle = _obstacle(facts, rule)
    if obstacle:
        return Wait(obstacle)
    unseen = facts.hard_new - facts.hard_at_last_request
    since = f", {unseen} of them since the last run" if facts.hard_at_last_request else ""
    if facts.hard_new >= rule.hard_new:
        return Request(f"{facts.hard_new} new hard samples, {rule.hard_new} are enough{since}")
    return Request(
        f"confirmed drift with {facts.hard_new} new hard samples, {rule.drift_min_hard} are enough then{since}"
    )


def _obstacle(facts: LoopFacts, rule: RetrainRule) -> str:
    if not facts.release:
        return "no release yet: there is no model to improve on"
    if facts.training_now:
        return "a training run is waiting or running"
    return _too_little(facts, rule) or _too_soon(facts, rule)


def _too_little(facts: LoopFacts, rule: RetrainRule) -> str:
    drifted = facts.drift_confirmed and facts.hard_new >= rule.drift_min_hard
    if facts.hard_new < rule.hard_new and not drifted:
        return f"{facts.hard_new} of {rule.hard_new} new hard samples"
    if facts.hard_at_last_request and facts.hard_new < facts.hard_at_last_request + rule.rearm_hard:
        return (
            f"{facts.hard_new} new hard samples, the last run has seen {facts.hard_at_last_request}: "
            f"{rule.rearm_hard} more are needed to ask again"
        )
    for intent in INTENTS:
        if facts.per_class.get(intent, 0) < rule.min_per_class:
            return f"{facts.per_class.get(intent, 0)} of {rule.min_per_class} samples of {intent}"
    return ""


def _too_soon(facts: LoopFacts, rule: RetrainRule) -> str:
    if not facts.asked_at_ms:
        return ""
    left_s = rule.cooldown_s - (facts.now_ms - max(facts.asked_at_ms)) / 1000
    if left_s > 0:
        return f"cooling down for {left_s:.0f} s after the last request"
    today = sum(1 for at_ms in facts.asked_at_ms if facts.now_ms - at_ms < DAY_MS)
    if today >= rule.daily_requests:
        return f"{today} of {rule.daily_requests} requests were made within a day"
    return ""
