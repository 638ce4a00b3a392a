"""`timeball keys`: create, list and revoke API keys, directly in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, load_program, run_async, settings_of, user_name
from timeball.cli.tree import DatabaseAppReference, command, command_group, list_command
from timeball.errors import NotFound

if TYPE_CHECKING:
    from timeball.store.access import ApiKey, ApiKeyStore

T = TypeVar("T")

keys = command_group(
    "keys",
    "API keys: who may call the API. As soon as one key exists, every request needs one.",
    ["timeball keys", "timeball keys create --role viewer --name grafana --expires 90d"],
)

_COLUMNS = [
    Column("id"),
    Column("role"),
    Column("state", lambda key: "revoked" if key["revoked_at"] else "usable", ColumnKind.STATE),
    Column("expires", "expires_at", ColumnKind.INSTANT),
    Column("used", "used_at", ColumnKind.INSTANT),
    Column("name"),
]


@list_command(keys, "timeball keys list", "timeball keys list --json")
def list_keys(session: CliSession, reference: DatabaseAppReference = None) -> None:
    """List all keys, without their secrets."""

    async def work(store: ApiKeyStore) -> list[dict[str, Any]]:
        return [_document(key) for key in await store.list()]

    session.printer.rows(
        _with_keys(reference, work), _COLUMNS, empty="no keys yet; requests from this machine need none"
    )


@command(keys, "create", "timeball keys create --role viewer --name grafana --expires 90d")
def create_key(
    session: CliSession,
    role: Annotated[str, typer.Option(help="What the key may do: viewer, operator, editor or admin.")],
    reference: DatabaseAppReference = None,
    name: Annotated[str | None, typer.Option(help="What or whom the key is for; shown in the audit log.")] = None,
    expires: Annotated[str | None, typer.Option(help="How long it is valid, such as 90d.")] = None,
    unless_any: Annotated[bool, typer.Option("--unless-any", help="Create none if a usable key exists.")] = False,
) -> None:
    """Create an API key, which is shown only once. As soon as one key exists, every request needs one."""
    from timeball.domain.values.wording import parse_duration

    span = None if expires is None else parse_duration(expires, "--expires")

    async def work(store: ApiKeyStore) -> tuple[ApiKey, str] | None:
        if unless_any and await store.any_usable():
            return None
        return await store.create(role, name or role, span, _entry())

    created = _with_keys(reference, work)
    if created is None:
        session.printer.say("a usable key exists already; none was created")
        return
    key, token = created
    if session.printer.is_for_programs:
        session.printer.details(_document(key) | {"token": token}, [*_COLUMNS, Column("token")])
        return
    session.printer.line(token)
    expiry = "never expires" if key.expires_at is None else f"expires {key.expires_at:%Y-%m-%d %H:%M} UTC"
    session.printer.say(f"key {key.id} ({key.role}, {expiry}); it is shown only now, keep it safe")


@command(keys, "revoke", "timeball keys revoke KEY")
def revoke_key(
    session: CliSession,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    reference: DatabaseAppReference = None,
) -> None:
    """Revoke a key: requests with it are refused from now on."""

    async def work(store: ApiKeyStore) -> dict[str, Any]:
        try:
            return _document(await store.revoke(key_id, _entry()))
        except NotFound as error:
            error.hint = "look for it with: timeball keys"
            raise

    session.printer.details(_with_keys(reference, work), _COLUMNS)


def _with_keys(reference: str | None, work: Callable[[ApiKeyStore], Awaitable[T]]) -> T:
    from timeball.runtime import open_runtime
    from timeball.store.access import ApiKeyStore

    async def work_connected() -> T:
        async with open_runtime(settings_of(load_program(reference))) as runtime:
            return await work(ApiKeyStore(runtime.store.database))

    return run_async(work_connected())


def _entry() -> Any:
    from timeball.application.commands.requests import Actor

    return Actor(f"cli:{user_name()}").entry


def _document(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "role": key.role,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "used_at": key.used_at,
    }
