"""Fit a threshold to behaviour that really happened: `intentloop calibrate drift FILE --target-rate 0.21`.

Prints the rate for each log base and window, and saves a profile that streams load (`INTENTLOOP_RULES__PROFILE`).
"""

import hashlib
from itertools import islice
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from intentloop import calibration, readers
from intentloop.adapters.clock import now_ms
from intentloop.calibration import Against, Calibrated
from intentloop.drift import DriftRule, LogBase
from intentloop.readers import BadRow, Format, Row

WINDOWS = (8, 10, 12, 15)
NEAR = 0.02  # by so much may a profile miss the wanted rate in silence
DEBOUNCE_MS = 30_000  # as streams do by default

app = typer.Typer(no_args_is_help=True)


@app.callback()
def calibrate() -> None:
    """Fit numbers of the rules to real behaviour."""


@app.command("drift")
def drift(  # noqa: PLR0913  (a command line)
    file: Path,
    target_rate: Annotated[float, typer.Option(help="share of labels that should fire; published: 0.21")] = 0.21,
    format: Annotated[Format, typer.Option(help="how the file reads")] = "taobao-userbehaviour",
    against: Annotated[Against, typer.Option(help="last_inference is what streams do")] = "last_inference",
    log_base: Annotated[LogBase, typer.Option(help="for the profile")] = "e",
    window: Annotated[int, typer.Option(help="labels in a window, for the profile", min=3, max=64)] = 12,
    profile: Annotated[Path, typer.Option(help="where the profile is written")] = Path("var/drift-profile.toml"),
    max_rows: Annotated[int, typer.Option(help="read so many rows at most", min=1)] = 100_000,
) -> None:
    """Find the threshold at which drift fires for the wanted share, and what other bases and windows would give."""
    if not 0 < target_rate < 1:
        raise typer.BadParameter(f"a target rate of {target_rate} is not in (0, 1); the published one is 0.21")
    rows, rejected = _read(file, format, max_rows)
    users = calibration.user_labels(rows, DEBOUNCE_MS)
    labels = sum(map(len, users))
    if not labels:
        raise typer.BadParameter(f"{file} holds no labels as {format}: {rejected} rows were set aside; try --format")
    console = Console()
    console.print(f"{labels:,} labels of {len(users):,} users; {rejected:,} rows set aside", highlight=False)
    found = [
        calibration.calibrate(users, DriftRule(log_base=base, window=size), target_rate, against)
        for base in get_args(LogBase)
        for size in sorted({*WINDOWS, window})
    ]
    console.print(_table(found, target_rate))
    (chosen,) = (one for one in found if (one.rule.log_base, one.rule.window) == (log_base, window))
    if abs(chosen.rate - target_rate) > NEAR:
        console.print(
            f"no threshold fires for {target_rate:.0%}: the nearest fires for {chosen.rate:.1%}; another window or "
            "base may come nearer, see the table",
            style="red",
            soft_wrap=True,
        )
    profile.parent.mkdir(parents=True, exist_ok=True)
    profile.write_text(_profile(chosen, file, labels, target_rate), encoding="utf-8")
    told = f"τ {chosen.threshold:g} fires for {chosen.rate:.2%} (base {log_base}, window {window})"
    console.print(f"{told}; streams load it with INTENTLOOP_RULES__PROFILE={profile}", highlight=False, soft_wrap=True)


def _read(file: Path, format: Format, max_rows: int) -> tuple[list[Row], int]:
    """The first rows of a file, with its own category ids, and how many of them could not be read."""
    good: list[Row] = []
    rejected = 0
    try:
        with file.open(encoding="utf-8") as lines:
            for row in islice(readers.read(format, lines, now_ms(), dress=False), max_rows):
                if isinstance(row, BadRow):
                    rejected += 1
                else:
                    good.append(row)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    return good, rejected


def _table(found: list[Calibrated], target_rate: float) -> Table:
    table = Table(title=f"Share of labels that fire, against {found[0].against}", title_justify="left")
    names = ("base", "window", "τ 0.8, previous window,\nno switch rule", "τ 0.8", f"τ for {target_rate:.0%}", "fires")
    for name in names:
        table.add_column(name, justify="right")
    for one in found:
        cells = f"{one.published:.1%}", f"{one.before:.1%}", f"{one.threshold:.3f}", f"{one.rate:.1%}"
        table.add_row(one.rule.log_base, str(one.rule.window), *cells)
    return table


def _profile(chosen: Calibrated, file: Path, labels: int, target_rate: float) -> str:
    """TOML that the settings of streams read: only `[rules]` counts, the rest says where it comes from."""
    rule = chosen.rule
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"""\
[rules]
drift_threshold = {chosen.threshold}
drift_log_base = "{rule.log_base}"
drift_window = {rule.window}
drift_min_window = {rule.min_window}

[calibration]
target_rate = {target_rate}
rate = {chosen.rate}
against = "{chosen.against}"
labels = {labels}
data_sha256 = "{digest}"
"""
