"""The entry point of `timeball`, and the table of its commands, which are imported when they are used."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from timeball.cli.errors import INTERRUPTED, OK, report_error, report_usage_error
from timeball.cli.tree import LazyCommand, LazyGroup, with_examples
from timeball.errors import TimeballError
from timeball.version import __version__


def main() -> None:
    """The entry point."""
    replace_unencodable()
    # The program may lie in the folder one is in.
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(run(sys.argv[1:]))


# What tables, charts and sentences are drawn with, for an encoding that lacks it; any other character becomes a question mark.
_REPLACEMENTS = dict(zip("─│├└┴╳►→●•·–«»✓✗µ▁▂▃▄▅▆▇█", "-||++X>>**.-<>+xu__--==##", strict=True)) | {
    "…": "...",
    "±": "+-",
}


def replace_unencodable() -> None:
    """Let what is printed be legible, and no error, where the encoding of standard output lacks a character of it."""
    codecs.register_error("timeball", _replace)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="timeball")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_REPLACEMENTS.get(char, "?") for char in error.object[error.start : error.end]), error.end


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit code. Whatever is wrong is told in three lines, without a stack."""
    try:
        return run_command(arguments)
    except TimeballError as error:
        return report_error(error)


# The tree of commands. A command is imported when it is asked for, and imports itself what is heavy.


class _RootGroup(LazyGroup):
    """All commands, in the order of the help: what they are called, where they are, and what they do."""

    lazy_commands = (
        LazyCommand(
            "up",
            "serve:commands",
            "Run everything on this machine: API, dashboard, scheduler, worker and, without a database of your own, "
            "the embedded PostgreSQL.",
        ),
        LazyCommand("api", "serve:commands", "Run the HTTP API and the dashboard alone."),
        LazyCommand("scheduler", "serve:commands", "Run a scheduler."),
        LazyCommand("worker", "serve:commands", "Run a worker."),
        LazyCommand(
            "run",
            "run:commands",
            "Run a handler: now, once later (--in, --at), or by a schedule (--cron, --every).",
        ),
        LazyCommand("next", "schedules:commands", "Show when a schedule would fire, with the clock changes marked."),
        LazyCommand(
            "verify",
            "database:commands",
            "Read the database and check every promise over its whole history; exit code 1 if one is broken.",
        ),
        LazyCommand("check", "database:commands", "Check settings, program and database without starting anything."),
        LazyCommand(
            "alive", "database:commands", "Ask whether what should run on this machine does; exit code 1 if not."
        ),
        LazyCommand(
            "plan",
            "schedules:commands",
            "Show what the schedules declared in a program would change, with fire times before and after; changes nothing.",
        ),
        LazyCommand(
            "apply",
            "schedules:commands",
            "Make the schedules declared in a program jobs, or bring those of the same names up to date.",
        ),
        LazyCommand(
            "why",
            "monitor:commands",
            "Say why something does not run: what stands in its way, and what to do about it.",
        ),
        LazyCommand("doctor", "monitor:commands", "Look at everything, and say what to type."),
        LazyCommand(
            "forecast",
            "schedules:commands",
            "Show how many slots each hour of the next days needs, which jobs collide, and how good yesterday's forecast was.",
        ),
        LazyCommand(
            "tail",
            "monitor:commands",
            "Follow what happens: starts with their lateness, ends, failed tries, what operators do.",
        ),
        LazyCommand(
            "top",
            "monitor:commands",
            "Show what runs, waits, is late and is dead, with queues, workers and the longest running; live on a terminal.",
        ),
        LazyCommand("jobs", "jobs:jobs", "Jobs: what to run and when."),
        LazyCommand("runs", "runs:runs", "Runs: executions of jobs, past, present and waiting."),
        LazyCommand(
            "dead", "runs:dead", "Dead letters: executions that ended dead, until somebody retries or discards them."
        ),
        LazyCommand("queues", "queues:queues", "Queues: what waits, what runs, what is held back."),
        LazyCommand("workers", "workers:workers", "Workers and schedulers: who is alive, and with what."),
        LazyCommand("handlers", "workers:handlers", "Handlers: what can be run, and what each takes."),
        LazyCommand("templates", "templates:templates", "Templates: jobs to make more of."),
        LazyCommand("keys", "keys:keys", "API keys: who may call."),
        LazyCommand("db", "database:database", "The database: its schema."),
    )


app = typer.Typer(
    name="timeball",
    cls=_RootGroup,
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


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; its exit code. TimeballError for the caller to explain; what was typed wrong is explained here."""
    try:
        ended = app(arguments, prog_name="timeball", standalone_mode=False)
    except TyperException as error:
        return report_usage_error(error, arguments)
    except typer.Abort:
        return INTERRUPTED
    # What a command returns is nobody's business; how it ended is.
    return ended if isinstance(ended, int) else OK
