"""What does drift alone cost? `python -m streams` without what runs of the model give rise to: no verdicts, no picks.

Decoding, clocks, duplicates, debounce, windows, scores, drift facts and state by the protocol stay as they are; an
inference still makes the window that it saw the reference. Only for `bench.streams`, which compares its CPU with
decoding alone, as other stream systems are compared.
"""

from intentloop.events import Inference
from intentloop.findings import Findings
from intentloop.timeline import Timed
from streams import __main__ as worker


def _count_only(findings: Findings, _event: Inference, _timed: Timed) -> None:
    findings.counts["inferences"] += 1


def main() -> None:
    """Leave out what is said of inferences, then be the worker."""
    Findings.infer = _count_only  # type: ignore[method-assign,assignment]
    worker.main()


if __name__ == "__main__":
    main()
