"""Direct the demo from nothing to a better model: `intentloop demo`.

services → golden set → first release → processes → phones → hard samples → retrain → release → phones run it → drain →
account → report. The director starts processes and looks; what is shown happens among them. Any of them may be killed.
"""

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from demo import account, cast
from demo.golden import golden_samples
from demo.phones_state import ask_to_finish
from demo.report import DemoReport, failures, table, write
from demo.stage import Stage, perform
from demo.watch import Look
from intentloop.commands import stack

TRAINING_STEPS = 11


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a demo is asked for."""

    phones: int
    seed: int
    golden: int
    hard_new: int


def main(  # noqa: PLR0913  (a command line)
    phones: Annotated[int, typer.Option(help="how many simulated phones")] = 200,
    seed: int = 7,
    golden: Annotated[int, typer.Option(help="golden samples of each kind")] = 300,
    hard_new: Annotated[int, typer.Option(help="new hard samples that are enough to train")] = 150,
    broker: Annotated[str, typer.Option(help="host:port of a Kafka that is there; empty: an embedded one")] = "",
    redis: Annotated[str, typer.Option(help="URL of a Redis that is there; empty: an embedded one")] = "",
    directory: Annotated[Path | None, typer.Option(help="where everything is kept; default var/demo-<id>")] = None,
    report: Annotated[Path, typer.Option(help="where the result is written")] = Path("var/demo-report.json"),
    deadline_s: Annotated[float, typer.Option(help="give up after so many seconds")] = 900.0,
) -> None:
    """Run the whole loop: phones' logs become a better model that the same phones then run."""
    name = f"demo-{secrets.token_hex(3)}"
    place = stack.choose_place(directory or Path("var") / name, broker, redis, name)
    director = Director(Script(phones=phones, seed=seed, golden=golden, hard_new=hard_new))
    console = Console()
    code, result = asyncio.run(perform(director.play, place, deadline_s, console))
    if result is not None:
        code = conclude(result, report, console)
        console.print(f"report: {report}    logs: {place.directory / 'logs'}", highlight=False)
    raise SystemExit(code)


def conclude(result: DemoReport, path: Path, console: Console) -> int:
    """Write and show the result; 1 when it is not what the demo promises."""
    write(result, path)
    console.print(table(result))
    found = failures(result)
    for failure in found:
        console.print(f"[bold red]failed:[/bold red] {failure}", highlight=False)
    return 1 if found else 0


class Director:
    """Leads one run; its stages are the lines of `play`.

    Args:
        script: What is asked for.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._began_s = time.monotonic()

    async def play(self, stage: Stage) -> DemoReport:
        """Everything, in order."""
        script = self._script
        samples = golden_samples(script.seed + 1000, script.golden, script.golden)
        await stage.set_up(cast.settings(stage.plan, script.hard_new), samples)
        await stage.open()
        stage.start(cast.phones(stage.plan, stage.phones, script.phones, script.seed))
        stage.say(f"{script.phones} simulated phones run the released model on what their shoppers do")
        look = await stage.until(lambda look: bool(look.retrain_reason), lambda look: self._show_hard(stage, look))
        reason = look.retrain_reason
        stage.say(f"retrain requested: {reason}")
        look = await stage.until(lambda look: len(look.releases) > 1, lambda look: self._show_training(stage, look))
        stage.say(f"released {look.current}: {look.releases[-1].reason}")
        await stage.until(all_run_the_new_one, lambda look: self._show_switching(stage, look))
        stage.say(f"phones run {look.current}")
        ask_to_finish(stage.phones)
        await stage.until(lambda look: look.phones.finished and not look.sent.waiting, stage.show_events)
        stage.say("phones are quiet; counting")
        look = await account.settle(stage.watch, stage.show_labelling, account.has_labelled, account.QUIET_S)
        return account.demo_report(look, self._facts(stage, reason))

    def _facts(self, stage: Stage, reason: str) -> account.RunFacts:
        return account.RunFacts(
            reason=reason,
            restarts=stage.supervisor.restarts(),
            broker=cast.broker_name(stage.place),
            phones=self._script.phones,
            seconds=time.monotonic() - self._began_s,
        )

    def _show_hard(self, stage: Stage, look: Look) -> None:
        stage.show_labelling(look)
        found, enough = look.training.hard_new, self._script.hard_new
        stage.display.bar("new hard samples", found, enough, f"{found:,} of {enough:,}")

    def _show_training(self, stage: Stage, look: Look) -> None:
        stage.show_labelling(look)
        done = cast.finished_steps(stage.plan)
        stage.display.bar("model line", len(done), TRAINING_STEPS, f"{done[-1]} done" if done else "starting")

    def _show_switching(self, stage: Stage, look: Look) -> None:
        stage.show_labelling(look)
        running = look.phones.phones_by_version.get(look.current, 0)
        stage.display.bar(f"phones on {look.current}", running, self._script.phones, f"{running}")


def all_run_the_new_one(look: Look) -> bool:
    """Do all phones run the current release, but for a few whose shoppers have not come back yet?"""
    running = look.phones.phones_by_version
    return running.get(look.current, 0) >= 0.95 * max(1, sum(running.values()))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name="intentloop demo")
