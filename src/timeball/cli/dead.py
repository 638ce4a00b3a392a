"""`timeball dead`: executions that ended dead and that nobody has dealt with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.bulk import Manner, NoWait, act_on_many
from timeball.cli.jobs import first
from timeball.cli.render import Column, Kind, Output, Printer
from timeball.cli.runs import COLUMNS, RunRef, RunRefs
from timeball.cli.session import Session
from timeball.cli.tree import DryRun, Limit, Reason, Yes, alone, command, noun
from timeball.domain.dead_letters import DeadGrouping
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

dead = noun(
    "dead",
    "Dead letters: executions that ended dead, until somebody retries or discards them.",
    ["timeball dead", "timeball dead list", "timeball dead retry --all --yes"],
)

Fingerprint = Annotated[str | None, typer.Option("--group", help="All of one cause, as `timeball dead` names it.")]
OfHandler = Annotated[str | None, typer.Option("--handler", help="All of this handler.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="All of this queue.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@command(dead, "list", "timeball dead list", "timeball dead list --group 4c1a9d02")
def list_dead(
    session: Session,
    group: Fingerprint = None,
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None,
    limit: Limit = 50,
) -> None:
    """List dead executions, the latest first."""
    wanted: Any = {name: value for name, value in (("handler", handler), ("queue", queue)) if value}

    async def look(client: AsyncClient) -> list[Any]:
        return await first(client.dead_letters.iterate(fingerprint=group, limit=min(limit, 200), **wanted), limit)

    session.printer.rows(session.talk(look), COLUMNS, empty="nothing is dead")


@alone(dead)
@command(dead, "groups", "timeball dead groups", "timeball dead groups --by handler")
def list_groups(
    session: Session,
    by: Annotated[DeadGrouping, typer.Option("--by", help="What they are put together by.")] = DeadGrouping.ERROR,
) -> None:
    """List what kills executions, the most deadly first; `dead list --group` shows those of one cause."""
    others = [
        Column(other.value, f"{other.value}s")
        for other in (DeadGrouping.HANDLER, DeadGrouping.QUEUE)
        if other is not by
    ]
    columns = [
        Column("group" if by is DeadGrouping.ERROR else by.value, by.field),
        Column("dead", "executions", Kind.NUMBER),
        Column("error type"),
        Column("error", "latest_error"),
        *others,
        Column("last", "last_at", Kind.INSTANT),
    ]
    found = session.talk(lambda client: client.dead_letters.groups(by=by.value))
    session.printer.rows(found, columns, empty="nothing is dead")


@command(dead, "show", "timeball dead show RUN")
def show_dead(session: Session, run: RunRef) -> None:
    """Show one dead execution: attempts, payload, error."""
    from timeball.cli.runs import DETAILS

    session.printer.details(session.talk(lambda client: client.executions.get(run)), DETAILS)


@command(
    dead,
    "retry",
    "timeball dead retry RUN",
    "timeball dead retry --group 4c1a9d02",
    "timeball dead retry --handler app.mail:send",
)
def retry_dead(
    session: Session,
    run: RunRefs = None,
    group: Fingerprint = None,
    handler: OfHandler = None,
    queue: OfQueue = None,
    all_: All = False,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Run dead executions again, each as a new one, and take them off the list."""
    choice = _choice(run, all_, fingerprint=group, handler=handler, queue=queue)
    act_on_many(
        session,
        "retry dead executions",
        # Retrying loses nothing; only all at once deserves a question.
        Manner(yes or not all_, dry_run, waits=not no_wait),
        look=_looking_at(choice),
        act=lambda client: client.dead_letters.retry(**choice, reason=reason),
    )


@command(dead, "discard", "timeball dead discard RUN --reason known", "timeball dead discard --group 4c1a9d02 --yes")
def discard_dead(
    session: Session,
    run: RunRefs = None,
    group: Fingerprint = None,
    handler: OfHandler = None,
    queue: OfQueue = None,
    all_: All = False,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Take dead executions off the list without running them; their history stays."""
    choice = _choice(run, all_, fingerprint=group, handler=handler, queue=queue)
    act_on_many(
        session,
        "discard dead executions",
        Manner(yes or bool(run), dry_run, waits=not no_wait),
        look=_looking_at(choice),
        act=lambda client: client.dead_letters.discard(**choice, reason=reason),
    )


@command(dead, "export", "timeball dead export --to dead.csv")
def export_dead(
    session: Session,
    group: Fingerprint = None,
    to: Annotated[Path | None, typer.Option("--to", help="A file to write; none means stdout.")] = None,
) -> None:
    """Write all dead letters, as CSV, or as -o says."""

    async def look(client: AsyncClient) -> list[Any]:
        return [one async for one in client.dead_letters.iterate(fingerprint=group, limit=200)]

    found = session.talk(look)
    columns = [*COLUMNS, Column("job", "job_id"), Column("error type"), Column("finished", "finished_at", Kind.INSTANT)]
    output = session.output or Output.CSV
    if to is None:
        Printer(output, session.times).rows(found, columns)
        return
    with to.open("w", encoding="utf-8", newline="") as file:
        Printer(output, session.times, out=file).rows(found, columns)
    session.printer.say(f"{len(found)} dead letters are in {to}")


def _choice(ids: list[str] | None, all_: bool, **group: str | None) -> dict[str, Any]:
    given = [bool(ids), all_, *(value is not None for value in group.values())]
    if given.count(True) != 1:
        raise InvalidInput(
            f"{given.count(True)} choices are given, expected one: executions, --group, --handler, --queue, or --all",
            hint="timeball dead shows what there is",
        )
    return {"ids": ids or None, "all_of_them": all_} | group


class _Look:
    """What a choice would touch, in the shape of an answer to a bulk action."""

    def __init__(self, ids: list[str]) -> None:
        self.results = [{"id": one, "status": "would be done", "execution_id": None, "error": None} for one in ids]
        self.done = len(ids)


def _looking_at(choice: dict[str, Any]) -> Any:
    async def look(client: AsyncClient) -> _Look:
        if choice["ids"]:
            return _Look(choice["ids"])
        group: Any = {by.field: choice[by.field] for by in DeadGrouping}
        return _Look([one.id async for one in client.dead_letters.iterate(limit=200, **group)])

    return look
