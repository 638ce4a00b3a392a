"""The database as a whole: `timeball db`, and what verify and check look at."""

from __future__ import annotations

import sys

import typer

from timeball.cli.render import Column, encodable_json
from timeball.cli.session import Session, complete
from timeball.cli.tree import DatabaseOf, command, noun, plain
from timeball.cli.words import one_line

database = noun("db", "The database: its schema.", ["timeball db status", "timeball db migrate"])


@command(database, "status", "timeball db status", "timeball db status --json")
def show_status(session: Session, reference: DatabaseOf = None) -> None:
    """Show which database this is, its schema, and what this program expects; changes nothing."""
    found = complete(_look(reference))
    session.printer.details(found, [Column(title) for title in ("server", "database", "schema", "expected", "state")])


async def _look(reference: str | None) -> dict[str, object]:
    from timeball.cli.place import at_hand
    from timeball.cli.program import load_program, settings_of
    from timeball.env import Env
    from timeball.store.database import Database
    from timeball.store.migrate import installed_version, newest_known
    from timeball.wiring import reached

    async with reached(at_hand(settings_of(load_program(reference)))) as url:
        connection = await Database(url, Env()).connect()
        try:
            schema, expected = await installed_version(connection), newest_known()
            return {
                "server": "PostgreSQL " + await connection.fetchval("SHOW server_version"),
                "database": _without_password(url),
                "schema": schema,
                "expected": expected,
                "state": _state(schema, expected),
            }
        finally:
            await connection.close()


def _state(schema: int, expected: int) -> str:
    if schema == expected:
        return "up to date"
    return (
        "older: run timeball db migrate" if schema < expected else "newer than this program: install a newer Timeball"
    )


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@", 1)


@plain(database, "migrate", "timeball db migrate")
def migrate(reference: DatabaseOf = None) -> None:
    """Bring the schema up to date."""
    run_migrate(reference)


def run_verify(reference: str | None, *, as_json: bool) -> int:
    """Check every promise; the exit code says whether they hold."""
    from timeball.cli.place import at_hand
    from timeball.cli.program import load_program, settings_of
    from timeball.store.verify import verify
    from timeball.wiring import opened

    async def work() -> int:
        async with opened(at_hand(settings_of(load_program(reference)))) as parts:
            report = await verify(parts.store.database)
        if as_json:
            import orjson

            typer.echo(
                encodable_json(
                    orjson.dumps(report.as_dict(), option=orjson.OPT_INDENT_2, default=str).decode(), sys.stdout
                )
            )
        else:
            for line in report.lines():
                typer.echo(one_line(line))
        return 0 if report.holds else 1

    return complete(work())


def run_check(reference: str | None) -> int:
    """Everything that would keep a node from starting, said without starting one."""
    from timeball.cli.place import at_hand
    from timeball.cli.program import load_program, settings_of
    from timeball.clock import SystemClock
    from timeball.handlers.box import Box
    from timeball.settings import unknown_variables
    from timeball.store.database_url import DatabaseUrl
    from timeball.store.migrate import newest_known
    from timeball.wiring import opened

    program = load_program(reference)
    settings = settings_of(program)
    if settings.database_url is not None:
        DatabaseUrl.parse(settings.database_url)
    # What a worker would refuse of them, it would refuse only when the database is open.
    Box(settings, SystemClock(), settings.data_dir)
    typer.echo("settings    fine")
    for stranger in unknown_variables():
        typer.echo(f"  !         {stranger.name} is set, and nothing reads it: {stranger.advice}")
    if program is not None:
        typer.echo(f"program     {reference}: {len(program.registry)} handlers")

    async def work() -> None:
        async with opened(at_hand(settings)) as parts, parts.store.database.connection() as connection:
            version = await connection.fetchval("SHOW server_version")
            typer.echo(f"database    PostgreSQL {version}, schema {newest_known()}")

    complete(work())
    return 0


def run_migrate(reference: str | None) -> None:
    """Bring the schema up to date."""
    from timeball.cli.program import load_program, settings_of
    from timeball.store.migrate import newest_known
    from timeball.wiring import opened

    async def work() -> None:
        async with opened(settings_of(load_program(reference)).model_copy(update={"migrate": True})):
            typer.echo(f"the schema is at {newest_known()}")

    complete(work())
