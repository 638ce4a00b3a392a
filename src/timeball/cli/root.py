"""The tree of commands. A command is imported when it is asked for, and imports itself what is heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from timeball.cli.branches import Branch, Tree, with_examples
from timeball.cli.exits import INTERRUPTED, OK, leave_misused
from timeball.version import __version__


class _Root(Tree):
    """All commands, in the order of the help: what they are called, where they are, and what they do."""

    branches = (
        Branch(
            "up",
            "serving:commands",
            "Run everything on this machine: API, dashboard, scheduler, worker and, without a database of your own, "
            "the embedded PostgreSQL.",
        ),
        Branch("api", "serving:commands", "Run the HTTP API and the dashboard alone."),
        Branch("scheduler", "serving:commands", "Run a scheduler."),
        Branch("worker", "serving:commands", "Run a worker."),
        Branch(
            "run",
            "running:commands",
            "Run a handler: now, once later (--in, --at), or by a schedule (--cron, --every).",
        ),
        Branch("next", "checking:commands", "Show when a schedule would fire, with the clock changes marked."),
        Branch(
            "verify",
            "checking:commands",
            "Read the database and check every promise over its whole history; exit code 1 if one is broken.",
        ),
        Branch("check", "checking:commands", "Check settings, program and database without starting anything."),
        Branch("alive", "checking:commands", "Ask whether what should run on this machine does; exit code 1 if not."),
        Branch(
            "plan",
            "planning:commands",
            "Show what the schedules declared in a program would change, with fire times before and after; changes nothing.",
        ),
        Branch(
            "apply",
            "planning:commands",
            "Make the schedules declared in a program jobs, or bring those of the same names up to date.",
        ),
        Branch(
            "why",
            "why:commands",
            "Say why something does not run: what stands in its way, and what to do about it.",
        ),
        Branch("doctor", "doctor:commands", "Look at everything, and say what to type."),
        Branch(
            "forecast",
            "forecast:commands",
            "Show how many slots each hour of the next days needs, which jobs collide, and how good yesterday's forecast was.",
        ),
        Branch(
            "tail",
            "tail:commands",
            "Follow what happens: starts with their lateness, ends, failed tries, what operators do.",
        ),
        Branch(
            "top",
            "top:commands",
            "Show what runs, waits, is late and is dead, with queues, workers and the longest running; live on a terminal.",
        ),
        Branch("jobs", "syncing:jobs", "Jobs: what to run and when."),
        Branch("runs", "transfer:runs", "Runs: executions of jobs, past, present and waiting."),
        Branch(
            "dead", "dead:dead", "Dead letters: executions that ended dead, until somebody retries or discards them."
        ),
        Branch("queues", "queues:queues", "Queues: what waits, what runs, what is held back."),
        Branch("workers", "workers:workers", "Workers and schedulers: who is alive, and with what."),
        Branch("handlers", "handlers:handlers", "Handlers: what can be run, and what each takes."),
        Branch("templates", "templates:templates", "Templates: jobs to make more of."),
        Branch("keys", "keys:keys", "API keys: who may call."),
        Branch("db", "database:database", "The database: its schema."),
    )


app = typer.Typer(
    name="timeball",
    cls=_Root,
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
        return leave_misused(error, arguments)
    except typer.Abort:
        return INTERRUPTED
    # What a command returns is nobody's business; how it ended is.
    return ended if isinstance(ended, int) else OK
