"""Which candidates are worth a look, since no other is better in everything? The grid as a table, for people."""

from collections.abc import Sequence

import msgspec

from trainer.search_score import Score

SAME_TIME = 0.1  # times that differ by less than this share of the longer one count as equal: clocks are noisy


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A whole search: all candidates, which was chosen, and what left before it became one, with the reason."""

    scores: tuple[Score, ...]
    chosen: str
    earlier: dict[str, str]


def front(scores: Sequence[Score]) -> set[str]:
    """Which of the candidates that stayed are not beaten?

    One beats another that is as good in accuracy, KL, size and speed, and better in one of them.
    """
    stayed = [score for score in scores if not score.left]
    return {mine.candidate.name for mine in stayed if not any(_beats(other, mine) for other in stayed)}


def markdown(table: Table) -> str:
    """The search as a Markdown table, the best KL of each number of layers first, and why others left."""
    on_front = front(table.scores)
    ordered = sorted(table.scores, key=lambda s: (bool(s.left), len(s.candidate.dropped), s.nats, s.candidate.name))
    lines = [HEAD, RULER, *(_row(score, table.chosen, on_front) for score in ordered)]
    if table.earlier:
        lines += ["", "Left before they became candidates:", ""]
        lines += [f"- {name}: {reason}" for name, reason in table.earlier.items()]
    return "\n".join([*lines, "", LEGEND, ""])


HEAD = (
    "| | candidate | layers left out | accuracy (95 %) | exact | KL, nats | MB | TTFT p50/p95, ms | prefill tokens/s "
    "| decode tokens/s | left early |"
)
RULER = "|---|---|---|---|---|---|---|---|---|---|---|"
LEGEND = "▶ chosen, ● on the front: no other is as good in accuracy, KL, size and first token, and better in one."


def _row(score: Score, chosen: str, on_front: set[str]) -> str:
    name = score.candidate.name
    mark = ("▶" if name == chosen else "") + ("●" if name in on_front else "")
    cells = (
        mark,
        name,
        " ".join(map(str, score.candidate.dropped)) or "none",
        f"{score.accuracy:.3f} [{score.accuracy_low:.3f}, {score.accuracy_high:.3f}] of {score.samples}",
        f"{score.exact:.3f}",
        "" if score.divergence is None else f"{score.divergence:.4f}",
        f"{score.artefact_bytes / 1e6:.2f}",
        f"{score.ttft_p50_ms:.1f}/{score.ttft_p95_ms:.1f}",
        f"{score.prefill_tokens_s:.0f}",
        f"{score.decode_tokens_s:.0f}",
        score.left,
    )
    if not score.samples:
        cells = (*cells[:3], "", "", *cells[5:7], "", "", "", cells[10])
    return f"| {' | '.join(cells)} |"


def _beats(other: Score, mine: Score) -> bool:
    exact = (
        (other.accuracy, mine.accuracy),
        (-other.nats, -mine.nats),
        (-other.artefact_bytes, -mine.artefact_bytes),
    )
    slower = other.ttft_p50_ms > mine.ttft_p50_ms / (1 - SAME_TIME)
    faster = other.ttft_p50_ms < mine.ttft_p50_ms * (1 - SAME_TIME)
    as_good = all(theirs >= ours for theirs, ours in exact) and not slower
    return as_good and (faster or any(theirs > ours for theirs, ours in exact))
