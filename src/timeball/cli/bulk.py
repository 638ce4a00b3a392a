"""Things done to many executions at once: asked about before, followed with a bar, and with an account of what failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.errors import TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Action = Callable[["AsyncClient"], Awaitable[Any]]

_COLUMNS = [Column("id"), Column("status", kind=Kind.STATE), Column("execution", "execution_id"), Column("error")]
_OPERATION = [Column("operation", "id"), Column("action"), Column("state", kind=Kind.STATE), Column("total")]
_PAUSE_SECONDS = 0.3

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Print the id of the operation that more than 500 become, and end.")
]


class SomeFailed(TimeballError):
    """Not everything that was asked for could be done."""

    code = "some_failed"


@dataclass(frozen=True)
class Manner:
    """How something is done to many: after asking or not, for real or not, to its end or not."""

    yes: bool = False
    dry_run: bool = False
    waits: bool = True


def act_on_many(session: Session, what: str, manner: Manner, *, look: Action, act: Action) -> None:
    """Do something to many; *look* tells beforehand what would be touched."""
    session.talk(lambda client: _acted(client, session, what, manner, look, act))


async def _acted(client: AsyncClient, session: Session, what: str, manner: Manner, look: Action, act: Action) -> None:
    printer = session.printer
    if manner.dry_run or not manner.yes:
        would = await look(client)
        if manner.dry_run:
            printer.rows(would.results, _COLUMNS, empty="nothing matches")
            printer.say(f"would {what}: {would.done}")
            return
        printer.confirm(f"{what[0].upper()}{what[1:]}: {would.done}?", yes=manner.yes)
    answer = await act(client)
    if hasattr(answer, "results"):
        _tell(session, answer, answer.results, empty="nothing matches")
    elif manner.waits:
        await _followed(client, session, what, answer)
    else:
        printer.details(answer, _OPERATION)
        printer.say("it goes on in a running API; its /api/v1/operations tells how far it has come")


async def _followed(client: AsyncClient, session: Session, what: str, operation: Any) -> None:
    """An operation to its end; of very many, people are told of those that failed."""
    ended = await _ended(client, session, what, operation)
    wanted: Any = {"status": "failed"} if session.printer.is_terminal else {}
    items = [item async for item in client.operations.iterate_items(ended.id, limit=200, **wanted)]
    _tell(session, ended, items, empty=f"{ended.done} done")
    if ended.state != "succeeded":
        raise SomeFailed(f"the operation {ended.id} is {ended.state}: {ended.error or ended.reason or 'it was ended'}")


async def _ended(client: AsyncClient, session: Session, what: str, operation: Any) -> Any:
    from asyncio import sleep

    from timeball.client.operations import is_over

    tried = 0
    with session.printer.progress(what, operation.total) as advance:
        while True:
            found = await client.operations.get(operation.id)
            advance(found.done + found.failed - tried)
            tried = found.done + found.failed
            if is_over(found):
                return found
            await sleep(_PAUSE_SECONDS)


def _tell(session: Session, answer: Any, results: list[Any], *, empty: str) -> None:
    session.printer.rows(results, _COLUMNS, empty=empty)
    if answer.failed:
        raise SomeFailed(f"{answer.failed} of {answer.done + answer.failed} could not be done")
