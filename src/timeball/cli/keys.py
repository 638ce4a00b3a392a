"""`timeball keys`: API keys made, listed and revoked; on the database itself, for before the first key nobody could ask a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from timeball.cli.render import Column, Kind
from timeball.cli.session import Session, complete, user_name
from timeball.cli.tree import DatabaseOf, command, listing, noun

if TYPE_CHECKING:
    from timeball.store.keys import ApiKey, Keys

T = TypeVar("T")

keys = noun(
    "keys",
    "API keys: who may call. From the first key on, no request is let in without one.",
    ["timeball keys", "timeball keys create --role viewer --name grafana --expires 90d"],
)

_COLUMNS = [
    Column("id"),
    Column("role"),
    Column("state", lambda key: "revoked" if key["revoked_at"] else "usable", Kind.STATE),
    Column("expires", "expires_at", Kind.INSTANT),
    Column("used", "used_at", Kind.INSTANT),
    Column("name"),
]


@listing(keys, "timeball keys list", "timeball keys list --json")
def list_keys(session: Session, reference: DatabaseOf = None) -> None:
    """List all keys, without their secrets."""

    async def work(ring: Keys) -> list[dict[str, Any]]:
        return [_document(key) for key in await ring.list()]

    session.printer.rows(
        _with_keys(reference, work), _COLUMNS, empty="no key has been made; this machine may call without one"
    )


@command(keys, "create", "timeball keys create --role viewer --name grafana --expires 90d")
def create_key(
    session: Session,
    role: Annotated[str, typer.Option(help="What the key may do: viewer, operator, editor or admin.")],
    reference: DatabaseOf = None,
    name: Annotated[str | None, typer.Option(help="Whose key it is; stands in the audit.")] = None,
    expires: Annotated[str | None, typer.Option(help="For how long it may be used, such as 90d.")] = None,
    unless_any: Annotated[bool, typer.Option("--unless-any", help="Make none if a usable one exists.")] = False,
) -> None:
    """Make an API key. It is shown once. From the first key on, no request is let in without one."""
    from timeball.domain.spans import parse_span

    span = None if expires is None else parse_span(expires, "--expires")

    async def work(ring: Keys) -> tuple[ApiKey, str] | None:
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
    session: Session,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `keys list` shows.")],
    reference: DatabaseOf = None,
) -> None:
    """Let a key open nothing any more."""

    async def work(ring: Keys) -> dict[str, Any]:
        return _document(await ring.revoke(key_id, _entry()))

    session.printer.details(_with_keys(reference, work), _COLUMNS)


def _with_keys(reference: str | None, work: Callable[[Keys], Awaitable[T]]) -> T:
    from timeball.cli.program import load_program, settings_of
    from timeball.store.keys import Keys
    from timeball.wiring import opened

    async def whole() -> T:
        async with opened(settings_of(load_program(reference))) as parts:
            return await work(Keys(parts.store.database, parts.store.jobs))

    return complete(whole())


def _entry() -> Any:
    from timeball.commands import Actor

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
