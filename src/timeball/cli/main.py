"""`timeball`: the tree of commands. Everything heavy is imported by the command that needs it, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from timeball.cli import checking, planning, running, serving
from timeball.cli.database import database
from timeball.cli.dead import dead
from timeball.cli.doctor import show_doctor
from timeball.cli.exits import INTERRUPTED, OK, leave, leave_misused
from timeball.cli.forecast import show_forecast
from timeball.cli.keys import keys
from timeball.cli.queues import queues
from timeball.cli.syncing import jobs
from timeball.cli.tail import tail
from timeball.cli.templates import templates
from timeball.cli.top import top
from timeball.cli.transfer import runs
from timeball.cli.tree import command, with_examples
from timeball.cli.why import show_why
from timeball.cli.workers import workers
from timeball.errors import TimeballError
from timeball.version import __version__

app = typer.Typer(
    name="timeball",
    help=with_examples(
        "Jobs at their exact time, on one machine or many.",
        [
            "timeball up                                 everything on this machine",
            "timeball up app:tb                          the same, with the handlers of your program",
            "timeball run test.echo hello=world --wait   something to run, now",
            "timeball jobs                               what there is to run, and when",
            "timeball runs --status dead                 what went wrong",
        ],
    ),
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"timeball {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Jobs at their exact time, on one machine or many."""


for topic in (serving, running, checking, planning):
    topic.add_to(app)
command(app, "why", "timeball why nightly", "timeball why RUN")(show_why)
command(app, "doctor", "timeball doctor", "timeball doctor --problems")(show_doctor)
command(app, "forecast", "timeball forecast", "timeball forecast --queue mail --tz Europe/Berlin")(show_forecast)
command(app, "tail", "timeball tail --for 1s", "timeball tail --queue mail --types execution.dead --for 1s")(tail)
command(app, "top", "timeball top --once")(top)
for noun in (jobs, runs, dead, queues, workers, templates, keys, database):
    app.add_typer(noun)


def main() -> None:
    """The entry point."""
    # The program may lie in the folder one is in.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code. Whatever is wrong is told in three lines, without a stack."""
    try:
        ended = app(arguments, prog_name="timeball", standalone_mode=False)
    except TimeballError as error:
        return leave(error)
    except TyperException as error:
        return leave_misused(error)
    except typer.Abort:
        return INTERRUPTED
    # What a command returns is nobody's business; how it ended is.
    return ended if isinstance(ended, int) else OK
