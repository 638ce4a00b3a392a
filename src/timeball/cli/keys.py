"""`timeball keys`: create, list and revoke API keys, directly in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, run_async, user_name
from timeball.cli.tree import DatabaseAppReference, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.store.access import ApiKey, ApiKeyStore

T = TypeVar("T")

keys = command_group(
    "keys",
    "API keys: who may call. From the first key on, no request is let in without one.",
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

    async def work(ring: ApiKeyStore) -> list[dict[str, Any]]:
        return [_document(key) for key in await ring.list()]

    session.printer.rows(
        _with_keys(reference, work), _COLUMNS, empty="no key has been made; this machine may call without one"
    )


@command(keys, "create", "timeball keys create --role viewer --name grafana --expires 90d")
def create_key(
    session: CliSession,
    role: Annotated[str, typer.Option(help="What the key may do: viewer, operator, editor or admin.")],
    reference: DatabaseAppReference = None,
    name: Annotated[str | None, typer.Option(help="Whose key it is; stands in the audit.")] = None,
    expires: Annotated[str | None, typer.Option(help="For how long it may be used, such as 90d.")] = None,
    unless_any: Annotated[bool, typer.Option("--unless-any", help="Make none if a usable one exists.")] = False,
) -> None:
    """Make an API key. It is shown once. From the first key on, no request is let in without one."""
    from timeball.domain.values.wording import parse_duration

    span = None if expires is None else parse_duration(expires, "--expires")

    async def work(ring: ApiKeyStore) -> tuple[ApiKey, str] | None:
        if unless_any and await ring.any_usable():
            return None
        return await ring.create(role, name or role, span, _entry())

    made = _with_keys(reference, work)
    if made is None:
        session.printer.say("there is a usable key already; none was made")
        return
    key, token = made
    if session.printer.is_for_programs:
        session.printer.details(_document(key) | {"token": token}, [*_COLUMNS, Column("token")])
        return
    session.printer.line(token)
    until = "it does not expire" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M} UTC"
    session.printer.say(f"key {key.id} ({key.role}, {until}); it is shown only now, keep it safe")


@command(keys, "revoke", "timeball keys revoke KEY")
def revoke_key(
    session: CliSession,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    reference: DatabaseAppReference = None,
) -> None:
    """Let a key open nothing any more."""

    async def work(ring: ApiKeyStore) -> dict[str, Any]:
        return _document(await ring.revoke(key_id, _entry()))

    session.printer.details(_with_keys(reference, work), _COLUMNS)


def _with_keys(reference: str | None, work: Callable[[ApiKeyStore], Awaitable[T]]) -> T:
    from timeball.cli.program import load_program, settings_of
    from timeball.runtime import open_runtime
    from timeball.store.access import ApiKeyStore

    async def whole() -> T:
        async with open_runtime(settings_of(load_program(reference))) as parts:
            return await work(ApiKeyStore(parts.store.database))

    return run_async(whole())


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
