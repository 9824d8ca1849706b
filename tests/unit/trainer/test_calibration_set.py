"""What calibration is drawn: every class alike, hard samples with them."""

from collections import Counter

import msgspec
import pytest

from intentloop.facts import IntentName
from intentloop.training_set import TrainingSample
from trainer import calibration_set, tiny_corpus

ONE = tiny_corpus.samples(3, 1, 0.0)[0]


def samples(intent: IntentName, easy: int, hard: int) -> list[TrainingSample]:
    return [
        msgspec.structs.replace(ONE, id=f"{intent}-{index}", intent=intent, hard=index >= easy)
        for index in range(easy + hard)
    ]


# seeds/000's mix of 7 % scene, 15 % hesitating, 78 % browsing, and few hard samples in it
SET = [*samples("闲逛", 770, 10), *samples("比价犹豫", 140, 10), *samples("场景购物", 68, 2)]


def test_every_class_calibrates_alike_although_most_people_browse() -> None:
    picked = calibration_set.pick(SET, 128, 1)
    assert Counter(sample.intent for sample in picked) == {"场景购物": 43, "比价犹豫": 43, "闲逛": 42}
    assert len({sample.id for sample in picked}) == 128


def test_hard_samples_are_in_as_far_as_there_are() -> None:
    picked = calibration_set.pick(SET, 30, 1)
    hard = Counter(sample.intent for sample in picked if sample.hard)
    assert hard == {"闲逛": 5, "比价犹豫": 5, "场景购物": 2}  # of 10 each


def test_a_class_that_has_no_more_leaves_its_places_to_the_others() -> None:
    picked = calibration_set.pick([*samples("闲逛", 50, 0), *samples("场景购物", 3, 0)], 20, 1)
    assert Counter(sample.intent for sample in picked) == {"闲逛": 17, "场景购物": 3}


@pytest.mark.parametrize("count", [1000, 5000])
def test_all_are_taken_when_as_many_or_more_are_wanted(count: int) -> None:
    assert sorted(sample.id for sample in calibration_set.pick(SET, count, 1)) == sorted(sample.id for sample in SET)


def test_the_draw_is_that_of_its_seed() -> None:
    one, again, other = (calibration_set.pick(SET, 32, seed) for seed in (1, 1, 2))
    assert one == again
    assert {sample.id for sample in one} != {sample.id for sample in other}
