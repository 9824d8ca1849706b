"""Who plays in the demo, and with which settings? Plans for the director; nothing is started here."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from intentloop.adapters.supervisor import ProcessSpec, Supervisor
from intentloop.commands import stack, stand_ins

NAMES = (*stack.PROCESSES, "phones", "feed", *stand_ins.NAMES)


def broker_name(place: stack.Place) -> str:
    """Which kind of broker is it?"""
    return "configured" if place.broker else "embedded tansu"


def settings(plan: stack.Plan, hard_new: int) -> stack.Sections:
    """What differs from production: small numbers, short pauses, and teachers on this machine."""
    return {
        **stand_ins.teacher_settings(plan),
        "retrain": {"hard_new": hard_new, "rearm_hard": 40, "min_per_class": 15, "cooldown_s": 120.0},
        "rules": {"pick_budget_per_hour": 100_000, "pick_random_ratio": 0.35},
        "labelling": {"lease_s": 5.0, "loops": 8},
        "streams": {"session_timeout_s": 6.0},
        "device": {"poll_after_s": 5},
        "trainer": {"work": str(plan.directory / "runs"), "lease_ms": 8_000, "poll_ms": 500},
    }


def phones(plan: stack.Plan, directory: Path, count: int, seed: int) -> ProcessSpec:
    """All simulated phones as one process."""
    return stack.process(plan, "demo.phones", environment=phone_environment(plan, directory, count, seed))


def phone_environment(plan: stack.Plan, directory: Path, count: int, seed: int) -> Mapping[str, str]:
    """What a process with phones must know."""
    values = {"count": count, "seed": seed, "gateway": plan.gateway_url, "directory": directory}
    values["token"] = plan.secrets.device_token
    return {f"INTENTLOOP_PHONES__{name.upper()}": str(value) for name, value in values.items()}


def finished_steps(plan: stack.Plan) -> list[str]:
    """Which steps of the newest training run are done? Their manifests are there, in order of time."""
    runs = [path.parent for path in (plan.directory / "runs").glob("*/spec.json")]
    newest = max(runs, key=lambda run: run.stat().st_mtime, default=None)
    if newest is None:
        return []
    found = sorted(newest.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [path.parent.name for path in found]


def write_processes(plan: stack.Plan, supervisor: Supervisor) -> None:
    """Keep the process ids where a person, or a test that kills, finds them."""
    draft = plan.directory / "processes.json.draft"
    draft.write_bytes(msgspec.json.encode({"pids": supervisor.pids(), "restarts": supervisor.restarts()}))
    draft.replace(plan.directory / "processes.json")
