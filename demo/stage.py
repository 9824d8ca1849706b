"""What do a demo and a replay have in common? The system on its stage: set up, opened, looked at, taken down again."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from rich.console import Console

from demo import cast
from demo.display import Display
from demo.golden import store_golden
from demo.report import release_report
from demo.watch import Look, Watch
from intentloop.adapters.supervisor import ProcessSpec, RestartRule, Supervisor
from intentloop.commands import run_stack, stack, stand_ins
from intentloop.errors import IntentloopError, UnavailableError
from intentloop.training_set import TrainingSample

LOOK_EVERY_S = 0.5
INTERRUPTED = 130  # exit code after Ctrl-C

Result = TypeVar("Result")


class Stage:
    """One running system and those who look at it.

    Args:
        place: Where it runs.
        plan: Its ports and secrets.
        supervisor: Keeps its processes.
        console: Where a person looks.
    """

    def __init__(self, place: stack.Place, plan: stack.Plan, supervisor: Supervisor, console: Console) -> None:
        self.place, self.plan, self.supervisor = place, plan, supervisor
        self.display = Display(console)
        self.phones = plan.directory / "phones"
        self.watch = Watch(run_stack.redis_section(plan), self.phones, plan.directory / "blobs")

    async def set_up(self, settings: stack.Sections, golden: Sequence[TrainingSample]) -> None:
        """Services, golden set and first release: all that must be there before phones are switched on."""
        self.say(stack.describe(self.plan, self.place))
        stack.write_settings(self.plan, settings)
        await run_stack.start_services(self.plan, self.place, self.supervisor)
        await store_golden(run_stack.redis_section(self.plan), golden)
        self.say(f"golden set: {len(golden)} generated samples, half of them of the weak kind")
        self.supervisor.start(stack.process(self.plan, "trainer"))  # makes version 1 where there is none
        first = (await self.until(lambda look: bool(look.releases))).releases[-1]
        measured = release_report(first)
        weak = f", {measured.accuracy_weak.value:.1%} right on the weak kind" if measured else ""
        self.say(f"first release {first.version}: {first.artefact_bytes / 1e6:.1f} MB{weak}")

    async def open(self) -> None:
        """Start all processes and the simulated teachers, and wait until they are well."""
        names = [name for name in stack.PROCESSES if name != "trainer"]
        specs = [*stand_ins.teacher_specs(self.plan), *(stack.process(self.plan, name) for name in names)]
        health = {spec.name: stack.health_url(self.plan, spec.name) for spec in specs}
        await run_stack.start_processes(self.supervisor, specs, health)
        self.say(f"running: trainer, {', '.join(health)} (teachers are simulated)")

    def start(self, spec: ProcessSpec) -> None:
        """Start one more process."""
        self.supervisor.start(spec)

    async def until(self, is_done: Callable[[Look], bool], show: Callable[[Look], None] | None = None) -> Look:
        """Look until it is done; a Redis that is away for a moment is waited for."""
        while True:
            with suppress(UnavailableError):
                look = await self.watch.look()
                if show is not None:
                    show(look)
                if is_done(look):
                    return look
            self.display.tick()
            cast.write_processes(self.plan, self.supervisor)
            await asyncio.sleep(LOOK_EVERY_S)

    def say(self, text: str) -> None:
        """Tell a person what is done."""
        self.display.stage(text)

    def show_events(self, look: Look) -> None:
        """Move the bar of events."""
        text = f"{look.accounted:,} of {look.sent.events:,} sent are accounted for"
        self.display.bar("events", look.accounted, look.sent.events, text)

    def show_labelling(self, look: Look) -> None:
        """Move the bars of events and labels."""
        self.show_events(look)
        picked = look.counts.get("picked", 0)
        self.display.bar(
            "samples labelled", look.training.labelled, picked, f"{look.training.labelled:,} of {picked:,}"
        )


async def perform(
    play: Callable[[Stage], Awaitable[Result]], place: stack.Place, deadline_s: float, console: Console
) -> tuple[int, Result | None]:
    """Play on a stage and take everything down that was started, whatever happens.

    Returns:
        An exit code (0, 1 for a failure, 130 when interrupted) and what the play returned.
    """
    plan = stack.plan(place, cast.NAMES)
    supervisor = Supervisor(plan.directory / "logs", RestartRule())
    playing = asyncio.create_task(_play(play, Stage(place, plan, supervisor, console), deadline_s))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    try:
        return 0, await playing
    except asyncio.CancelledError:
        return INTERRUPTED, None
    except IntentloopError as error:
        console.print(f"[bold red]failed:[/bold red] {error}", highlight=False)
        return 1, None
    finally:
        console.print("stopping everything that was started …", style="dim")
        await supervisor.stop(tuple(name for name in supervisor.names() if name not in stack.SERVICES))
        await supervisor.stop()  # broker and Redis last, so that the others can finish what they hold


async def _play(play: Callable[[Stage], Awaitable[Result]], stage: Stage, deadline_s: float) -> Result:
    with stage.display:
        playing = asyncio.ensure_future(play(stage))
        watching = asyncio.create_task(stage.supervisor.watch())
        try:
            await asyncio.wait({playing, watching}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching  # raises: a process cannot be kept alive
            if not playing.done():
                raise UnavailableError(f"did not end within {deadline_s:g} s; logs are in {stage.plan.directory}")
            return await playing
        finally:
            for task in (playing, watching):
                task.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)
            await stage.watch.close()
