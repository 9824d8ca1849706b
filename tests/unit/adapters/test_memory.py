"""What a process has made until it is ready is not looked through again."""

import gc

from intentloop.adapters.memory import settle_memory


def test_what_is_alive_is_set_apart_and_garbage_is_not() -> None:
    kept = [[number] for number in range(1_000)]
    try:
        settle_memory()
        assert gc.get_freeze_count() > len(kept)
        assert not any(found is kept for found in gc.get_objects()), "later rounds leave it out"
    finally:
        gc.unfreeze()
