"""Replay real data through the running system: `intentloop replay FILE --format … [--speed N|max] --report FILE`.

The same processes as in the demo; only the shoppers are those of a data set. The released model really runs on every
visit. Nothing is trained: most public data may be tested with, not trained on.
"""

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from demo import account, cast
from demo.golden import golden_samples
from demo.report import write
from demo.stage import Stage, perform
from demo.visits import ROWS, Rows
from demo.watch import Look
from intentloop import readers
from intentloop.adapters.supervisor import ProcessSpec
from intentloop.commands import stack
from intentloop.errors import ContractError

NEVER = 1_000_000_000  # more hard samples than there will be: no retraining
GOLDEN = 100
SEED = 11


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a replay says. `titles` tells whether titles are the data's own or made up.

    `drift_ratio` is fired drifts per applied behaviour; `answer_faults` counts answers that mean nothing, by kind.
    """

    file: str
    format: str
    speed: str
    titles: str
    rows_read: int
    rows_rejected: int
    rejections: tuple[readers.BadRow, ...]
    users: int
    visits: int
    events_sent: int
    events_accounted: int
    events_lost: int
    counts: dict[str, int]
    inferences: int
    drifts: int
    drift_ratio: float
    triggers_emitted: int
    samples_picked: int
    samples_labelled: int
    samples_hard: int
    samples_to_people: int
    teacher_agreement_ratio: float
    label_cost: float
    answer_faults: dict[str, int]
    model_version: str
    events_per_second: float
    seconds_feeding: float
    seconds_total: float
    restarts: dict[str, int]
    broker: str


def main(  # noqa: PLR0913  (a command line)
    file: Path,
    format: Annotated[str, typer.Option(help="taobao-userbehaviour, otto or events-jsonl")],
    speed: Annotated[str, typer.Option(help="N times faster than the data's own time, or max")] = "max",
    broker: Annotated[str, typer.Option(help="host:port of a Kafka that is there; empty: an embedded one")] = "",
    redis: Annotated[str, typer.Option(help="URL of a Redis that is there; empty: an embedded one")] = "",
    directory: Annotated[Path | None, typer.Option(help="where everything is kept; default var/replay-<id>")] = None,
    report: Annotated[Path, typer.Option(help="where the result is written")] = Path("var/replay-report.json"),
    deadline_s: Annotated[float, typer.Option(help="give up after so many seconds")] = 3600.0,
) -> None:
    """Feed real data instead of simulated shoppers."""
    console = Console()
    try:
        script = checked_script(file, format, speed)
    except ContractError as error:
        console.print(f"[bold red]failed:[/bold red] {error}", highlight=False)
        raise SystemExit(2) from None
    name = f"replay-{secrets.token_hex(3)}"
    place = stack.choose_place(directory or Path("var") / name, broker, redis, name)
    code, result = asyncio.run(perform(Replayer(script).play, place, deadline_s, console))
    if result is not None:
        write(result, report)
        console.print(_table(result))
        console.print(f"report: {report}    logs: {place.directory / 'logs'}", highlight=False)
        code = 1 if result.events_lost else 0
    raise SystemExit(code)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, and how fast; speed 0 is as fast as it goes."""

    file: Path
    format: readers.Format
    speed: float


def checked_script(file: Path, format: str, speed: str) -> Script:
    """Does this command line make sense?

    Raises:
        ContractError: no such file or format, or a speed that is no positive number.
    """
    if not file.is_file():
        raise ContractError(f"{file} is no file")
    try:
        name = msgspec.convert(format, readers.Format)
    except msgspec.ValidationError:
        raise ContractError(
            f"format {format!r} is not known; take taobao-userbehaviour, otto or events-jsonl"
        ) from None
    try:
        factor = 0.0 if speed == "max" else float(speed)
    except ValueError:
        factor = -1.0
    if factor < 0 or (factor == 0 and speed != "max"):
        raise ContractError(f"speed {speed!r} is neither 'max' nor a positive number")
    return Script(file=file.resolve(), format=name, speed=factor)


