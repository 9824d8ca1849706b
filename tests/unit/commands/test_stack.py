"""A plan names every process, keeps the private key to the trainer, and its settings file reads back as meant."""

import stat
import tomllib
from pathlib import Path

import pytest

from gateway.settings import GatewaySettings
from intentloop.commands import stack, stand_ins
from streams.settings import StreamsSettings
from trainer.settings import TrainerSettings
from workers.settings import WorkersSettings

ALL = (*stack.PROCESSES, *stand_ins.NAMES)


def planned(directory: Path, prefix: str = "x1") -> stack.Plan:
    return stack.plan(stack.Place(directory=directory, prefix=prefix), ALL)


def test_keys_of_a_directory_are_drawn_once_and_only_its_owner_reads_them(tmp_path: Path) -> None:
    first, second = planned(tmp_path), planned(tmp_path)
    assert first.secrets == second.secrets
    assert stat.S_IMODE((tmp_path / "secrets.json").stat().st_mode) == 0o600


def test_only_the_trainer_is_told_the_private_key(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    stack.write_settings(plan, stand_ins.teacher_settings(plan))
    private = plan.secrets.private_key
    assert private not in plan.settings_file.read_text(encoding="utf-8")
    for name in stack.PROCESSES:
        told = private in stack.process(plan, name).environment.values()
        assert told == (name == "trainer")


def test_every_process_reads_the_settings_that_were_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path)
    stack.write_settings(plan, stand_ins.teacher_settings(plan))
    monkeypatch.setenv("INTENTLOOP_SETTINGS_FILE", str(plan.settings_file))
    gateway, workers = GatewaySettings(), WorkersSettings()
    for settings in (gateway, StreamsSettings(), workers, TrainerSettings()):
        assert settings.kafka.bootstrap == plan.bootstrap
        assert settings.kafka.prefix == "x1."
        assert settings.redis.url == plan.redis_url
        assert settings.redis.prefix == "x1"
    assert gateway.http.port == plan.gateway_port
    assert gateway.auth.device_token.get_secret_value() == plan.secrets.device_token
    assert workers.teacher_b.name == "kimi (simulated)"
    assert TrainerSettings().blobs.root == gateway.blobs.root


def test_a_persons_settings_are_kept_and_the_plan_wins_where_both_speak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs.toml"
    theirs.write_text(
        '[teacher_a]\nname = "qwen"\nextra_body = { enable_thinking = false, list = [1, 2] }\n[http]\nport = 1\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("INTENTLOOP_SETTINGS_FILE", str(theirs))
    plan = planned(tmp_path / "up")
    stack.write_settings(plan, {"retrain": {"hard_new": 5}})
    found = tomllib.loads(plan.settings_file.read_text(encoding="utf-8"))
    assert found["teacher_a"] == {"name": "qwen", "extra_body": {"enable_thinking": False, "list": [1, 2]}}
    assert found["http"]["port"] == plan.gateway_port
    assert found["retrain"] == {"hard_new": 5}


@pytest.mark.parametrize(
    ("broker", "redis", "started"),
    [
        ("", "", ["broker", "redis"]),
        ("127.0.0.1:9092", "", ["redis"]),
        ("", "redis://127.0.0.1:6379/0", ["broker"]),
        ("127.0.0.1:9092", "redis://127.0.0.1:6379/0", []),
    ],
)
def test_only_services_that_are_not_there_are_started(
    tmp_path: Path, broker: str, redis: str, started: list[str]
) -> None:
    place = stack.Place(directory=tmp_path, broker=broker, redis=redis)
    specs = stack.services(stack.plan(place), place)
    assert [spec.name for spec in specs] == started
    assert all(spec.restart == (spec.name == "redis") for spec in specs)


def test_addresses_come_from_arguments_first_and_then_from_a_persons_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTENTLOOP_KAFKA__BOOTSTRAP", "10.0.0.1:9092")
    monkeypatch.setenv("INTENTLOOP_REDIS__URL", "redis://10.0.0.1/0")
    found = stack.choose_place(tmp_path, "", "redis://127.0.0.1:1/0", "p")
    assert (found.broker, found.redis) == ("10.0.0.1:9092", "redis://127.0.0.1:1/0")


def test_addresses_that_nobody_named_mean_services_of_our_own(tmp_path: Path) -> None:
    found = stack.choose_place(tmp_path, "", "", "p")
    assert (found.broker, found.redis) == ("", "")


def test_simulated_teachers_are_called_so_and_have_different_seeds(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    specs = stand_ins.teacher_specs(plan)
    assert [spec.name for spec in specs] == list(stand_ins.NAMES)
    seeds = [spec.command[spec.command.index("--seed") + 1] for spec in specs]
    assert len(set(seeds)) == 2
    for section in stand_ins.teacher_settings(plan).values():
        assert "simulated" in section["name"]
