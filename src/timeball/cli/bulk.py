"""Things done to many executions at once: in rounds, with a bar, and with an account of what failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.errors import TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient

Action = Callable[["AsyncClient"], Awaitable[Any]]

_COLUMNS = [Column("id"), Column("status", kind=Kind.STATE), Column("execution", "execution_id"), Column("error")]


class SomeFailed(TimeballError):
    """Not everything that was asked for could be done."""

    code = "some_failed"


def act_in_rounds(
    session: Session,
    what: str,
    *,
    act: Action,
    look: Action | None = None,
    has_rounds: bool = False,
    yes: bool = False,
    dry_run: bool = False,
) -> None:
    """Do something to many, after asking; *has_rounds* if what is done falls out of the choice, so that the rest comes next.

    *look* tells beforehand what would be touched.
    """
    session.talk(lambda client: _acted(client, session, what, act, look, has_rounds, yes, dry_run))


async def _acted(
    client: AsyncClient,
    session: Session,
    what: str,
    act: Action,
    look: Action | None,
    has_rounds: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    printer = session.printer
    if look is not None and (dry_run or not yes):
        would = await look(client)
        number = f"{len(would.results)}{' and more' if would.has_more else ''}"
        if dry_run:
            printer.rows(would.results, _COLUMNS, empty="nothing matches")
            printer.say(f"would {what}: {number}")
            return
        printer.confirm(f"{what[0].upper()}{what[1:]}: {number}?", yes=yes)
    results: list[Any] = []
    with printer.progress(what) as advance:
        while True:
            round_ = await act(client)
            results += round_.results
            advance(round_.done)
            if not (has_rounds and round_.has_more and round_.done):
                break
    printer.rows(results, _COLUMNS, empty="nothing matches")
    if round_.has_more:
        printer.say("more match than one call touches; say it again for the next")
    failed = sum(item.status == "failed" for item in results)
    if failed:
        raise SomeFailed(f"{failed} of {len(results)} could not be done")
