"""`timeball`: the tree of commands. Everything heavy is imported by the command that needs it, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from timeball.cli.doctor import show_doctor
from timeball.cli.exits import leave
from timeball.cli.forecast import show_forecast
from timeball.cli.queues import queues
from timeball.cli.tree import command
from timeball.cli.why import show_why
from timeball.errors import TimeballError
from timeball.version import __version__

app = typer.Typer(
    name="timeball",
    help="Jobs at their exact time, on one machine or many.\n\n"
    "Examples:\n\n"
    "  timeball up                      everything on this machine\n\n"
    "  timeball up app:tb               the same, with the handlers of your program\n\n"
    "  timeball worker app:tb --slots 50 --queue mail\n\n"
    "  timeball verify                  prove that nothing was lost",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
database = typer.Typer(name="db", help="The database: its schema.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(database)
keys = typer.Typer(name="keys", help="API keys: who may call.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(keys)
for noun in (queues,):
    app.add_typer(noun)
command(app, "why", "timeball why nightly-report", "timeball why exe_01JCV3V1KC8M2T4QZ5R7N9X0AB")(show_why)
command(app, "doctor", "timeball doctor", "timeball doctor --problems")(show_doctor)
command(app, "forecast", "timeball forecast", "timeball forecast --queue batch --tz Europe/Berlin")(show_forecast)

AppReference = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="Where your handlers are: module:attribute, such as app:tb.")
]
DatabaseOf = Annotated[
    str | None, typer.Argument(metavar="[APP]", help="Your program, if it names its own database: module:attribute.")
]
Slots = Annotated[int | None, typer.Option(help="How many executions run together.", min=1)]
Queues = Annotated[list[str] | None, typer.Option("--queue", help="A queue to serve; repeat for more. None means all.")]
Processes = Annotated[int, typer.Option(help="How many worker processes to run.", min=1, max=256)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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


@app.command()
def up(reference: AppReference = None, slots: Slots = None, queue: Queues = None) -> None:
    """Run everything on this machine: API, scheduler, worker and, without a database of your own, the embedded PostgreSQL."""
    from timeball.cli.nodes import run_nodes

    run_nodes(reference, slots=slots, queues=queue, with_scheduler=True, with_worker=True, is_up=True)


@app.command()
def api(
    host: Annotated[str | None, typer.Option(help="The address to listen on; TIMEBALL_HOST, or 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; TIMEBALL_PORT, or 8080.", min=0, max=65535)] = None,
) -> None:
    """Run the HTTP API alone. Any number may run."""
    from timeball.cli.api import run_api

    run_api(host, port)


@app.command()
def scheduler() -> None:
    """Run a scheduler. Any number may run; they share the schedule among themselves."""
    from timeball.cli.nodes import run_nodes

    run_nodes(None, with_scheduler=True)


@app.command()
def worker(reference: AppReference = None, slots: Slots = None, queue: Queues = None, processes: Processes = 1) -> None:
    """Run a worker. Any number may run, on any number of machines."""
    from timeball.cli.nodes import run_nodes, run_processes

    if processes > 1:
        run_processes(processes)
    run_nodes(reference, slots=slots, queues=queue, with_worker=True)


@app.command()
def verify(reference: DatabaseOf = None, as_json: AsJson = False) -> None:
    """Read the database and check every promise over its whole history; exit code 1 if one is broken."""
    from timeball.cli.database import run_verify

    raise typer.Exit(run_verify(reference, as_json=as_json))


@app.command()
def check(reference: AppReference = None) -> None:
    """Check settings, program and database without starting anything."""
    from timeball.cli.database import run_check

    raise typer.Exit(run_check(reference))


@app.command()
def alive(
    kind: Annotated[str | None, typer.Argument(metavar="[api|scheduler|worker]", help="What; none means any.")] = None,
) -> None:
    """Ask whether what should run on this machine does; exit code 1 if not. For the health checks of containers."""
    from timeball.cli.alive import is_alive

    raise typer.Exit(0 if is_alive(kind) else 1)


@app.command("next")
def next_times(
    schedule: Annotated[str, typer.Argument(help='A cron expression, such as "30 2 * * *".')],
    tz: Annotated[str, typer.Option("--tz", help="An IANA time zone.")] = "UTC",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
    on_gap: Annotated[str, typer.Option(help="When the clock skips the time: next_valid or skip.")] = "next_valid",
    on_repeat: Annotated[str, typer.Option(help="When it happens twice: first, second or both.")] = "first",
    after: Annotated[str | None, typer.Option(help="From this instant on (ISO 8601); none means now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show when a schedule would fire, with the clock changes marked. Needs no server."""
    from timeball.cli.schedules import show_next

    show_next(schedule, tz, count, on_gap=on_gap, on_repeat=on_repeat, after=after, as_json=as_json)


@keys.command("create")
def create_key(
    role: Annotated[str, typer.Option(help="What the key may do: viewer, operator, editor or admin.")],
    name: Annotated[str | None, typer.Option(help="Whose key it is; stands in the audit.")] = None,
    reference: DatabaseOf = None,
    expires: Annotated[str | None, typer.Option(help="For how long it may be used, such as 90d.")] = None,
    unless_any: Annotated[bool, typer.Option("--unless-any", help="Make none if a usable one exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an API key. It is shown once. From the first key on, no request is let in without one."""
    from timeball.cli import keys as commands

    commands.create_key(role, name, expires, reference, unless_any=unless_any, as_json=as_json)


@keys.command("list")
def list_keys(reference: DatabaseOf = None, as_json: AsJson = False) -> None:
    """Show all keys, without their secrets."""
    from timeball.cli import keys as commands

    commands.list_keys(reference, as_json=as_json)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    reference: DatabaseOf = None,
) -> None:
    """Let a key open nothing any more."""
    from timeball.cli import keys as commands

    commands.revoke_key(key_id, reference)


@database.command("migrate")
def migrate(reference: DatabaseOf = None) -> None:
    """Bring the schema up to date."""
    from timeball.cli.database import run_migrate

    run_migrate(reference)


def main() -> None:
    """The entry point: our errors are told in three lines, without a stack."""
    # The program may lie in the folder one is in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        app()
    except TimeballError as error:
        sys.exit(leave(error))
