"""What does it cost to ask a broker that is not there?"""

import threading
from pathlib import Path

import psutil
import pytest

from intentloop.adapters import broker_epoch
from intentloop.adapters.embedded import free_port
from intentloop.adapters.settings import KafkaSection
from intentloop.errors import UnavailableError
from intentloop.topics import TELEMETRY


def test_asking_for_hours_leaves_no_threads_and_descriptors_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_epoch, "TIMEOUT_S", 0.2)
    identity = broker_epoch.LogIdentity(KafkaSection(bootstrap=f"127.0.0.1:{free_port()}"), TELEMETRY)
    process, seen = psutil.Process(), list[tuple[int, int, int]]()
    for _ in range(4):
        with pytest.raises(UnavailableError, match="does not tell who it is"):
            identity.read()
        seen.append((threading.active_count(), process.num_threads(), process.num_fds()))
    assert seen[-1] <= seen[0]


def test_an_epoch_that_is_set_is_the_answer_and_nobody_is_asked(tmp_path: Path) -> None:
    assert broker_epoch.broker_epoch(KafkaSection(bootstrap=f"{tmp_path.name}:1", epoch="mine"), TELEMETRY) == "mine"
