"""How does a report look? One HTML file with its pictures inside; nothing is fetched from anywhere."""

import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from intentloop.trend import Trend
from trainer.report import Report

TEMPLATE = "report.html.jinja"


def render(report: Report) -> str:
    """Fill the template; versions, phone models and reasons are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"figure": figure, "trend": trend}
    return environment.get_template(TEMPLATE).render(report=report, pictures=_pictures(report))


def figure(value: float | None) -> str:
    """How is a number shown? About four digits, thousands apart; a dash for what is not known."""
    if value is None:
        return "–"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def trend(found: Trend | None) -> str:
    """How is a fitted change shown? With its interval."""
    return "–" if found is None else f"{figure(found.change)} [{figure(found.low)}, {figure(found.high)}]"


def _pictures(report: Report) -> list[Markup]:
    pictures = [_draw(_accuracy, report)]
    if any(bucket.asked for detail in report.details for bucket in detail.buckets):
        pictures.append(_draw(_lengths, report))
    if any(detail.stress.speeds for detail in report.details):
        pictures.append(_draw(_stress, report))
    return pictures


def _draw(draw: Any, report: Report) -> Markup:
    import matplotlib
    from matplotlib.figure import Figure

    # text stays text: the reader's fonts show every script, and a page of pictures stays small
    settings = {"svg.hashsalt": "intentloop", "svg.fonttype": "none", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(11, 3.2), layout="constrained")
        draw(figure, report)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return Markup(text[text.index("<svg") :])  # without the XML declaration, which HTML does not know


def _accuracy(figure: Any, report: Report) -> None:
    axes = figure.subplots()
    known = [(row.version, row.accuracy) for row in reversed(report.rows) if row.accuracy is not None]
    for place, (_, found) in enumerate(known):
        axes.errorbar(place, found.value, [[found.value - found.low], [found.high - found.value]], fmt="o", capsize=4)
    axes.set_xticks(range(len(known)), [_literal(version) for version, _ in known])
    axes.set_ylabel("accuracy (95 %)")


def _lengths(figure: Any, report: Report) -> None:
    panels = (
        ("ttft_ms", "first token, ms"),
        ("prefill_tokens_s", "prefill, tokens/s"),
        ("decode_tokens_s", "decode, tokens/s"),
    )
    for axes, (name, label) in zip(figure.subplots(1, 3), panels, strict=True):
        for detail in report.details:
            known = [bucket for bucket in detail.buckets if bucket.asked]
            values = [getattr(bucket, name) for bucket in known]
            axes.plot([bucket.prompt_tokens for bucket in known], values, "o-", label=_literal(detail.version))
        axes.set(xlabel="prompt tokens", ylabel=label)
        axes.set_ylim(bottom=0)
    figure.axes[0].legend()


def _stress(figure: Any, report: Report) -> None:
    speed, memory = figure.subplots(1, 2)
    for detail in report.details:
        found = detail.stress
        step = found.runs / max(1, len(found.speeds))
        for axes, values in ((speed, found.speeds), (memory, [size / 1e6 for size in found.private_bytes])):
            places = [index * step for index in range(len(values))]
            axes.plot(places, values, linewidth=0.8, label=_literal(detail.version))
    speed.set(xlabel="answers", ylabel="speed, usual = 1")
    memory.set(xlabel="answers", ylabel="private memory, MB")
    speed.legend()


def _literal(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib reads formulas between dollars
