"""What a log file is told of long work: about ten lines, each with the time that is left."""

import logging

import pytest

from trainer import progress


class Clock:
    """Seconds that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_the_pieces_left_at_the_speed_so_far(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO), progress.Advance("training", 50, clock) as advance:
        for done in range(1, 51):
            clock.now = 3.0 * done
            advance.to(done, "loss 0.5000")
    assert caplog.messages[0] == "  training 1 of 50, 2 min 27 s left: loss 0.5000"
    assert caplog.messages[1] == "  training 10 of 50, 2 min 0 s left: loss 0.5000"
    assert caplog.messages[-1] == "  training 50 of 50, 0 s left: loss 0.5000"
    assert len(caplog.messages) == 10


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7_320, "2 h 2 min")]
)
def test_durations_are_told_as_people_tell_them(seconds: float, told: str) -> None:
    assert progress.duration(seconds) == told


def test_nothing_done_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), progress.Advance("training", 3) as advance:
        advance.to(0)
    assert caplog.messages == []