class Replayer:
    """Leads one replay; its stages are the lines of `play`.

    Args:
        script: What is replayed.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._began_s = time.monotonic()

    async def play(self, stage: Stage) -> ReplayReport:
        """Everything, in order."""
        await stage.set_up(cast.settings(stage.plan, NEVER), golden_samples(SEED, GOLDEN, GOLDEN))
        await stage.open()
        began_s = time.monotonic()
        stage.start(self._feed(stage))
        stage.say(f"feeding {self._script.file.name}")
        await stage.until(lambda look: look.phones.finished and not look.sent.waiting, stage.show_labelling)
        fed = await account.settle(stage.watch, stage.show_labelling, account.has_counted, 0.0)
        fed_s = time.monotonic() - began_s
        stage.say(f"{fed.sent.events:,} events are through; waiting for labels")
        look = await account.settle(stage.watch, stage.show_labelling, account.has_labelled, account.QUIET_S)
        return self._report(stage, look, fed_s)

    def _feed(self, stage: Stage) -> ProcessSpec:
        script = self._script
        environment = cast.phone_environment(stage.plan, stage.phones, 1, SEED)
        arguments = (str(script.file), "--format", script.format, "--speed", str(script.speed))
        return stack.process(stage.plan, "demo.feed", *arguments, environment=environment)

    def _report(self, stage: Stage, look: Look, fed_s: float) -> ReplayReport:
        rows = msgspec.json.decode((stage.phones / ROWS).read_bytes(), type=Rows)
        counts, training = look.counts, look.training
        return ReplayReport(
            file=self._script.file.name,
            format=self._script.format,
            speed=f"{self._script.speed:g}" if self._script.speed else "max",
            titles=titles(self._script.format, rows.made_up),
            rows_read=rows.read,
            rows_rejected=rows.rejected,
            rejections=rows.rejections,
            users=rows.users,
            visits=rows.visits,
            events_sent=look.sent.events,
            events_accounted=look.accounted,
            events_lost=look.sent.events - look.accounted,
            counts=dict(sorted(counts.items())),
            inferences=counts.get("inferences", 0),
            drifts=counts.get("drifts", 0),
            drift_ratio=round(counts.get("drifts", 0) / max(1, counts.get("applied", 0)), 4),
            triggers_emitted=counts.get("triggers", 0),
            samples_picked=counts.get("picked", 0),
            samples_labelled=training.labelled,
            samples_hard=training.outcomes.get("hard", 0),
            samples_to_people=training.outcomes.get("people", 0),
            teacher_agreement_ratio=round(training.agreement_ratio or 0.0, 4),
            label_cost=round(training.cost_yuan, 6),
            answer_faults={name: count for name, count in sorted(counts.items()) if name.startswith("fault")},
            model_version=look.current,
            events_per_second=round(look.sent.events / fed_s, 1),
            seconds_feeding=round(fed_s, 1),
            seconds_total=round(time.monotonic() - self._began_s, 1),
            restarts=stage.supervisor.restarts(),
            broker=cast.broker_name(stage.place),
        )


def titles(format: readers.Format, made_up: int) -> str:
    """Where do the titles come from, in words for a report?"""
    if format == "events-jsonl":
        return f"the file's own, which marks {made_up:,} of them as made up for their item"
    return f"made up: the numeric ids of {made_up:,} rows are dressed from our own catalogue, always the same way"


def _table(report: ReplayReport) -> Table:
    result = Table(title=f"Replay of {report.file} (teachers are simulated)", title_justify="left", show_header=False)
    for name, value in msgspec.to_builtins(report).items():
        if isinstance(value, str | int | float):
            result.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    for name, count in report.answer_faults.items():
        result.add_row(name, f"{count:,}")
    return result


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="intentloop replay")
