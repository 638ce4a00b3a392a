"""The entry point of `timeball`, and the table of its commands, which are imported when they are called."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from timeball.cli.errors import INTERRUPTED, OK, report_error, report_usage_error
from timeball.cli.tree import LazyCommand, LazyGroup, with_examples
from timeball.errors import TimeballError
from timeball.version import __version__


def main() -> None:
    """Run the command of this process, and exit."""
    replace_unencodable()
    # A program such as `app:tb` is looked for in the current folder.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run(sys.argv[1:]))


# For an encoding that lacks a character that we print; any other one becomes a question mark.
_REPLACEMENTS = dict(zip("─│├└┴╳►→●•·–«»✓✗µ▁▂▃▄▅▆▇█", "-||++X>>**.-<>+xu__--==##", strict=True)) | {
    "…": "...",
    "±": "+-",
}


def replace_unencodable() -> None:
    """Replace characters that the encoding of standard output lacks, instead of failing."""
    codecs.register_error("timeball", _replace)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="timeball")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_REPLACEMENTS.get(char, "?") for char in error.object[error.start : error.end]), error.end


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; an error is explained in three lines, without a traceback."""
    try:
        result = app(arguments, prog_name="timeball", standalone_mode=False)
    except TyperException as error:
        return report_usage_error(error, arguments)
    except typer.Abort:
        return INTERRUPTED
    except TimeballError as error:
        return report_error(error, _command_path(arguments))
    # Typer returns the code of typer.Exit, or else what the function of the command returns.
    return result if isinstance(result, int) else OK


def _command_path(arguments: Sequence[str]) -> str:
    """The command in what was typed, without its options and arguments."""
    command: Any = typer.main.get_command(app)
    path = ["timeball"]
    for word in arguments:
        child = getattr(command, "commands", {}).get(word)
        if child is None:
            break
        path.append(word)
        command = child.load() if isinstance(child, LazyCommand) else child
    return " ".join(path)


class _RootGroup(LazyGroup):
    """All commands in the order of the help: name, module with attribute, summary."""

    lazy_commands = (
        LazyCommand(
            "up",
            "serve:commands",
            "Run everything on this machine.",
        ),
        LazyCommand("api", "serve:commands", "Run the HTTP API and the dashboard alone."),
        LazyCommand("scheduler", "serve:commands", "Run a scheduler."),
        LazyCommand("worker", "serve:commands", "Run a worker."),
        LazyCommand(
            "watch",
            "watch:commands",
            "Watch an installation from outside, and tell when it is dead.",
        ),
        LazyCommand(
            "run",
            "runs:commands",
            "Run a handler now, later, or on a schedule.",
        ),
        LazyCommand(
            "next",
            "schedules:commands",
            "Show when a schedule or a job fires, with clock changes, calendars and freezes marked.",
        ),
        LazyCommand(
            "ledger",
            "ledger:commands",
            "Show what became of every occurrence of a job.",
        ),
        LazyCommand(
            "verify",
            "database:commands",
            "Check every promise over the whole history in the database.",
        ),
        LazyCommand("check", "database:commands", "Check settings, program and database without starting anything."),
        LazyCommand(
            "alive",
            "database:commands",
            "Check whether a process of this machine is alive.",
        ),
        LazyCommand(
            "plan",
            "schedules:commands",
            "Show what `timeball apply` would change.",
        ),
        LazyCommand(
            "apply",
            "schedules:commands",
            "Create or update jobs from the schedules of a program.",
        ),
        LazyCommand(
            "why",
            "monitor:commands",
            "Explain why a job, execution or group waits; with --at, what became of a job at an instant, or which gates will bind it.",
        ),
        LazyCommand(
            "doctor",
            "monitor:commands",
            "Check the whole installation, with advice for each problem.",
        ),
        LazyCommand(
            "forecast",
            "schedules:commands",
            "Show how many slots each hour of the next days needs.",
        ),
        LazyCommand(
            "tail",
            "monitor:commands",
            "Follow events as they happen.",
        ),
        LazyCommand(
            "top",
            "monitor:commands",
            "Show what is running, queued, late and dead, live.",
        ),
        LazyCommand(
            "freeze",
            "freezes:commands",
            "Let nothing of a queue, a tag, a job or of everything start until an instant.",
        ),
        LazyCommand("freezes", "freezes:commands", "List the freezes that hold now or are to come."),
        LazyCommand("unfreeze", "freezes:commands", "End a freeze now: what it held back goes on."),
        LazyCommand("jobs", "jobs:jobs", "Jobs: what to run and when."),
        LazyCommand("runs", "runs:runs", "Runs: executions of jobs, past, present and waiting."),
        LazyCommand(
            "groups", "groups:groups", "Groups: parts that run side by side, and what follows when all have ended."
        ),
        LazyCommand("dead", "runs:dead", "Dead letters: executions that ended dead."),
        LazyCommand("alerts", "alerts:alerts", "Alerts: facts that a person should act upon, until they are gone."),
        LazyCommand("queues", "workers:queues", "Queues: what waits, what runs, what is paused."),
        LazyCommand("workers", "workers:workers", "Workers and schedulers that are alive."),
        LazyCommand("handlers", "workers:handlers", "Handlers: what can be run, and which payload each takes."),
        LazyCommand("templates", "templates:templates", "Templates: patterns to create jobs from."),
        LazyCommand("calendars", "calendars:calendars", "Calendars: days that jobs skip, or run on alone."),
        LazyCommand("webhooks", "webhooks:webhooks", "Webhooks: addresses that events are sent to."),
        LazyCommand("channels", "channels:channels", "Channels: where alerts go."),
        LazyCommand("alert-routes", "channels:alert_routes", "Alert routes: which alerts go to which channels."),
        LazyCommand("keys", "keys:keys", "API keys: who may call the API."),
        LazyCommand("db", "database:database", "The database and its schema."),
    )


app = typer.Typer(
    name="timeball",
    cls=_RootGroup,
    help=with_examples(
        "Jobs at their exact time, on one machine or many.",
        [
            "timeball up                                 run everything on this machine",
            "timeball up app:tb                          the same, with your handlers",
            "timeball run test.echo hello=world --wait   run a handler now",
            "timeball jobs                               list the jobs, and when they run",
            "timeball runs --status dead                 list what went wrong",
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
