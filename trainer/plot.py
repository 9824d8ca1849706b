"""What does a search look like? Four pictures in one file, made without a window and the same for the same values."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.pareto import Table, front
from trainer.search_score import Score

Axis = tuple[str, Callable[[Score], float]]

SIZE: Axis = ("size, MB", lambda score: score.artefact_bytes / 1e6)
PANELS: Sequence[tuple[Axis, Axis]] = (
    (SIZE, ("accuracy on dev (95 %)", lambda score: score.accuracy)),
    (SIZE, ("KL to full precision, nats a token", lambda score: score.nats)),
    (
        ("first token p50, ms", lambda score: score.ttft_p50_ms),
        ("accuracy on dev (95 %)", lambda score: score.accuracy),
    ),
    (
        ("decode, tokens/s", lambda score: score.decode_tokens_s),
        ("accuracy on dev (95 %)", lambda score: score.accuracy),
    ),
)
MARKERS = "os^Dv*P"


def pareto(table: Table, path: Path) -> None:
    """Draw accuracy, KL, size and speed of all candidates that answered the whole dev set; SVG.

    A colour is a number of layers cut, a shape a quantiser; filled is on the front, a ring marks the chosen one.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "intentloop", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(11, 8), layout="constrained")
        for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
            _draw(axes, panel, table)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize="small")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Any, panel: tuple[Axis, Axis], table: Table) -> None:
    (x_name, x_of), (y_name, y_of) = panel
    stayed = [score for score in table.scores if not score.left]
    on_front = front(table.scores)
    cuts = sorted({len(score.candidate.dropped) for score in stayed})
    kinds = sorted({score.candidate.quantiser for score in stayed})
    seen = set()
    for score in stayed:
        kind, cut = score.candidate.quantiser, len(score.candidate.dropped)
        colour = f"C{cuts.index(cut)}"
        marker = MARKERS[kinds.index(kind) % len(MARKERS)]
        filled = "full" if score.candidate.name in on_front else "none"
        axes.plot(x_of(score), y_of(score), marker, color=colour, fillstyle=filled)
        if (kind, cut) not in seen:  # the legend has every kind once, filled
            axes.plot([], [], marker, color=colour, label=f"{cut} cut, {kind}")
        seen.add((kind, cut))
        if score.candidate.name == table.chosen:
            axes.plot(x_of(score), y_of(score), "o", markersize=16, fillstyle="none", color="black")
        if "accuracy" in y_name:
            axes.vlines(x_of(score), score.accuracy_low, score.accuracy_high, color=colour, linewidth=0.5)
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    axes.grid(alpha=0.3)
