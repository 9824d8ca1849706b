"""Who plays in the demo, and with which settings? Plans for the director; nothing is started here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intentloop.adapters.settings import KafkaSection, ProcessSettings, RedisSection
from intentloop.adapters.supervisor import ProcessSpec, Supervisor
from intentloop.commands import stack

TEACHERS = ("qwen", "kimi")
NAMES = (*stack.PROCESSES, "phones", "feed", *(f"teacher-{name}" for name in TEACHERS))

_NOISE = {"qwen": (1, 0.05), "kimi": (2, 0.07)}  # seed and share of wrong labels
_PRICES_YUAN = {"qwen": (2.5, 10.0), "kimi": (4.0, 16.0)}  # a million tokens in and out, of the order of list prices


class PlaceSettings(ProcessSettings):
    """Where a person's own settings put broker and Redis, if they say so."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()


def place(directory: Path, broker: str, redis: str, prefix: str) -> stack.Place:
    """Where will it run? Arguments first, then a person's settings, then services of our own."""
    settings = PlaceSettings()
    if not broker and "bootstrap" in settings.kafka.model_fields_set:
        broker = settings.kafka.bootstrap
    if not redis and "url" in settings.redis.model_fields_set:
        redis = settings.redis.url
    return stack.Place(directory=directory, broker=broker, redis=redis, prefix=prefix)


def describe(plan: stack.Plan, place: stack.Place) -> str:
    """Which broker and Redis are these, in words?"""
    broker = f"Kafka at {place.broker}" if place.broker else f"embedded broker tansu at {plan.bootstrap} (memory only)"
    redis = "Redis as configured" if place.redis else "embedded Redis (valkey)"
    return f"{broker}, {redis}, everything under {plan.directory}"


def broker_name(place: stack.Place) -> str:
    """Which kind of broker is it?"""
    return "configured" if place.broker else "embedded tansu"


def settings(plan: stack.Plan, hard_new: int) -> stack.Sections:
    """What differs from production: small numbers, short pauses, and teachers on this machine."""
    judge = {"judge": _teacher(plan, "qwen")}
    return {
        "teacher_a": _teacher(plan, "qwen"),
        "teacher_b": _teacher(plan, "kimi"),
        **judge,
        "retrain": {"hard_new": hard_new, "rearm_hard": 40, "min_per_class": 15, "cooldown_s": 5.0},
        "rules": {"pick_budget_per_hour": 100_000, "pick_random_ratio": 0.1},
        "labelling": {"lease_s": 5.0, "loops": 8},
        "streams": {"session_timeout_s": 6.0},
        "device": {"poll_after_s": 5},
    }


def teachers(plan: stack.Plan) -> list[ProcessSpec]:
    """The two simulated teachers as processes; the second answers in a code fence, as some do."""
    found = []
    for name in TEACHERS:
        seed, noise = _NOISE[name]
        spec = stack.process(plan, "demo.teachers", "--name", name, "--port", str(plan.health_ports[f"teacher-{name}"]))
        more = ("--seed", str(seed), "--noise", str(noise), *(("--fenced",) if name == "kimi" else ()))
        found.append(msgspec.structs.replace(spec, name=f"teacher-{name}", command=(*spec.command, *more)))
    return found


def phones(plan: stack.Plan, directory: Path, count: int, seed: int) -> ProcessSpec:
    """All simulated phones as one process."""
    return stack.process(plan, "demo.phones", environment=phone_environment(plan, directory, count, seed))


def phone_environment(plan: stack.Plan, directory: Path, count: int, seed: int) -> Mapping[str, str]:
    """What a process with phones must know."""
    values = {"count": count, "seed": seed, "gateway": plan.gateway_url, "directory": directory}
    values["token"] = plan.secrets.device_token
    return {f"INTENTLOOP_PHONES__{name.upper()}": str(value) for name, value in values.items()}


def health_url(plan: stack.Plan, name: str) -> str:
    """Where does this process tell how it is?"""
    return stack.health_url(plan, name)


def finished_steps(plan: stack.Plan) -> list[str]:
    """Which steps of the newest training run are done? Their manifests are there, in order of time."""
    found = sorted((plan.directory / "blobs" / "runs").glob("*/*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [path.parent.name for path in found if path.parent.parent == found[-1].parent.parent]


def write_processes(plan: stack.Plan, supervisor: Supervisor) -> None:
    """Keep the process ids where a person, or a test that kills, finds them."""
    draft = plan.directory / "processes.json.draft"
    draft.write_bytes(msgspec.json.encode({"pids": supervisor.pids(), "restarts": supervisor.restarts()}))
    draft.replace(plan.directory / "processes.json")


def _teacher(plan: stack.Plan, name: str) -> dict[str, Any]:
    prompt_yuan, output_yuan = _PRICES_YUAN[name]
    return {
        "name": f"{name} (simulated)",
        "base_url": f"http://127.0.0.1:{plan.health_ports[f'teacher-{name}']}/v1",
        "model": f"simulated-{name}",
        "api_key": "simulated",
        "prompt_yuan_per_million": prompt_yuan,
        "output_yuan_per_million": output_yuan,
        "backoff_s": 0.1,
        "throttle_pause_s": 0.5,
        "breaker_pause_s": 2.0,
    }
