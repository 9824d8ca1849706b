"""What a phone has not got rid of survives its process, in order, and every event id counts once."""

import signal
import subprocess
import sys
from pathlib import Path

from demo.outbox import Batch, Outbox, Sent, read_sent


def batch(number: int, phone: str = "p1") -> Batch:
    return Batch(f"{phone}-b{number}", phone, f'{{"batch":{number}}}'.encode())


def test_batches_of_a_phone_go_in_their_order(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    for number in range(3):
        outbox.add(batch(number), [f"e{number}"])
    gone = []
    while (first := outbox.first("p1")) is not None:
        gone.append(first)
        outbox.acknowledge(first.batch_id)
    assert gone == [batch(0), batch(1), batch(2)]
    outbox.close()


def test_each_event_id_counts_once_and_every_batch_in_its_state(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    outbox.add(batch(1), ["a", "b"])
    outbox.add(batch(2), ["b", "c"])
    outbox.add(batch(3, "p2"), ["d"])
    outbox.acknowledge("p1-b1")
    outbox.refuse("p2-b3", "413: too large")
    assert outbox.sent() == Sent(events=4, batches=3, waiting=1, refused=1)
    assert outbox.phones() == ["p1"]
    assert outbox.knows("p1-b1")
    assert not outbox.knows("p1-b9")
    outbox.close()


def test_another_process_reads_the_counts_and_zeros_before_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    assert read_sent(path) == Sent(events=0, batches=0, waiting=0, refused=0)
    outbox = Outbox(path)
    outbox.add(batch(1), ["a"])
    assert read_sent(path) == Sent(events=1, batches=1, waiting=1, refused=0)
    outbox.close()


def test_what_was_added_survives_a_kill_and_the_next_run_has_another_number(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    program = (
        "import os, signal, sys; from pathlib import Path; from demo.outbox import Batch, Outbox;"
        "box = Outbox(Path(sys.argv[1])); print(box.next_run());"
        "box.add(Batch('b1', 'p1', b'{}'), ['a', 'b']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    outbox = Outbox(path)
    assert outbox.first("p1") == Batch("b1", "p1", b"{}")
    assert outbox.sent().events == 2
    assert outbox.next_run() == 2
    outbox.close()
