"""Commands about the database as a whole: verify, check, migrate."""

from __future__ import annotations

import asyncio

import orjson
import typer

from timeball.cli.program import load_program, settings_of
from timeball.store.migrate import newest_known
from timeball.store.verify import verify
from timeball.wiring import opened


def run_verify(reference: str | None, *, as_json: bool) -> int:
    """Check every promise; the exit code says whether they hold."""

    async def work() -> int:
        async with opened(settings_of(load_program(reference))) as parts:
            report = await verify(parts.store.database)
        if as_json:
            typer.echo(orjson.dumps(report.as_dict(), option=orjson.OPT_INDENT_2, default=str).decode())
        else:
            for line in report.lines():
                typer.echo(line)
        return 0 if report.holds else 1

    return asyncio.run(work())


def run_check(reference: str | None) -> int:
    """Everything that would keep a node from starting, said without starting one."""
    program = load_program(reference)
    settings = settings_of(program)
    typer.echo("settings    fine")
    if program is not None:
        typer.echo(f"program     {reference}: {len(program.registry)} handlers")

    async def work() -> None:
        async with opened(settings) as parts, parts.store.database.connection() as connection:
            version = await connection.fetchval("SHOW server_version")
            typer.echo(f"database    PostgreSQL {version}, schema {newest_known()}")

    asyncio.run(work())
    return 0


def run_migrate(reference: str | None) -> None:
    """Bring the schema up to date."""

    async def work() -> None:
        async with opened(settings_of(load_program(reference)).model_copy(update={"migrate": True})):
            typer.echo(f"the schema is at {newest_known()}")

    asyncio.run(work())
