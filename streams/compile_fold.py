"""Does this worker fold in compiled code? Where numba is installed, and nobody has switched it off."""

import logging

from intentloop.events import Envelope, InferenceSkipped
from intentloop.fold import FoldRule
from streams.fold_partition import Owned, Walk

log = logging.getLogger("streams")


def compiled_walk(rule: FoldRule, wanted: bool = True) -> Walk | None:
    """Which compiled code folds by this rule? None where a batch is folded by the definition, three times slower.

    Compiles on a machine's first call, which takes seconds; later processes read what was kept. So a worker calls this
    before it joins its group.
    """
    if not wanted:
        return None
    try:
        from streams.fold_columns import ColumnFold
    except ModuleNotFoundError as error:
        if error.name not in ("numba", "llvmlite"):
            raise
        log.warning("numba is not installed: batches are folded without it; pip install 'intentloop[compiled]'")
        return None
    except RuntimeError as error:
        log.warning("compiled code has no place: %s; set NUMBA_CACHE_DIR to a writable directory", error)
        return None
    walk = ColumnFold(rule)
    walk.walk([_EXAMPLE], {_EXAMPLE.key: None})
    return walk


_SKIPPED = InferenceSkipped(event_id="compile", ts_ms=0, check="fatigued")
_EXAMPLE = Owned("", Envelope(batch_id="", user_id="", device_id="", events=(_SKIPPED,)))
