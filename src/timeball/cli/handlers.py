"""`timeball handlers`: what can be run, what each handler takes, and which versions of it workers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.jobs import first
from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import Limit, command, listing, noun

if TYPE_CHECKING:
    from timeball.client import AsyncClient

handlers = noun(
    "handlers",
    "Handlers: what can be run, and what each takes.",
    ["timeball handlers", "timeball handlers show http.webhook"],
)

HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")]

_COLUMNS = [
    Column("name"),
    Column("workers", kind=Kind.NUMBER),
    Column("queue", lambda handler: (handler["options"] or {}).get("queue")),
    Column("description"),
]
_DETAILS = [
    Column("name"),
    Column("doc", lambda handler: handler["doc"] or handler["description"]),
    Column("takes", lambda handler: _parameters(handler["payload_schema"])),
    Column("example"),
    Column("options", lambda handler: ", ".join(f"{k}={_shown(v)}" for k, v in (handler["options"] or {}).items())),
    Column("run style"),
    Column("needs role"),
    Column("versions", lambda handler: "; ".join(map(_version, handler["versions"]))),
]


@listing(handlers, "timeball handlers list", "timeball handlers list -o json")
def list_handlers(session: Session, limit: Limit = 200) -> None:
    """List the handlers in the box, of installed packages, and that workers have or have published."""

    async def look(client: AsyncClient) -> list[Any]:
        return await first(client.handlers.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(look), _COLUMNS, empty="no handlers")


@command(handlers, "show", "timeball handlers show http.webhook", "timeball handlers show http.webhook --json")
def show_handler(session: Session, handler: HandlerName) -> None:
    """Show one handler: what it takes, what its jobs are given, and which workers have which version."""
    session.printer.details(session.talk(lambda client: client.handlers.get(handler)), _DETAILS)


def _parameters(schema: Any) -> str:
    fields = (schema or {}).get("properties", {})
    required = set((schema or {}).get("required", ()))
    return ", ".join(
        f"{name}: {_kind(field)}{'' if name in required else ' (optional)'}" for name, field in fields.items()
    )


def _kind(field: Any) -> str:
    if not isinstance(field, dict):
        return "anything"
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "anything"))


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _version(version: Any) -> str:
    words = [version["fingerprint"][:8], *(["newest"] if version["is_newest"] else [])]
    return f"{' '.join(words)}: {', '.join(version['workers']) or 'no living worker'}"
