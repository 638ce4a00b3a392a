"""The commands that look without touching: next, verify, check."""

from __future__ import annotations

from typing import Annotated

import typer

from timeball.cli.serving import AppReference
from timeball.cli.tree import AsJson, DatabaseOf, plain, topic

commands = topic()


@plain(commands, "next", 'timeball next "30 2 * * *" --tz Europe/Berlin', 'timeball next "0 9 * * mon-fri" -n 3 --json')
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


@plain(commands, "verify", "timeball verify", "timeball verify --json")
def verify(reference: DatabaseOf = None, as_json: AsJson = False) -> None:
    """Read the database and check every promise over its whole history; exit code 1 if one is broken."""
    from timeball.cli.database import run_verify

    raise typer.Exit(run_verify(reference, as_json=as_json))


@plain(commands, "check", "timeball check", "timeball check app:tb")
def check(
    reference: AppReference = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="URL",
            help="Also check the payloads that are stored there, by this program: a server (http://...) or a database "
            "(postgresql://...). Exit code 1 if some do not fit.",
        ),
    ] = None,
) -> None:
    """Check settings, program and database without starting anything."""
    if against is not None:
        from timeball.cli.against import run_check_against

        raise typer.Exit(run_check_against(reference, against))
    from timeball.cli.database import run_check

    raise typer.Exit(run_check(reference))


@plain(commands, "alive", "timeball alive", "timeball alive worker")
def alive(
    kind: Annotated[str | None, typer.Argument(metavar="[api|scheduler|worker]", help="What; none means any.")] = None,
) -> None:
    """Ask whether what should run on this machine does; exit code 1 if not. For the health checks of containers."""
    from timeball.cli.alive import is_alive

    raise typer.Exit(0 if is_alive(kind) else 1)
