"""Direct the demo from nothing to a better model: `intentloop demo`.

services → golden set → first release → processes → phones → hard samples → retrain → release → phones run it → drain →
account → report. The director starts processes and looks; what is shown happens among them. Any of them may be killed.
"""

import asyncio
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from demo import account, cast
from demo.display import Display
from demo.golden import golden_samples, store_golden
from demo.ground import ask_to_finish
from demo.report import DemoReport, failures, release_report, table, write
from demo.watch import Look, Watch
from intentloop.adapters.supervisor import RestartRule, Supervisor
from intentloop.commands import run_stack, stack
from intentloop.errors import IntentloopError, UnavailableError

LOOK_EVERY_S = 0.5
TRAINING_STEPS = 11


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What a demo is asked for."""

    phones: int
    seed: int
    golden: int
    hard_new: int
    deadline_s: float
    report: Path


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
    place = cast.place(directory or Path("var") / name, broker, redis, name)
    script = Script(phones=phones, seed=seed, golden=golden, hard_new=hard_new, deadline_s=deadline_s, report=report)
    raise SystemExit(asyncio.run(_guarded(script, place, Console())))


async def _guarded(script: Script, place: stack.Place, console: Console) -> int:
    """Run, and end everything that was started, whatever happens; returns the exit code."""
    plan = stack.plan(place, cast.NAMES)
    supervisor = Supervisor(plan.directory / "logs", RestartRule())
    show = asyncio.create_task(_show(script, place, plan, supervisor, console))
    _stop_on_signals(show)
    code = 130
    with suppress(asyncio.CancelledError):
        code = await show
    console.print("stopping everything that was started …", style="dim")
    await supervisor.stop()
    return code


def _stop_on_signals(task: "asyncio.Task[int]") -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _show(script: Script, place: stack.Place, plan: stack.Plan, supervisor: Supervisor, console: Console) -> int:
    director = Director(script, place, plan, supervisor, console)
    playing, watching = asyncio.create_task(director.play()), asyncio.create_task(supervisor.watch())
    try:
        await asyncio.wait({playing, watching}, timeout=script.deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # a process that cannot be kept alive
        if not playing.done():
            raise UnavailableError(f"the demo did not end within {script.deadline_s:g} s; logs are in {plan.directory}")
        report = await playing
    except IntentloopError as error:
        console.print(f"[bold red]failed:[/bold red] {error}", highlight=False)
        return 1
    finally:
        for task in (playing, watching):
            task.cancel()
        await asyncio.gather(playing, watching, return_exceptions=True)
    return _conclude(report, script, plan, console)


def _conclude(report: DemoReport, script: Script, plan: stack.Plan, console: Console) -> int:
    write(report, script.report)
    console.print(table(report))
    found = failures(report)
    for failure in found:
        console.print(f"[bold red]failed:[/bold red] {failure}", highlight=False)
    console.print(f"report: {script.report}    logs: {plan.directory / 'logs'}", highlight=False)
    return 1 if found else 0


class Director:
    """Leads one run. Its stages are the lines of `play`."""

    def __init__(
        self, script: Script, place: stack.Place, plan: stack.Plan, supervisor: Supervisor, console: Console
    ) -> None:
        self._script, self._place, self._plan, self._supervisor = script, place, plan, supervisor
        self._began_s = time.monotonic()
        self._display = Display(console)
        self._phones = plan.directory / "phones"
        self._watch = Watch(run_stack.redis_section(plan), self._phones, plan.directory / "blobs")
        self._reason = ""

    async def play(self) -> DemoReport:
        """Everything, in order."""
        with self._display:
            try:
                await self._set_up()
                await self._open()
                look = await self._until(lambda look: bool(look.retrain_reason), self._show_collecting)
                self._reason = look.retrain_reason
                self._say(f"retrain requested: {self._reason}")
                look = await self._until(lambda look: len(look.releases) > 1, self._show_training)
                self._say(f"released {look.current}: {look.releases[-1].reason}")
                await self._until(self._all_run_the_new_one, self._show_switching)
                self._say(f"phones run {look.current}")
                return await self._drain()
            finally:
                await self._watch.close()

    async def _set_up(self) -> None:
        """Services, golden set and first release: all that must be there before phones are switched on."""
        self._say(cast.describe(self._plan, self._place))
        stack.write_settings(self._plan, cast.settings(self._plan, self._script.hard_new))
        await run_stack.start_services(self._plan, self._place, self._supervisor)
        samples = golden_samples(self._script.seed + 1000, self._script.golden, self._script.golden)
        await store_golden(run_stack.redis_section(self._plan), samples)
        self._say(f"golden set: {len(samples)} generated samples, half of them of the weak kind")
        await self._supervisor.run(stack.process(self._plan, "trainer.first_release"))
        first = (await self._watch.look()).releases[-1]
        measured = release_report(first)
        weak = f", {measured.accuracy_weak.value:.1%} right on the weak kind" if measured else ""
        self._say(f"first release {first.version}: {first.artefact_bytes / 1e6:.1f} MB{weak}")

    async def _open(self) -> None:
        """Start all processes, the simulated teachers, and then the phones."""
        specs = [*cast.teachers(self._plan), *(stack.process(self._plan, name) for name in stack.PROCESSES)]
        health = {spec.name: cast.health_url(self._plan, spec.name) for spec in specs}
        await run_stack.start_processes(self._supervisor, specs, health)
        self._say(f"running: {', '.join(health)} (teachers are simulated)")
        spec = cast.phones(self._plan, self._phones, self._script.phones, self._script.seed)
        await run_stack.start_processes(self._supervisor, [spec], {})
        self._say(f"{self._script.phones} simulated phones run the released model on what their shoppers do")

    async def _until(self, is_done: Callable[[Look], bool], show: Callable[[Look], None]) -> Look:
        """Look until it is done; a Redis that is away for a moment is waited for."""
        while True:
            with suppress(UnavailableError):
                look = await self._watch.look()
                show(look)
                if is_done(look):
                    return look
            self._display.tick()
            cast.write_processes(self._plan, self._supervisor)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _drain(self) -> DemoReport:
        """Send the shoppers home, wait until every event is accounted for and every sample labelled."""
        ask_to_finish(self._phones)
        await self._until(lambda look: look.phones.finished and not look.sent.waiting, self._show_events)
        self._say("phones are quiet; counting")
        look = await account.settle(self._watch, self._show_events)
        facts = account.RunFacts(
            reason=self._reason,
            restarts=self._supervisor.restarts(),
            broker=cast.broker_name(self._place),
            phones=self._script.phones,
            seconds=time.monotonic() - self._began_s,
        )
        return account.demo_report(look, facts)

    def _all_run_the_new_one(self, look: Look) -> bool:
        """All phones but those whose shoppers have not looked at them since."""
        running = look.phones.phones_by_version
        return running.get(look.current, 0) >= 0.95 * max(1, sum(running.values()))

    def _say(self, text: str) -> None:
        self._display.stage(text)

    def _show_events(self, look: Look) -> None:
        text = f"{look.accounted:,} of {look.sent.events:,} sent are accounted for"
        self._display.bar("events", look.accounted, look.sent.events, text)

    def _show_collecting(self, look: Look) -> None:
        self._show_events(look)
        picked = look.counts.get("picked", 0)
        text = f"{look.training.labelled:,} of {picked:,} picked"
        self._display.bar("samples labelled", look.training.labelled, picked, text)
        hard = f"{look.training.hard_new:,} of {self._script.hard_new:,}"
        self._display.bar("new hard samples", look.training.hard_new, self._script.hard_new, hard)

    def _show_training(self, look: Look) -> None:
        self._show_collecting(look)
        done = cast.finished_steps(self._plan)
        text = f"{done[-1]} done" if done else "starting"
        self._display.bar("model line", len(done), TRAINING_STEPS, text)

    def _show_switching(self, look: Look) -> None:
        self._show_events(look)
        running = look.phones.phones_by_version.get(look.current, 0)
        self._display.bar(f"phones on {look.current}", running, self._script.phones, f"{running}")


if __name__ == "__main__":
    typer.run(main)
