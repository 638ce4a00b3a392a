"""`timeball db`, `verify`, `check` and `alive`: whether database, program and processes are in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.errors import FAILED, OK
from timeball.cli.output import Column, Printer, printable, single_line
from timeball.cli.session import CliSession, load_program, resolve_database, run_async, settings_of
from timeball.cli.tree import (
    AppReference,
    AsJson,
    DatabaseAppReference,
    command,
    command_group,
    command_without_session,
    ungrouped_commands,
)
from timeball.domain.values.wording import parse_duration
from timeball.errors import InvalidInput, StoreUnavailable

if TYPE_CHECKING:
    from timeball.config.settings import Settings

commands = ungrouped_commands()

_DATABASE_REST_SECONDS = 0.5

database = command_group("db", "The database and its schema.", ["timeball db status", "timeball db migrate"])


@command(database, "status", "timeball db status", "timeball db status --json")
def show_status(session: CliSession, reference: DatabaseAppReference = None) -> None:
    """Show the database, its schema version and the expected version."""
    status = run_async(_read_status(reference))
    session.printer.details(status, [Column(title) for title in ("server", "database", "schema", "expected", "state")])


async def _read_status(reference: str | None) -> dict[str, object]:
    from timeball.env import Env
    from timeball.runtime import open_database
    from timeball.store.db.database import Database
    from timeball.store.db.migrate import installed_version, newest_known

    async with open_database(resolve_database(settings_of(load_program(reference)))) as url:
        connection = await Database(url, Env()).connect()
        try:
            schema, expected = await installed_version(connection), newest_known()
            return {
                "server": "PostgreSQL " + await connection.fetchval("SHOW server_version"),
                "database": _without_password(url),
                "schema": schema,
                "expected": expected,
                "state": _schema_state(schema, expected),
            }
        finally:
            await connection.close()


def _schema_state(schema: int, expected: int) -> str:
    if schema == expected:
        return "up to date"
    return (
        "older: run timeball db migrate" if schema < expected else "newer than this program: install a newer Timeball"
    )


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@", 1)


@command_without_session(database, "migrate", "timeball db migrate", "timeball db migrate --wait 1m")
def migrate(
    reference: DatabaseAppReference = None,
    wait: Annotated[
        str,
        typer.Option(
            "--wait", metavar="SPAN", help="How long to wait for a database that cannot be reached yet, such as 1m."
        ),
    ] = "0s",
) -> None:
    """Bring the schema up to date."""
    run_async(_migrate(settings_of(load_program(reference)), parse_duration(wait, "--wait")))


async def _migrate(settings: Settings, wait: timedelta) -> None:
    import asyncio

    from timeball.runtime import open_runtime
    from timeball.store.db.migrate import newest_known

    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait.total_seconds()
    has_waited = False
    while True:
        try:
            async with open_runtime(settings.model_copy(update={"migrate": True})):
                typer.echo(f"the schema is at version {newest_known()}")
                return
        except StoreUnavailable as error:
            if loop.time() >= deadline:
                raise
            if not has_waited:
                typer.echo(f"waiting for the database: {single_line(str(error))}", err=True)
                has_waited = True
        await asyncio.sleep(_DATABASE_REST_SECONDS)


@command_without_session(commands, "verify", "timeball verify", "timeball verify --json")
def verify_database(reference: DatabaseAppReference = None, as_json: AsJson = False) -> None:
    """Check every promise over the whole history in the database. Exit code 1 if one is broken."""
    from timeball.runtime import open_runtime
    from timeball.store.verify.proof import verify

    async def work() -> int:
        async with open_runtime(resolve_database(settings_of(load_program(reference)))) as runtime:
            report = await verify(runtime.store.database)
        if as_json:
            Printer().json(report.as_dict())
        else:
            for line in report.lines():
                typer.echo(single_line(line))
        return OK if report.holds else FAILED

    raise typer.Exit(run_async(work()))


@command_without_session(commands, "check", "timeball check", "timeball check app:tb")
def check(
    reference: AppReference = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="URL",
            help="Also check the stored payloads with the handlers of this program: at a server (http://...) or in a "
            "database (postgresql://...). Exit code 1 if some do not fit.",
        ),
    ] = None,
) -> None:
    """Check settings, program and database without starting anything. It names handlers that block or cannot be enqueued."""
    if against is not None:
        raise typer.Exit(_check_payloads(reference, against))
    _check_start(reference)


def _check_start(reference: str | None) -> None:
    """Report everything that would keep a node from starting."""
    from timeball.config.settings import find_unknown_variables
    from timeball.env import SystemClock
    from timeball.handlers.catalogue import BuiltinHandlers
    from timeball.handlers.lint import lint_handler
    from timeball.runtime import open_runtime
    from timeball.store.db.migrate import newest_known
    from timeball.store.db.url import DatabaseUrl

    program = load_program(reference)
    settings = settings_of(program)
    if settings.database_url is not None:
        DatabaseUrl.parse(settings.database_url)
    # A worker would refuse wrong settings of these only after it has opened the database.
    BuiltinHandlers(settings, SystemClock(), settings.data_dir)
    typer.echo("settings    ok")
    for variable in find_unknown_variables():
        typer.echo(f"  !         {variable.name} is set, and nothing reads it: {variable.advice}")
    if program is not None:
        typer.echo(f"program     {reference}: {len(program.registry)} handlers")
        for handler in program.registry:
            for concern in lint_handler(handler):
                typer.echo(f"  !         {handler.name}: {concern}")

    async def work() -> None:
        async with (
            open_runtime(resolve_database(settings)) as runtime,
            runtime.store.database.connection() as connection,
        ):
            version = await connection.fetchval("SHOW server_version")
            typer.echo(f"database    PostgreSQL {version}, schema {newest_known()}")

    run_async(work())


_PAGE_SIZE = 500

# How many payloads were checked, and those that do not fit.
CheckedPage = tuple[int, list[Any]]


def _check_payloads(reference: str | None, url: str) -> int:
    """Print the stored payloads that the handlers of a program would refuse, before it is deployed; the exit code.

    A database is read page by page, and the program checks each payload. A server is sent the schemas of the handlers and checks its
    payloads itself, so that none of them leaves it.
    """
    from timeball.sdk.app_loader import load_app

    if reference is None:
        raise InvalidInput(
            "--against is given without a program, expected the program whose handlers check the payloads",
            field="app",
            hint=f"name it: timeball check app:tb --against {url}",
        )
    program = load_app(reference)
    is_server = url.startswith(("http://", "https://"))
    pages = _check_on_server(program, url) if is_server else _check_in_database(program, url)
    return run_async(_print_misfits(pages, len(program.registry)))


async def _print_misfits(pages: AsyncIterator[CheckedPage], handlers: int) -> int:
    checked = total = 0
    async for number, misfits in pages:
        checked += number
        total += len(misfits)
        for misfit in misfits:
            typer.echo(_misfit_text(misfit))
    typer.echo(f"checked {checked} payloads of {handlers} handlers: {total} do not fit", err=True)
    return FAILED if total else OK


def _misfit_text(misfit: Any) -> str:
    subject = f"{misfit['kind']} {misfit['id']}" + (f" ({misfit['name']})" if misfit["name"] else "")
    return printable(f"{subject}, {misfit['handler']}: " + "; ".join(error["detail"] for error in misfit["errors"]))


async def _check_on_server(program: Any, url: str) -> AsyncIterator[CheckedPage]:
    from timeball.client import AsyncClient
    from timeball.client.clients import check_server_url
    from timeball.handlers.catalogue import contract_of

    check_server_url(url, "--against")
    contracts = [contract_of(handler) for handler in program.registry]
    handlers = [{"name": contract.name, "payload_schema": contract.schema} for contract in contracts]
    if not handlers:
        return
    async with AsyncClient(url) as client:
        cursor: str | None = None
        while True:
            page = await client.handlers.check(handlers, cursor)
            yield page.checked, [misfit.model_dump() for misfit in page.misfits]
            cursor = page.next_cursor
            if cursor is None:
                return


async def _check_in_database(program: Any, url: str) -> AsyncIterator[CheckedPage]:
    from timeball.api.resources.handlers import incompatible_payload_document
    from timeball.application.queries.handlers import HandlerQueries
    from timeball.runtime import open_runtime

    checks = {handler.name: handler.binder.check for handler in program.registry}
    # Nothing in it is changed, not even its schema.
    settings = program.settings.model_copy(update={"database_url": url, "migrate": False})
    async with open_runtime(settings) as runtime:
        async for number, refused in HandlerQueries(runtime.store).incompatible_payloads(checks, _PAGE_SIZE):
            yield number, [incompatible_payload_document(payload) for payload in refused]


@command_without_session(commands, "alive", "timeball alive", "timeball alive worker")
def alive(
    kind: Annotated[
        str | None, typer.Argument(metavar="api|scheduler|worker|watch", help="Which process. Default: any of them.")
    ] = None,
) -> None:
    """Check whether a process of this machine is alive. Exit code 1 if no API, scheduler, worker or watcher is; for containers."""
    from timeball.config.life_signs import KINDS, is_alive

    # `__main__` answers this command itself, as long as it is typed right.
    if kind is not None and kind not in KINDS:
        from timeball.domain.values.field_errors import list_choices, unexpected_value

        raise unexpected_value("the process kind", kind, list_choices(KINDS), field="kind")
    raise typer.Exit(OK if is_alive(kind) else FAILED)
