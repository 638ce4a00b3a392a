"""`timeball ledger`: what became of the occurrences of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.job_options import read_moment
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession, take
from timeball.cli.tree import Limit, command, ungrouped_commands
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.values.field_errors import list_choices

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()


def _reason(entry: Any) -> str | None:
    """Why it did not or will not run, or waits, with the words of the freeze that holds it; what a backfill ran says so."""
    freeze = entry["freeze"]
    if freeze is not None:
        words = f"freeze of {freeze['what']}" + (f": {freeze['reason']}" if freeze["reason"] else "")
        return words if entry["reason"] == "freeze" else f"{entry['reason'] or 'runs'} after {words}"
    return entry["reason"] or ("backfill" if entry["origin"] == "backfill" else None)


_COLUMNS = [
    Column("due", lambda entry: entry["scheduled_for"] or entry["from"], ColumnKind.INSTANT),
    Column("until", kind=ColumnKind.INSTANT),
    Column("count", kind=ColumnKind.NUMBER),
    Column("verdict", kind=ColumnKind.STATE),
    Column("reason", _reason),
    Column("state", kind=ColumnKind.STATE),
    Column("execution", "execution_id"),
    Column("version", kind=ColumnKind.NUMBER),
    Column("filled in", lambda entry: entry["filled"] or None, ColumnKind.NUMBER),
]


@command(
    commands,
    "ledger",
    "timeball ledger nightly",
    "timeball ledger nightly --since 30d --verdict skipped",
    "timeball ledger nightly --since 1h --until +24h -o json",
)
def show_ledger(
    session: CliSession,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's name or id.")],
    since: Annotated[str, typer.Option("--since", help="From this instant on, or how long ago, such as 7d.")] = "7d",
    until: Annotated[
        str, typer.Option("--until", help="Up to this instant, or how far ahead, such as +24h. Default: now.")
    ] = "0s",
    verdict: Annotated[
        list[str] | None, typer.Option("--verdict", help=f"Only these: {list_choices(Verdict)}; may be repeated.")
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", help=f"Only skipped for these: {list_choices(SkipReason)}; may be repeated."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """Show what became of every occurrence of a job. Consecutive ones that were skipped are one line, with their number and the reason.

    The last column is how many of them backfills have filled in. What a backfill ran has a line of its own: its reason is `backfill`.
    """

    async def read(client: AsyncClient) -> list[Any]:
        entries = client.jobs.iterate_occurrences(
            job,
            from_=read_moment(since, "--since"),
            until=read_moment(until, "--until"),
            verdict=verdict,
            reason=reason,
            order="desc",
            limit=min(limit + 1, 200),
        )
        return await take(entries, limit + 1)

    entries = session.talk(read)
    session.printer.rows(entries[limit - 1 :: -1], _COLUMNS, empty="nothing was due in this time")
    if len(entries) > limit:
        session.printer.say(f"these are the latest {limit:,}; for more: --limit, or a later --until")
