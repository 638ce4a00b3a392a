"""`timeball runs`: executions, what ran, what runs, what waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.bulk import Manner, NoWait, act_on_many
from timeball.cli.job_options import read_json, read_moment
from timeball.cli.jobs import first
from timeball.cli.render import Column, Kind
from timeball.cli.session import Session
from timeball.cli.tree import DryRun, Limit, Reason, Yes, command, listing, noun
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

runs = noun(
    "runs",
    "Runs: executions of jobs, past, present and waiting.",
    ["timeball runs", "timeball runs --status dead --since 2h", "timeball runs --job nightly"],
)

RunRef = Annotated[str, typer.Argument(metavar="RUN", help="An execution's id, exe_...")]
RunRefs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of executions, exe_...")]


@dataclass(frozen=True)
class RunSearchOptions:
    """Which executions are meant."""

    status: Annotated[
        str | None, typer.Option("--status", help="States, with commas: queued, running, succeeded, dead, ...")
    ] = None
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None
    query: Annotated[
        str | None,
        typer.Option("-q", "--query", help="In the language of search: 'status:dead late:>30s payload.id:42'."),
    ] = None
    since: Annotated[str | None, typer.Option("--since", help="Since: an instant, or a span ago such as 2h.")] = None
    until: Annotated[str | None, typer.Option("--until", help="Up to.")] = None

    def wanted(self) -> dict[str, Any]:
        """The filter as the API takes it."""
        found = {
            "status": self.status,
            "handler": self.handler,
            "queue": self.queue,
            "q": self.query,
            "start_date": None if self.since is None else read_moment(self.since, "--since"),
            "end_date": None if self.until is None else read_moment(self.until, "--until"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def as_filter(self) -> dict[str, Any]:
        """The same, as bulk actions take it."""
        wanted = self.wanted()
        if "status" in wanted:
            wanted["status"] = wanted["status"].split(",")
        from timeball.client.calls import given

        return given(wanted)


COLUMNS = [
    Column("id"),
    Column("state", kind=Kind.STATE),
    Column("handler"),
    Column("queue"),
    Column("due", "scheduled_for", Kind.INSTANT),
    Column("late", "lateness_ms", Kind.MILLISECONDS),
    Column("took", "duration_ms", Kind.MILLISECONDS),
    Column("tries", "attempts", Kind.NUMBER),
    Column("error", lambda run: run["error"] or run["reason"]),
]
DETAILS = [
    Column("id"),
    Column("job", "job_id"),
    Column("state", kind=Kind.STATE),
    Column("handler"),
    Column("queue"),
    Column("origin"),
    Column("created by"),
    Column("scheduled for", "scheduled_for", Kind.INSTANT),
    Column("queued", "queued_at", Kind.INSTANT),
    Column("started", "started_at", Kind.INSTANT),
    Column("finished", "finished_at", Kind.INSTANT),
    Column("late", "lateness_ms", Kind.MILLISECONDS),
    Column("took", "duration_ms", Kind.MILLISECONDS),
    Column("attempts"),
    Column("worker"),
    Column("retry of"),
    Column("payload"),
    Column("result"),
    Column("error type"),
    Column("error"),
    Column("reason"),
    Column(
        "tries",
        lambda run: "\n".join(
            f"{each['number']} {each['outcome']} {each['finished_at']} {each['error_type'] or ''} {each['error'] or ''}"
            for each in run.get("attempt_list") or ()
        ),
    ),
]


@listing(
    runs, "timeball runs list -q 'status:dead handler:test.* after:-2h'", "timeball runs list --job nightly -o csv"
)
def list_runs(
    session: Session,
    wanted: RunSearchOptions,
    job: Annotated[str | None, typer.Option("--job", help="A job's name or id.")] = None,
    limit: Limit = 50,
) -> None:
    """List executions, the latest first."""

    async def look(client: AsyncClient) -> list[Any]:
        size = min(limit, 200)
        if job is None:
            return await first(client.executions.iterate(limit=size, **wanted.wanted()), limit)
        return await first(client.jobs.iterate_executions(job, limit=size, **wanted.wanted()), limit)

    session.printer.rows(session.talk(look), COLUMNS, empty="no executions match")


@command(runs, "show", "timeball runs show RUN")
def show_run(session: Session, run: RunRef) -> None:
    """Show one execution: times, attempts, payload, result, error."""
    session.printer.details(session.talk(lambda client: client.executions.get(run)), DETAILS)


_LOG_COLUMNS = [Column("at", kind=Kind.INSTANT), Column("level"), Column("message")]


@command(runs, "logs", "timeball runs logs RUN", "timeball runs logs RUN --follow")
def show_logs(
    session: Session,
    run: RunRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the execution has ended.")] = False,
) -> None:
    """Show what the handler said."""

    async def read(client: AsyncClient) -> None:
        from asyncio import sleep

        from timeball.cli.following import FINAL, LAST_WORDS_SECONDS

        cursor: str | None = None
        was_over = not follow
        while True:
            is_over = was_over or (await client.executions.get(run)).state in FINAL
            page = await client.executions.logs(run, cursor=cursor)
            if page.data:
                session.printer.rows(page.data, _LOG_COLUMNS)
            cursor = page.next_cursor
            if not page.has_more:
                if was_over:
                    return
                await sleep(LAST_WORDS_SECONDS if is_over else 0.5)
                was_over = is_over

    session.talk(read)


@command(runs, "watch", "timeball runs watch RUN")
def watch_run(session: Session, run: RunRef) -> None:
    """Follow an execution to its end: states, log and result; exit code 6 if it did not succeed."""
    from timeball.cli.following import show_end, watched

    show_end(session, session.talk(lambda client: watched(client, session, run)))


@command(runs, "cancel", "timeball runs cancel RUN", "timeball runs cancel --status queued --queue mail --yes")
def cancel_runs(
    session: Session,
    wanted: RunSearchOptions,
    run: RunRefs = None,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Cancel executions, named or found by a filter: what waits, at once; what runs is asked to stop."""
    _act(session, "cancel", run or [], wanted, reason, Manner(yes, dry_run, waits=not no_wait))


