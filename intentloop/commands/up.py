"""Run the system until it is stopped: the same processes as in the demo, without phones."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from intentloop.adapters.supervisor import ProcessSpec, RestartRule, Supervisor
from intentloop.commands import run_stack, stack, stand_ins
from intentloop.errors import IntentloopError


def up(
    broker: Annotated[str, typer.Option(help="host:port of a Kafka that is there; empty: an embedded one")] = "",
    redis: Annotated[str, typer.Option(help="URL of a Redis that is there; empty: an embedded one")] = "",
    prefix: Annotated[str, typer.Option(help="before every topic and key; empty: as the settings say")] = "",
    directory: Annotated[Path, typer.Option(help="where logs, keys and releases are kept")] = Path("var/up"),
) -> None:
    """Start gateway, streams, workers and trainer, and keep them running until Ctrl-C."""
    console = Console()
    place = stack.choose_place(directory, broker, redis, prefix)
    plan = stack.plan(place, (*stack.PROCESSES, *stand_ins.NAMES))
    supervisor = Supervisor(plan.directory / "logs", RestartRule())
    raise SystemExit(asyncio.run(_serve(place, plan, supervisor, console)))


async def _serve(place: stack.Place, plan: stack.Plan, supervisor: Supervisor, console: Console) -> int:
    serving = asyncio.create_task(_keep_up(place, plan, supervisor, console))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await serving
        return 0
    except IntentloopError as error:
        console.print(f"[bold red]failed:[/bold red] {error}", highlight=False, soft_wrap=True)
        return 1
    finally:
        console.print("stopping everything that was started …", style="dim")
        await supervisor.stop(tuple(name for name in supervisor.names() if name not in stack.SERVICES))
        await supervisor.stop()  # broker and Redis last, so that the others can finish what they hold


async def _keep_up(place: stack.Place, plan: stack.Plan, supervisor: Supervisor, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say(stack.describe(plan, place))
    simulated = not stack.has_teachers()
    stack.write_settings(plan, stand_ins.teacher_settings(plan) if simulated else {})
    watching = asyncio.create_task(_start_and_watch(place, plan, supervisor, simulated))
    await asyncio.wait({watching}, timeout=0.1)
    if simulated:
        say("no teachers are configured: two SIMULATED teachers label, and a generated golden set judges")
    say(f"phones send to {plan.gateway_url}, device token in {plan.directory / 'secrets.json'}")
    say(f"intentloop status --settings {plan.settings_file}")
    await watching


async def _start_and_watch(place: stack.Place, plan: stack.Plan, supervisor: Supervisor, simulated: bool) -> None:
    await run_stack.start_services(plan, place, supervisor)
    if simulated:
        await supervisor.run(stack.process(plan, "demo.golden"))
    specs: Sequence[ProcessSpec] = [
        *(stand_ins.teacher_specs(plan) if simulated else ()),
        *(stack.process(plan, name) for name in stack.PROCESSES),
    ]
    watching = asyncio.create_task(supervisor.watch())
    health = {spec.name: stack.health_url(plan, spec.name) for spec in specs}
    starting = asyncio.create_task(run_stack.start_processes(supervisor, specs, health))
    try:
        await asyncio.wait({watching, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            await starting
        await watching
    finally:
        for task in (watching, starting):
            task.cancel()
        await asyncio.gather(watching, starting, return_exceptions=True)
