"""Production as it is written down: nothing is forgotten on a restart, every process is watched, and scaling works."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import GatewaySettings
from streams.settings import StreamsSettings
from trainer.settings import TrainerSettings
from workers.settings import WorkersSettings

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = ("gateway", "streams", "workers", "trainer")
SETTINGS = {
    "gateway": GatewaySettings,
    "streams": StreamsSettings,
    "workers": WorkersSettings,
    "trainer": TrainerSettings,
}
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
    return found


def test_all_processes_and_both_stores_are_there_and_watched(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"kafka", "redis", *PROCESSES}
    for name, service in services.items():
        assert service["healthcheck"]["test"], name
        assert service["restart"] == "unless-stopped", name


def test_redis_keeps_what_it_was_given(services: dict[str, dict[str, Any]]) -> None:
    command = services["redis"]["command"]
    pairs = dict(zip(command[1::2], command[2::2], strict=True))
    assert (pairs["--appendonly"], pairs["--maxmemory-policy"]) == ("yes", "noeviction")
    assert services["redis"]["volumes"] == ["redis:/data"]


def test_kafka_is_kraft_and_makes_no_topic_by_itself(services: dict[str, dict[str, Any]]) -> None:
    environment = services["kafka"]["environment"]
    assert environment["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert not any("ZOOKEEPER" in name for name in environment)
    assert services["kafka"]["volumes"] == [f"kafka:{environment['KAFKA_LOG_DIRS']}"]


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_starts_from_the_image_after_its_stores(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    assert service["command"] == [name]
    assert importlib.util.find_spec(f"{name}.__main__") is not None
    assert service["build"]["context"] == "."
    for store in ("kafka", "redis"):
        assert service["depends_on"][store]["condition"] == "service_healthy"


@pytest.mark.parametrize("name", PROCESSES)
def test_every_setting_in_the_file_is_one_that_the_process_has(
    services: dict[str, dict[str, Any]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in services[name]["environment"].items():
        monkeypatch.setenv(variable, value)
    settings = SETTINGS[name]()  # a misspelt name inside a section is an error
    assert settings.kafka.bootstrap == "kafka:9092"
    assert settings.redis.url == "redis://redis:6379/0"
    known = set(GatewaySettings.model_fields) | set(WorkersSettings.model_fields) | set(TrainerSettings.model_fields)
    sections = {
        variable.split("__")[0].removeprefix("INTENTLOOP_").lower() for variable in services[name]["environment"]
    }
    assert sections <= known


@pytest.mark.parametrize("name", ["streams", "workers"])
def test_streams_and_workers_scale_by_replicas(services: dict[str, dict[str, Any]], name: str) -> None:
    assert services[name]["deploy"]["replicas"] >= 2
    assert "container_name" not in services[name]
    assert "ports" not in services[name]


def test_the_health_check_asks_the_port_that_the_process_listens_on(services: dict[str, dict[str, Any]]) -> None:
    for name in PROCESSES:
        environment = services[name]["environment"]
        port = environment["INTENTLOOP_HTTP__PORT" if name == "gateway" else "INTENTLOOP_HEALTH__PORT"]
        assert f"127.0.0.1:{port}/health" in services[name]["healthcheck"]["test"][-1]


def test_releases_lie_on_one_volume_that_only_the_trainer_writes(services: dict[str, dict[str, Any]]) -> None:
    declared = yaml.safe_load(TEXT)["volumes"]
    assert {"kafka", "redis", "blobs"} <= set(declared)
    assert "blobs:/srv/intentloop/var/blobs:ro" in services["gateway"]["volumes"]
    assert "blobs:/srv/intentloop/var/blobs" in services["trainer"]["volumes"]


def test_no_secret_is_written_down_and_only_the_trainer_gets_the_signing_key(
    services: dict[str, dict[str, Any]],
) -> None:
    for name in PROCESSES:
        assert not re.search(r"KEY|TOKEN|PASSWORD|SECRET", " ".join(services[name]["environment"])), name
    files = [services[name].get("env_file") for name in PROCESSES]
    assert files == ["var/gateway.env", None, "var/workers.env", "var/trainer.env"]


def test_the_image_holds_every_package_and_runs_as_nobody_special() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    for package in ("intentloop", *PROCESSES):
        assert f"COPY {package} {package}" in lines
    assert "USER intentloop" in lines
    assert 'ENTRYPOINT ["python", "-m"]' in lines
    for line in lines:
        if line.startswith("COPY pyproject"):
            assert all((ROOT / name).is_file() for name in line.split()[1:-1])


def _has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="docker compose is not installed here")
def test_docker_itself_accepts_the_file(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "var").mkdir()
    for name in ("gateway", "workers", "trainer"):
        (tmp_path / "var" / f"{name}.env").touch()
    checked = subprocess.run(["docker", "compose", "config", "--quiet"], cwd=tmp_path, capture_output=True)
    assert checked.returncode == 0, checked.stderr
