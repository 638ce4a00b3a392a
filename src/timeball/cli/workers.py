"""`timeball workers`: the nodes that are alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import Reason, Yes, command, listing, noun

if TYPE_CHECKING:
    from timeball.client import AsyncClient

workers = noun(
    "workers",
    "Workers and schedulers: who is alive, and with what.",
    ["timeball workers", "timeball workers drain WORKER --yes"],
)

NodeRef = Annotated[str, typer.Argument(metavar="WORKER", help="An id, wrk_... or sch_..., as the list shows it.")]

_COLUMNS = [
    Column("id"),
    Column("kind"),
    Column("name"),
    Column("busy", lambda node: f"{node['busy']}/{node['slots']}" if node["kind"] == "worker" else "", Kind.NUMBER),
    Column("queues", lambda node: "all" if node["queues"] is None else node["queues"]),
    Column("state", lambda node: "draining" if node["draining"] else "alive", Kind.STATE),
    Column("seen", "renewed_at", Kind.INSTANT),
    Column("version"),
]
_DETAILS = [*_COLUMNS, Column("started", "started_at", Kind.INSTANT), Column("handlers"), Column("shards")]


@listing(workers, "timeball workers list", "timeball workers list --all")
def list_workers(
    session: Session,
    all_: Annotated[bool, typer.Option("--all", help="Schedulers too.")] = False,
) -> None:
    """List the workers that are believed alive."""

    async def look(client: AsyncClient) -> list[Any]:
        return [*await client.workers.list(), *(await client.workers.schedulers() if all_ else [])]

    empty = "no worker is alive; start one with: timeball worker app:tb"
    session.printer.rows(session.talk(look), _COLUMNS, empty=empty)


@command(workers, "show", "timeball workers show WORKER")
def show_worker(session: Session, worker: NodeRef) -> None:
    """Show one worker or scheduler, with the handlers it knows or the shards it looks after."""
    session.printer.details(session.talk(lambda client: client.workers.get(worker)), _DETAILS)


@command(workers, "drain", "timeball workers drain WORKER --yes")
def drain_worker(session: Session, worker: NodeRef, reason: Reason = None, yes: Yes = False) -> None:
    """Ask a worker or scheduler to finish what it runs, take nothing more, and end."""

    async def drain(client: AsyncClient) -> Any:
        found = await client.workers.get(worker)
        session.printer.confirm(f"Drain {found.name}, which runs {found.busy} executions?", yes=yes)
        return await client.workers.drain(found.id, reason)

    session.printer.details(session.talk(drain), _DETAILS)
