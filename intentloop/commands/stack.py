"""Which processes make up the system, and with which settings? Plans only; `run_stack.py` starts them.

All processes read one settings file, made here from a plan; what only one may know (the private key of releases) is in
that process's environment alone. Processes are named by module: nothing here imports them.
"""

import json
import os
import secrets
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from intentloop.adapters import embedded
from intentloop.adapters.settings import KafkaSection, ProcessSettings, RedisSection, TeacherSection
from intentloop.adapters.signing import generate_keys
from intentloop.adapters.supervisor import ProcessSpec

Sections = Mapping[str, Mapping[str, Any]]

SERVICES = ("broker", "redis")
PROCESSES = ("gateway", "streams", "workers", "trainer")


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn for this deployment; kept in a file that only its owner reads."""

    private_key: str
    public_key: str
    user_key: str
    device_token: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything runs. `embedded` tells that broker and Redis are ours to start and stop."""

    directory: Path
    bootstrap: str
    redis_url: str
    prefix: str
    embedded: bool
    gateway_port: int
    health_ports: Mapping[str, int]
    secrets: Secrets

    @property
    def settings_file(self) -> Path:
        """The TOML file that all processes read."""
        return self.directory / "settings.toml"

    @property
    def gateway_url(self) -> str:
        """Where phones find the gateway."""
        return f"http://127.0.0.1:{self.gateway_port}"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said about where to run: empty addresses mean embedded services."""

    directory: Path
    broker: str = ""
    redis: str = ""
    prefix: str = ""


class PlaceSettings(ProcessSettings):
    """Where a person's own settings put broker, Redis and teachers, if they say so."""

    kafka: KafkaSection = KafkaSection()
    redis: RedisSection = RedisSection()
    teacher_a: TeacherSection = TeacherSection()


def choose_place(directory: Path, broker: str, redis: str, prefix: str) -> Place:
    """Where will it run? Arguments first, then a person's settings, then services of our own."""
    settings = PlaceSettings()
    if not broker and "bootstrap" in settings.kafka.model_fields_set:
        broker = settings.kafka.bootstrap
    if not redis and "url" in settings.redis.model_fields_set:
        redis = settings.redis.url
    if not prefix and "prefix" in settings.redis.model_fields_set:
        prefix = settings.redis.prefix
    return Place(directory=directory, broker=broker, redis=redis, prefix=prefix)


def has_teachers() -> bool:
    """Did a person configure real teachers?"""
    return bool(PlaceSettings().teacher_a.base_url)


def describe(plan: "Plan", place: Place) -> str:
    """Which broker and Redis are these, in words?"""
    broker = f"Kafka at {place.broker}" if place.broker else f"embedded broker tansu at {plan.bootstrap} (memory only)"
    redis = "Redis as configured" if place.redis else "embedded Redis (valkey)"
    prefix = f", topics and keys with prefix {plan.prefix}" if plan.prefix and (place.broker or place.redis) else ""
    return f"{broker}, {redis}{prefix}, everything under {plan.directory}"


def plan(place: Place, names: tuple[str, ...] = PROCESSES) -> Plan:
    """Choose ports and secrets. A broker without a Redis of its own, or the other way round, is completed by ours."""
    directory = place.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return Plan(
        directory=directory,
        bootstrap=place.broker or f"127.0.0.1:{embedded.free_port()}",
        redis_url=place.redis or f"redis://127.0.0.1:{embedded.free_port()}/0",
        prefix=place.prefix,
        embedded=not (place.broker and place.redis),
        gateway_port=embedded.free_port(),
        health_ports={name: embedded.free_port() for name in names},
        secrets=_secrets(directory / "secrets.json"),
    )


def services(plan: Plan, place: Place) -> tuple[ProcessSpec, ...]:
    """Which services of our own must run? The broker keeps everything in memory: its end is the end."""
    found = []
    if not place.broker:
        command = embedded.broker_command(_port(plan.bootstrap))
        found.append(ProcessSpec(name="broker", command=tuple(command), restart=False))
    if not place.redis:
        data = plan.directory / "redis"
        data.mkdir(exist_ok=True)
        command = embedded.redis_command(_port(plan.redis_url.removeprefix("redis://").removesuffix("/0")), data)
        found.append(ProcessSpec(name="redis", command=tuple(command)))
    return tuple(found)


def process(plan: Plan, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> ProcessSpec:
    """How is the process of this module started?"""
    own = {"INTENTLOOP_SETTINGS_FILE": str(plan.settings_file), "PYTHONUNBUFFERED": "1", **one_thread()}
    for section, values in _sections(plan).items():  # as environment too: a person's own must not win over the plan
        own |= {f"INTENTLOOP_{section.upper()}__{key.upper()}": str(value) for key, value in values.items()}
    short = name.rsplit(".", 1)[-1]
    if short in plan.health_ports:
        own["INTENTLOOP_HEALTH__PORT"] = str(plan.health_ports[short])
    if short == "trainer":
        own["INTENTLOOP_RELEASE__PRIVATE_KEY"] = plan.secrets.private_key
    return ProcessSpec(
        name=short, command=(sys.executable, "-m", name, *arguments), environment={**own, **(environment or {})}
    )


def health_url(plan: Plan, name: str) -> str:
    """Where does this process tell how it is?"""
    port = plan.gateway_port if name == "gateway" else plan.health_ports[name]
    return f"http://127.0.0.1:{port}/health"


def one_thread() -> dict[str, str]:
    """Settings of numeric libraries: no pool of threads in processes that share two cores, unless somebody said so."""
    return {name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ}


def write_settings(plan: Plan, more: Sections) -> None:
    """Write the settings file: what a person's file says, then the plan's places and keys, then `more`."""
    theirs = os.environ.get("INTENTLOOP_SETTINGS_FILE")
    base = tomllib.loads(Path(theirs).read_text(encoding="utf-8")) if theirs else {}
    sections: dict[str, dict[str, Any]] = {name: dict(values) for name, values in base.items()}
    for name, values in [*_sections(plan).items(), *more.items()]:
        sections.setdefault(name, {}).update(values)
    plan.settings_file.touch(mode=0o600)
    plan.settings_file.write_text(_toml(sections), encoding="utf-8")


def _sections(plan: Plan) -> Sections:
    return {
        "kafka": {"bootstrap": plan.bootstrap, "prefix": f"{plan.prefix}." if plan.prefix else ""},
        "redis": {"url": plan.redis_url, "prefix": plan.prefix or "il"},
        "blobs": {"root": str(plan.directory / "blobs")},
        "trainer": {"work": str(plan.directory / "runs")},
        "release": {"public_key": plan.secrets.public_key},
        "http": {"port": plan.gateway_port},
        "privacy": {"user_key": plan.secrets.user_key},
        "auth": {"device_token": plan.secrets.device_token},
    }


def _secrets(path: Path) -> Secrets:
    """The keys of this directory; drawn once, so that users keep their hashes and phones their trust."""
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Secrets)
    private_key, public_key = generate_keys()
    drawn = Secrets(
        private_key=private_key,
        public_key=public_key,
        user_key=secrets.token_hex(32),
        device_token=secrets.token_urlsafe(24),
    )
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(drawn))
    return drawn


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[-1])


def _toml(sections: Sections) -> str:
    lines: list[str] = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _value(value: object) -> str:
    """One TOML value; JSON's texts, numbers, booleans and lists are TOML's, tables are written inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)
