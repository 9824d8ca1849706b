"""A supervised process comes back after a kill, is given up after too many ends, and never outlives its keeper."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from intentloop.adapters.supervisor import ProcessSpec, RestartRule, Supervisor
from intentloop.errors import UnavailableError

QUICK = RestartRule(first_wait_s=0.05, longest_wait_s=0.1, healthy_s=60.0, max_ends=3, stop_s=2.0)
SLEEP = "import time; time.sleep(60)"


def spec(name: str, program: str, restart: bool = True) -> ProcessSpec:
    return ProcessSpec(name=name, command=(sys.executable, "-c", program), restart=restart)


async def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def test_a_killed_process_is_started_again_and_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        supervisor = Supervisor(tmp_path, QUICK)
        supervisor.start(spec("sleeper", SLEEP))
        watching = asyncio.create_task(supervisor.watch(0.02))
        first = supervisor.pids()["sleeper"]
        os.kill(first, signal.SIGKILL)
        await wait_for(lambda: supervisor.pids().get("sleeper", first) != first)
        assert supervisor.restarts() == {"sleeper": 1}
        watching.cancel()
        await supervisor.stop()
        assert supervisor.pids() == {}

    asyncio.run(scene())
    assert "ended with code -9" in (tmp_path / "sleeper.log").read_text(encoding="utf-8")


def test_a_process_that_keeps_ending_is_given_up_with_the_name_of_its_log(tmp_path: Path) -> None:
    async def scene() -> None:
        supervisor = Supervisor(tmp_path, QUICK)
        supervisor.start(spec("broken", "raise SystemExit(70)"))
        with pytest.raises(UnavailableError, match=r"broken ended with code 70 .*broken\.log"):
            await asyncio.wait_for(supervisor.watch(0.02), 20)
        await supervisor.stop()

    asyncio.run(scene())


def test_a_process_whose_configuration_cannot_work_is_given_up_at_once_with_its_last_words(tmp_path: Path) -> None:
    async def scene() -> None:
        supervisor = Supervisor(tmp_path, QUICK)
        supervisor.start(spec("misled", "import sys; print('no such broker'); sys.exit(78)"))
        with pytest.raises(UnavailableError, match=r"misled ended with code 78 \(1 times.*no such broker"):
            await asyncio.wait_for(supervisor.watch(0.02), 5)
        await supervisor.stop()

    asyncio.run(scene())


def test_a_process_that_must_not_be_restarted_ends_the_watch(tmp_path: Path) -> None:
    async def scene() -> None:
        supervisor = Supervisor(tmp_path, QUICK)
        supervisor.start(spec("memory", SLEEP, restart=False))
        os.kill(supervisor.pids()["memory"], signal.SIGKILL)
        with pytest.raises(UnavailableError, match="memory ended"):
            await asyncio.wait_for(supervisor.watch(0.02), 5)
        await supervisor.stop()

    asyncio.run(scene())


def test_a_process_that_ignores_the_polite_request_and_its_child_are_ended_all_the_same(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); time.sleep(60)"
    )

    async def scene() -> int:
        supervisor = Supervisor(tmp_path, RestartRule(stop_s=0.3))
        supervisor.start(spec("stubborn", stubborn))
        log = tmp_path / "stubborn.log"
        await wait_for(lambda: log.read_text(encoding="utf-8").strip().isdigit())
        await supervisor.stop()
        return int(log.read_text(encoding="utf-8"))

    child = asyncio.run(scene())
    deadline = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def test_a_process_run_to_its_end_is_tried_again_and_its_failure_told(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = (
        f"import pathlib; p = pathlib.Path({str(mark)!r}); there = p.exists(); p.touch(); raise SystemExit(not there)"
    )

    async def scene() -> None:
        supervisor = Supervisor(tmp_path, QUICK)
        await supervisor.run(spec("once", program))
        with pytest.raises(UnavailableError, match="hopeless failed 2 times"):
            await supervisor.run(spec("hopeless", "raise SystemExit(1)"), tries=2)
        assert supervisor.names() == ()

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children of a killed parent on Linux only")
def test_when_the_keeper_itself_is_killed_the_kernel_ends_its_processes(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from intentloop.adapters.supervisor import ProcessSpec, RestartRule, Supervisor;"
        "keeper = Supervisor(Path(sys.argv[1]), RestartRule());"
        "keeper.start(ProcessSpec(name='s', command=(sys.executable, '-c', 'import time; time.sleep(60)')));"
        "print(keeper.pids()['s'], flush=True); time.sleep(60)"
    )
    keeper = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    child = int(keeper.stdout.readline())
    assert is_running(child)
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    deadline = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
