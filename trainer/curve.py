"""How did a training go? Its losses by step, as JSON lines and as a picture."""

from pathlib import Path
from typing import Any

import msgspec

KEPT = ("loss", "eval_loss", "learning_rate", "grad_norm")


def read(path: Path) -> list[dict[str, float]]:
    """Read what was kept of a training: `step` and some of `KEPT` a line."""
    decoder = msgspec.json.Decoder(dict[str, float])
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def draw(record: Path, target: Path) -> None:
    """Draw training and evaluation loss by step, and the learning rate below; SVG, the same for the same values."""
    import matplotlib
    from matplotlib.figure import Figure

    kept = read(record)
    with matplotlib.rc_context({"svg.hashsalt": "intentloop", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for name, mark in (("loss", "-"), ("eval_loss", "o--")):
            upper.plot(*_points(kept, name), mark, label=name.replace("_", " "))
        lower.plot(*_points(kept, "learning_rate"), color="grey")
        _label(upper, "nats a supervised token")
        _label(lower, "learning rate")
        upper.legend()
        lower.set_xlabel("step")
        figure.savefig(target, format="svg", metadata={"Date": None})


def _points(kept: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    there = [entry for entry in kept if name in entry]
    return [entry["step"] for entry in there], [entry[name] for entry in there]


def _label(axes: Any, name: str) -> None:
    axes.set_ylabel(name)
    axes.grid(alpha=0.3)
