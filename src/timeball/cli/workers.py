"""`timeball workers` and `timeball handlers`: the nodes that are alive, and what they can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, Reason, Yes, command, command_group, list_command

if TYPE_CHECKING:
    from timeball.client import AsyncClient


# `timeball workers`: the nodes that are alive.

workers = command_group(
    "workers",
    "Workers and schedulers: who is alive, and with what.",
    ["timeball workers", "timeball workers drain WORKER --yes"],
)

NodeRef = Annotated[str, typer.Argument(metavar="WORKER", help="An id, wrk_... or sch_..., as the list shows it.")]

_NODE_COLUMNS = [
    Column("id"),
    Column("kind"),
    Column("name"),
    Column(
        "busy", lambda node: f"{node['busy']}/{node['slots']}" if node["kind"] == "worker" else "", ColumnKind.NUMBER
    ),
    Column("queues", lambda node: "all" if node["queues"] is None else node["queues"]),
    Column("state", lambda node: "draining" if node["draining"] else "alive", ColumnKind.STATE),
    Column("seen", "renewed_at", ColumnKind.INSTANT),
    Column("version"),
]
_NODE_DETAILS = [
    *_NODE_COLUMNS,
    Column("started", "started_at", ColumnKind.INSTANT),
    Column("handlers"),
    Column("shards"),
]


@list_command(workers, "timeball workers list", "timeball workers list --all")
def list_workers(
    session: CliSession,
    all_: Annotated[bool, typer.Option("--all", help="Schedulers too.")] = False,
) -> None:
    """List the workers that are believed alive."""

    async def look(client: AsyncClient) -> list[Any]:
        return [*await client.workers.list(), *(await client.workers.schedulers() if all_ else [])]

    empty = "no worker is alive; start one with: timeball worker app:tb"
    session.printer.rows(session.talk(look), _NODE_COLUMNS, empty=empty)


@command(workers, "show", "timeball workers show WORKER")
def show_worker(session: CliSession, worker: NodeRef) -> None:
    """Show one worker or scheduler, with the handlers it knows or the shards it looks after."""
    session.printer.details(session.talk(lambda client: client.workers.get(worker)), _NODE_DETAILS)


@command(workers, "drain", "timeball workers drain WORKER --yes")
def drain_worker(session: CliSession, worker: NodeRef, reason: Reason = None, yes: Yes = False) -> None:
    """Ask a worker or scheduler to finish what it runs, take nothing more, and end."""

    async def drain(client: AsyncClient) -> Any:
        found = await client.workers.get(worker)
        session.printer.confirm(f"Drain {found.name}, which runs {found.busy} executions?", yes=yes)
        return await client.workers.drain(found.id, reason)

    session.printer.details(session.talk(drain), _NODE_DETAILS)


# `timeball handlers`: what can be run, what each handler takes, and which versions of it workers have.

handlers = command_group(
    "handlers",
    "Handlers: what can be run, and what each takes.",
    ["timeball handlers", "timeball handlers show http.webhook"],
)

HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")]

_HANDLER_COLUMNS = [
    Column("name"),
    Column("workers", kind=ColumnKind.NUMBER),
    Column("queue", lambda handler: (handler["options"] or {}).get("queue")),
    Column("description"),
]
_HANDLER_DETAILS = [
    Column("name"),
    Column("doc", lambda handler: handler["doc"] or handler["description"]),
    Column("takes", lambda handler: _parameters(handler["payload_schema"])),
    Column("example"),
    Column(
        "options", lambda handler: ", ".join(f"{k}={_option_text(v)}" for k, v in (handler["options"] or {}).items())
    ),
    Column("run style"),
    Column("needs role"),
    Column("versions", lambda handler: "; ".join(map(_version_text, handler["versions"]))),
]


@list_command(handlers, "timeball handlers list", "timeball handlers list -o json")
def list_handlers(session: CliSession, limit: Limit = 200) -> None:
    """List the handlers in the box, of installed packages, and that workers have or have published."""

    async def look(client: AsyncClient) -> list[Any]:
        return await take(client.handlers.iterate(limit=min(limit, 200)), limit)

    session.printer.rows(session.talk(look), _HANDLER_COLUMNS, empty="no handlers")


@command(handlers, "show", "timeball handlers show http.webhook", "timeball handlers show http.webhook --json")
def show_handler(session: CliSession, handler: HandlerName) -> None:
    """Show one handler: what it takes, what its jobs are given, and which workers have which version."""
    session.printer.details(session.talk(lambda client: client.handlers.get(handler)), _HANDLER_DETAILS)


def _parameters(schema: Any) -> str:
    fields = (schema or {}).get("properties", {})
    required = set((schema or {}).get("required", ()))
    return ", ".join(
        f"{name}: {_schema_type(field)}{'' if name in required else ' (optional)'}" for name, field in fields.items()
    )


def _schema_type(field: Any) -> str:
    if not isinstance(field, dict):
        return "anything"
    if "anyOf" in field:
        return " or ".join(map(_schema_type, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(field.get("type", "anything"))


def _option_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _version_text(version: Any) -> str:
    words = [version["fingerprint"][:8], *(["newest"] if version["is_newest"] else [])]
    return f"{' '.join(words)}: {', '.join(version['workers']) or 'no living worker'}"
