"""What can a person ask of the system? `intentloop demo | replay | report | ablate | up | status | …`."""

import os
import sys

import typer

from intentloop.commands import annotate, calibrate, status, topics, up

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The loop that lets a phone's model improve itself.")

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_PASS_ON, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Run the whole loop with simulated phones and teachers; ends with a table and var/demo-report.json."""
    _become("demo.direct", context.args)


@app.command(context_settings=_PASS_ON, add_help_option=False)
def replay(context: typer.Context) -> None:
    """Feed real data through the running system instead of simulated shoppers."""
    _become("demo.replay", context.args)


@app.command(context_settings=_PASS_ON, add_help_option=False)
def report(context: typer.Context) -> None:
    """Compare a run's model with releases and with what phones report; report.html in the run's directory."""
    _become("trainer.report", context.args)


@app.command(context_settings=_PASS_ON, add_help_option=False)
def ablate(context: typer.Context) -> None:
    """Say what each part of the prompt is worth: accuracy, tokens and time without it."""
    _become("trainer.ablate", context.args)


app.command("up")(up.up)
app.command("status")(status.status)
app.command("topics")(topics.topics)
app.command("annotate")(annotate.annotate)
app.add_typer(calibrate.app, name="calibrate")


def main() -> None:
    """The command line."""
    app()


def _become(module: str, arguments: list[str]) -> None:
    """Go on as another program, so that its options are defined once and signals reach it directly."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
