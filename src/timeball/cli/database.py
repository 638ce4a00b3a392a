"""`timeball db`, `verify`, `check` and `alive`: whether the installation is in order."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import typer

from timeball.cli.formatting import encodable_json, single_line
from timeball.cli.output import Column
from timeball.cli.session import CliSession, run_async
from timeball.cli.tree import (
    AppReference,
    AsJson,
    DatabaseAppReference,
    command,
    command_group,
    command_without_session,
    ungrouped_commands,
)
from timeball.config.settings import Settings, load_settings
from timeball.domain.node import NodeKind
from timeball.domain.values.field_errors import list_choices, unexpected_value
from timeball.env import Env
from timeball.errors import InvalidInput, StoreError
from timeball.store.db.database import Database
from timeball.store.db.notifier import Notifier
from timeball.store.nodes import NodeStore

commands = ungrouped_commands()


# The database as a whole: `timeball db`, and what verify and check look at.

database = command_group("db", "The database: its schema.", ["timeball db status", "timeball db migrate"])


@command(database, "status", "timeball db status", "timeball db status --json")
def show_status(session: CliSession, reference: DatabaseAppReference = None) -> None:
    """Show which database this is, its schema, and what this program expects; changes nothing."""
    found = run_async(_read_status(reference))
    session.printer.details(found, [Column(title) for title in ("server", "database", "schema", "expected", "state")])


async def _read_status(reference: str | None) -> dict[str, object]:
    from timeball.cli.program import load_program, resolve_database, settings_of
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


@command_without_session(database, "migrate", "timeball db migrate")
def migrate(reference: DatabaseAppReference = None) -> None:
    """Bring the schema up to date."""
    run_migrate(reference)


def run_verify(reference: str | None, *, as_json: bool) -> int:
    """Check every promise; the exit code says whether they hold."""
    from timeball.cli.program import load_program, resolve_database, settings_of
    from timeball.runtime import open_runtime
    from timeball.store.verify import verify

    async def work() -> int:
        async with open_runtime(resolve_database(settings_of(load_program(reference)))) as parts:
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
                typer.echo(single_line(line))
        return 0 if report.holds else 1

    return run_async(work())


def run_check(reference: str | None) -> int:
    """Everything that would keep a node from starting, said without starting one."""
    from timeball.cli.program import load_program, resolve_database, settings_of
    from timeball.clock import SystemClock
    from timeball.config.settings import find_unknown_variables
    from timeball.handlers.builtin import BuiltinHandlers
    from timeball.runtime import open_runtime
    from timeball.store.db.migrate import newest_known
    from timeball.store.db.url import DatabaseUrl

    program = load_program(reference)
    settings = settings_of(program)
    if settings.database_url is not None:
        DatabaseUrl.parse(settings.database_url)
    # What a worker would refuse of them, it would refuse only when the database is open.
    BuiltinHandlers(settings, SystemClock(), settings.data_dir)
    typer.echo("settings    fine")
    for stranger in find_unknown_variables():
        typer.echo(f"  !         {stranger.name} is set, and nothing reads it: {stranger.advice}")
    if program is not None:
        typer.echo(f"program     {reference}: {len(program.registry)} handlers")

    async def work() -> None:
        async with open_runtime(resolve_database(settings)) as parts, parts.store.database.connection() as connection:
            version = await connection.fetchval("SHOW server_version")
            typer.echo(f"database    PostgreSQL {version}, schema {newest_known()}")

    run_async(work())
    return 0


def run_migrate(reference: str | None) -> None:
    """Bring the schema up to date."""
    from timeball.cli.program import load_program, settings_of
    from timeball.runtime import open_runtime
    from timeball.store.db.migrate import newest_known

    async def work() -> None:
        async with open_runtime(settings_of(load_program(reference)).model_copy(update={"migrate": True})):
            typer.echo(f"the schema is at {newest_known()}")

    run_async(work())


# The commands that look without touching: next, verify, check.


@command_without_session(commands, "verify", "timeball verify", "timeball verify --json")
def verify(reference: DatabaseAppReference = None, as_json: AsJson = False) -> None:
    """Read the database and check every promise over its whole history; exit code 1 if one is broken."""

    raise typer.Exit(run_verify(reference, as_json=as_json))


@command_without_session(commands, "check", "timeball check", "timeball check app:tb")
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
        raise typer.Exit(run_check_against(reference, against))

    raise typer.Exit(run_check(reference))


@command_without_session(commands, "alive", "timeball alive", "timeball alive worker")
def alive(
    kind: Annotated[str | None, typer.Argument(metavar="[api|scheduler|worker]", help="What; none means any.")] = None,
) -> None:
    """Ask whether what should run on this machine does; exit code 1 if not. For the health checks of containers."""

    raise typer.Exit(0 if is_alive(kind) else 1)


# `timeball check app:tb --against URL`: which stored payloads a version that is not deployed yet would refuse.
#
# A database is read page by page, and each payload is checked by the program itself. A server is sent the schemas of
# the program's handlers and checks its payloads by them, so that none of them leaves it.

_PAGE_SIZE = 500

CheckedPage = tuple[int, list[Any]]


def run_check_against(reference: str | None, url: str) -> int:
    """Print what does not fit; the exit code says whether everything does."""
    from timeball.cli.session import run_async
    from timeball.sdk.app_loader import load_app

    if reference is None:
        raise InvalidInput(
            "--against needs the program whose handlers are to be checked",
            field="app",
            hint=f"name it: timeball check app:tb --against {url}",
        )
    program = load_app(reference)
    is_server = url.startswith(("http://", "https://"))
    found = _on_server(program, url) if is_server else _in_database(program, url)
    return run_async(_print_mismatches(found, len(program.registry)))


async def _print_mismatches(found: AsyncIterator[CheckedPage], handlers: int) -> int:
    checked = misfits = 0
    async for number, refused in found:
        checked += number
        misfits += len(refused)
        for one in refused:
            typer.echo(_mismatch_text(one))
    typer.echo(f"{checked} payloads of {handlers} handlers checked, {misfits} do not fit", err=True)
    return 1 if misfits else 0


def _mismatch_text(misfit: Any) -> str:
    from timeball.cli.formatting import printable

    subject = f"{misfit['kind']} {misfit['id']}" + (f" ({misfit['name']})" if misfit["name"] else "")
    return printable(f"{subject}, {misfit['handler']}: " + "; ".join(error["detail"] for error in misfit["errors"]))


async def _on_server(program: Any, url: str) -> AsyncIterator[CheckedPage]:
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
            answer = await client.handlers.check(handlers, cursor)
            yield answer.checked, [one.model_dump() for one in answer.misfits]
            cursor = answer.next_cursor
            if cursor is None:
                return


async def _in_database(program: Any, url: str) -> AsyncIterator[CheckedPage]:
    from timeball.api.resources.handlers import incompatible_payload_document
    from timeball.application.queries.handlers import HandlerQuery
    from timeball.runtime import open_runtime

    checks = {handler.name: handler.binder.check for handler in program.registry}
    # Looked at, never changed: not even its schema.
    settings = program.settings.model_copy(update={"database_url": url, "migrate": False})
    async with open_runtime(settings) as parts:
        async for number, refused in HandlerQuery(parts.store).misfits(checks, _PAGE_SIZE):
            yield number, [incompatible_payload_document(one) for one in refused]


# `timeball alive`: whether what should run on this machine does; for the health checks of containers.

_PROCESS_KINDS = ("api", *(kind.value for kind in NodeKind))
_TIMEOUT_SECONDS = 5.0


def is_alive(kind: str | None) -> bool:
    """Whether a node of this kind on this machine holds its lease, or the API answers; of any kind, if none is named."""
    if kind is not None and kind not in _PROCESS_KINDS:
        raise unexpected_value("the process kind", kind, list_choices(_PROCESS_KINDS), field="kind")
    settings = load_settings()
    if kind == "api":
        return _api_answers(settings)
    kinds = list(NodeKind) if kind is None else [NodeKind(kind)]
    return asyncio.run(_node_is_alive(settings, kinds)) or (kind is None and _api_answers(settings))


def _api_answers(settings: Settings) -> bool:
    try:
        with urlopen(
            f"http://{_probe_host(settings.host)}:{settings.port}/api/v1/health/ready", timeout=_TIMEOUT_SECONDS
        ) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _probe_host(host: str) -> str:
    """Where to ask what listens there: everywhere is also on loopback."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 6:
        return "[::1]" if address.is_unspecified else f"[{host}]"
    return "127.0.0.1" if address.is_unspecified else host


async def _node_is_alive(settings: Settings, kinds: list[NodeKind]) -> bool:
    if settings.database_url is None:
        raise InvalidInput("there is no database to ask", hint="set TIMEBALL_DATABASE_URL")
    database = Database(settings.database_url, Env(), pool_size=2, behind_pgbouncer=settings.behind_pgbouncer)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await database.open()
            return await NodeStore(database, Notifier(database)).is_alive(platform.node(), kinds)
    except (StoreError, TimeoutError):
        # A node without its database lives until its lease has run out, but nobody can know that.
        return False
    finally:
        await database.close()