@command(runs, "retry", "timeball runs retry RUN", "timeball runs retry --status dead --handler test.echo --yes")
def retry_runs(
    session: Session,
    wanted: RunSearchOptions,
    run: RunRefs = None,
    payload: Annotated[
        str | None, typer.Option("--payload", help="Another payload for a single one: JSON, @file, or - for stdin.")
    ] = None,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Run ended executions again, named or found by a filter; each as a new one, linked to the old."""
    if payload is None:
        _act(session, "retry", run or [], wanted, reason, Manner(yes, dry_run, waits=not no_wait))
        return
    if not run or len(run) != 1:
        raise InvalidInput("another payload is for a single execution", field="payload", hint="name one execution")
    changed = read_json(payload)
    session.printer.details(session.talk(lambda client: client.executions.retry(run[0], changed, reason)), DETAILS)


def _act(
    session: Session, action: Any, ids: list[str], wanted: RunSearchOptions, reason: str | None, manner: Manner
) -> None:
    matching = wanted.as_filter()
    if bool(ids) == bool(matching):
        raise InvalidInput(
            f"{len(ids)} executions and {len(matching)} filters are given, expected ids or filters",
            hint=f"name executions, or say which: timeball runs {action} --status queued",
        )
    choice: dict[str, Any] = {"ids": ids} if ids else {"matching": matching}
    act_on_many(
        session,
        f"{action} executions",
        # Whoever names each of them has thought about it.
        replace(manner, yes=manner.yes or bool(ids)),
        look=lambda client: client.executions.bulk(action, **choice, dry_run=True),
        act=lambda client: client.executions.bulk(action, **choice, reason=reason),
    )
