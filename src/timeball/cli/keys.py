"""`timeball keys`: API keys made, listed and revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson
import typer

from timeball.cli.program import load_program, settings_of
from timeball.commands import Actor
from timeball.domain.spans import parse_span
from timeball.store.keys import ApiKey, Keys
from timeball.wiring import opened

_ACTOR = Actor("cli").entry


def create_key(
    role: str, name: str | None, expires: str | None, app: str | None, *, unless_any: bool, as_json: bool
) -> None:
    """Make a key and show it, this once; *unless_any* there is, for scripts that run again and again."""
    span: timedelta | None = None if expires is None else parse_span(expires, "expires")

    async def work(keys: Keys) -> tuple[ApiKey, str] | None:
        if unless_any and await keys.any_usable():
            return None
        return await keys.create(role, name or role, span, _ACTOR)

    made = asyncio.run(_with_keys(app, work))
    if made is None:
        typer.echo("there is a usable key already; none was made", err=True)
        return
    key, token = made
    if as_json:
        typer.echo(orjson.dumps(_document(key) | {"token": token}).decode())
        return
    typer.echo(token)
    until = "it does not expire" if key.expires_at is None else f"until {key.expires_at:%Y-%m-%d %H:%M} UTC"
    typer.echo(f"key {key.id} ({key.role}, {until}); it is shown only now, keep it safe", err=True)


def list_keys(app: str | None, *, as_json: bool) -> None:
    """Show all keys, without their tokens."""

    async def work(keys: Keys) -> Sequence[ApiKey]:
        return await keys.list()

    found = asyncio.run(_with_keys(app, work))
    if as_json:
        typer.echo(orjson.dumps([_document(key) for key in found]).decode())
        return
    for key in found:
        state = "revoked" if key.revoked_at else f"expires {key.expires_at:%Y-%m-%d}" if key.expires_at else "usable"
        used = f"used {key.used_at:%Y-%m-%d %H:%M}" if key.used_at else "never used"
        typer.echo(f"{key.id}  {key.role:<8}  {state:<18}  {used:<22}  {key.name}")


def revoke_key(key_id: str, app: str | None) -> None:
    """Let a key open nothing any more."""

    async def work(keys: Keys) -> ApiKey:
        return await keys.revoke(key_id, _ACTOR)

    key = asyncio.run(_with_keys(app, work))
    typer.echo(f"key {key.id} is revoked")


async def _with_keys(app: str | None, work: Any) -> Any:
    async with opened(settings_of(load_program(app))) as parts:
        return await work(Keys(parts.store.database, parts.store.jobs))


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
