"""`timeball runs` and `timeball dead`: executions and dead letters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.files import Bom, FileFormat, ToFile, file_format, write_download
from timeball.cli.job_options import read_json, read_moment
from timeball.cli.output import Column, ColumnKind, OutputFormat, Printer
from timeball.cli.run import BulkMode, NoWait, run_bulk
from timeball.cli.session import CliSession, take
from timeball.cli.tree import DryRun, Limit, Reason, Yes, command, command_group, default_command, list_command
from timeball.domain.search import DeadLetterGrouping
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient


# `timeball runs`: executions, what ran, what runs, what waits.

runs = command_group(
    "runs",
    "Runs: executions of jobs, past, present and waiting.",
    ["timeball runs", "timeball runs --status dead --since 2h", "timeball runs --job nightly"],
)

RunRef = Annotated[str, typer.Argument(metavar="RUN", help="An execution's id, exe_...")]
RunRefs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of executions, exe_...")]


@dataclass(frozen=True)
class RunFilterFlags:
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
        from timeball.client.requests import encode_params

        return encode_params(wanted)


RUN_COLUMNS = [
    Column("id"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
    Column("due", "scheduled_for", ColumnKind.INSTANT),
    Column("late", "lateness_ms", ColumnKind.MILLISECONDS),
    Column("took", "duration_ms", ColumnKind.MILLISECONDS),
    Column("tries", "attempts", ColumnKind.NUMBER),
    Column("error", lambda run: run["error"] or run["reason"]),
]
RUN_DETAILS = [
    Column("id"),
    Column("job", "job_id"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
    Column("origin"),
    Column("created by"),
    Column("scheduled for", "scheduled_for", ColumnKind.INSTANT),
    Column("queued", "queued_at", ColumnKind.INSTANT),
    Column("started", "started_at", ColumnKind.INSTANT),
    Column("finished", "finished_at", ColumnKind.INSTANT),
    Column("late", "lateness_ms", ColumnKind.MILLISECONDS),
    Column("took", "duration_ms", ColumnKind.MILLISECONDS),
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


@list_command(
    runs, "timeball runs list -q 'status:dead handler:test.* after:-2h'", "timeball runs list --job nightly -o csv"
)
def list_runs(
    session: CliSession,
    wanted: RunFilterFlags,
    job: Annotated[str | None, typer.Option("--job", help="A job's name or id.")] = None,
    limit: Limit = 50,
) -> None:
    """List executions, the latest first."""

    async def look(client: AsyncClient) -> list[Any]:
        size = min(limit, 200)
        if job is None:
            return await take(client.executions.iterate(limit=size, **wanted.wanted()), limit)
        return await take(client.jobs.iterate_executions(job, limit=size, **wanted.wanted()), limit)

    session.printer.rows(session.talk(look), RUN_COLUMNS, empty="no executions match")


@command(runs, "show", "timeball runs show RUN")
def show_run(session: CliSession, run: RunRef) -> None:
    """Show one execution: times, attempts, payload, result, error."""
    session.printer.details(session.talk(lambda client: client.executions.get(run)), RUN_DETAILS)


_LOG_COLUMNS = [Column("at", kind=ColumnKind.INSTANT), Column("level"), Column("message")]


@command(runs, "logs", "timeball runs logs RUN", "timeball runs logs RUN --follow")
def show_logs(
    session: CliSession,
    run: RunRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the execution has ended.")] = False,
) -> None:
    """Show what the handler said."""

    async def read(client: AsyncClient) -> None:
        from asyncio import sleep

        from timeball.cli.run import FINAL_STATES, LATE_LOG_SECONDS

        cursor: str | None = None
        was_over = not follow
        while True:
            is_over = was_over or (await client.executions.get(run)).state in FINAL_STATES
            page = await client.executions.logs(run, cursor=cursor)
            if page.data:
                session.printer.rows(page.data, _LOG_COLUMNS)
            cursor = page.next_cursor
            if not page.has_more:
                if was_over:
                    return
                await sleep(LATE_LOG_SECONDS if is_over else 0.5)
                was_over = is_over

    session.talk(read)


@command(runs, "watch", "timeball runs watch RUN")
def watch_run(session: CliSession, run: RunRef) -> None:
    """Follow an execution to its end: states, log and result; exit code 6 if it did not succeed."""
    from timeball.cli.run import follow_execution, show_outcome

    show_outcome(session, session.talk(lambda client: follow_execution(client, session, run)))


@command(runs, "cancel", "timeball runs cancel RUN", "timeball runs cancel --status queued --queue mail --yes")
def cancel_runs(
    session: CliSession,
    wanted: RunFilterFlags,
    run: RunRefs = None,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Cancel executions, named or found by a filter: what waits, at once; what runs is asked to stop."""
    _run_bulk_action(session, "cancel", run or [], wanted, reason, BulkMode(yes, dry_run, waits=not no_wait))


@command(runs, "retry", "timeball runs retry RUN", "timeball runs retry --status dead --handler test.echo --yes")
def retry_runs(
    session: CliSession,
    wanted: RunFilterFlags,
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
        _run_bulk_action(session, "retry", run or [], wanted, reason, BulkMode(yes, dry_run, waits=not no_wait))
        return
    if not run or len(run) != 1:
        raise InvalidInput("another payload is for a single execution", field="payload", hint="name one execution")
    changed = read_json(payload)
    session.printer.details(session.talk(lambda client: client.executions.retry(run[0], changed, reason)), RUN_DETAILS)


def _run_bulk_action(
    session: CliSession, action: Any, ids: list[str], wanted: RunFilterFlags, reason: str | None, manner: BulkMode
) -> None:
    matching = wanted.as_filter()
    if bool(ids) == bool(matching):
        raise InvalidInput(
            f"{len(ids)} executions and {len(matching)} filters are given, expected ids or filters",
            hint=f"name executions, or say which: timeball runs {action} --status queued",
        )
    choice: dict[str, Any] = {"ids": ids} if ids else {"matching": matching}
    run_bulk(
        session,
        f"{action} executions",
        # Whoever names each of them has thought about it.
        replace(manner, yes=manner.yes or bool(ids)),
        look=lambda client: client.executions.bulk(action, **choice, dry_run=True),
        act=lambda client: client.executions.bulk(action, **choice, reason=reason),
    )


@command(runs, "export", "timeball runs export --status dead --to dead.csv")
def export_runs(
    session: CliSession, wanted: RunFilterFlags, to: ToFile = None, format_: FileFormat = None, bom: Bom = False
) -> None:
    """Write all executions that match, as CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    write_download(session, to, lambda client: client.executions.export(kind, bom, **wanted.wanted()))


# `timeball dead`: executions that ended dead and that nobody has dealt with.

dead = command_group(
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
    session: CliSession,
    group: Fingerprint = None,
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None,
    limit: Limit = 50,
) -> None:
    """List dead executions, the latest first."""
    wanted: Any = {name: value for name, value in (("handler", handler), ("queue", queue)) if value}

    async def look(client: AsyncClient) -> list[Any]:
        return await take(client.dead_letters.iterate(fingerprint=group, limit=min(limit, 200), **wanted), limit)

    session.printer.rows(session.talk(look), RUN_COLUMNS, empty="nothing is dead")


@default_command(dead)
@command(dead, "groups", "timeball dead groups", "timeball dead groups --by handler")
def list_groups(
    session: CliSession,
    by: Annotated[
        DeadLetterGrouping, typer.Option("--by", help="What they are put together by.")
    ] = DeadLetterGrouping.ERROR,
) -> None:
    """List what kills executions, the most deadly first; `dead list --group` shows those of one cause."""
    others = [
        Column(other.value, f"{other.value}s")
        for other in (DeadLetterGrouping.HANDLER, DeadLetterGrouping.QUEUE)
        if other is not by
    ]
    columns = [
        Column("group" if by is DeadLetterGrouping.ERROR else by.value, by.field),
        Column("dead", "executions", ColumnKind.NUMBER),
        Column("error type"),
        Column("error", "latest_error"),
        *others,
        Column("last", "last_at", ColumnKind.INSTANT),
    ]
    found = session.talk(lambda client: client.dead_letters.groups(by=by.value))
    session.printer.rows(found, columns, empty="nothing is dead")


@command(dead, "show", "timeball dead show RUN")
def show_dead(session: CliSession, run: RunRef) -> None:
    """Show one dead execution: attempts, payload, error."""

    session.printer.details(session.talk(lambda client: client.executions.get(run)), RUN_DETAILS)


@command(
    dead,
    "retry",
    "timeball dead retry RUN",
    "timeball dead retry --group 4c1a9d02",
    "timeball dead retry --handler app.mail:send",
)
def retry_dead(
    session: CliSession,
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
    choice = _dead_selection(run, all_, fingerprint=group, handler=handler, queue=queue)
    run_bulk(
        session,
        "retry dead executions",
        # Retrying loses nothing; only all at once deserves a question.
        BulkMode(yes or not all_, dry_run, waits=not no_wait),
        look=_preview(choice),
        act=lambda client: client.dead_letters.retry(**choice, reason=reason),
    )


@command(dead, "discard", "timeball dead discard RUN --reason known", "timeball dead discard --group 4c1a9d02 --yes")
def discard_dead(
    session: CliSession,
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
    choice = _dead_selection(run, all_, fingerprint=group, handler=handler, queue=queue)
    run_bulk(
        session,
        "discard dead executions",
        BulkMode(yes or bool(run), dry_run, waits=not no_wait),
        look=_preview(choice),
        act=lambda client: client.dead_letters.discard(**choice, reason=reason),
    )


@command(dead, "export", "timeball dead export --to dead.csv")
def export_dead(
    session: CliSession,
    group: Fingerprint = None,
    to: Annotated[Path | None, typer.Option("--to", help="A file to write; none means stdout.")] = None,
) -> None:
    """Write all dead letters, as CSV, or as -o says."""

    async def look(client: AsyncClient) -> list[Any]:
        return [one async for one in client.dead_letters.iterate(fingerprint=group, limit=200)]

    found = session.talk(look)
    columns = [
        *RUN_COLUMNS,
        Column("job", "job_id"),
        Column("error type"),
        Column("finished", "finished_at", ColumnKind.INSTANT),
    ]
    output = session.output or OutputFormat.CSV
    if to is None:
        Printer(output, session.times).rows(found, columns)
        return
    with to.open("w", encoding="utf-8", newline="") as file:
        Printer(output, session.times, out=file).rows(found, columns)
    session.printer.say(f"{len(found)} dead letters are in {to}")


def _dead_selection(ids: list[str] | None, all_: bool, **group: str | None) -> dict[str, Any]:
    given = [bool(ids), all_, *(value is not None for value in group.values())]
    if given.count(True) != 1:
        raise InvalidInput(
            f"{given.count(True)} choices are given, expected one: executions, --group, --handler, --queue, or --all",
            hint="timeball dead shows what there is",
        )
    return {"ids": ids or None, "all_of_them": all_} | group


class _DeadPreview:
    """What a choice would touch, in the shape of an answer to a bulk action."""

    def __init__(self, ids: list[str]) -> None:
        self.results = [{"id": one, "status": "would be done", "execution_id": None, "error": None} for one in ids]
        self.done = len(ids)


def _preview(choice: dict[str, Any]) -> Any:
    async def look(client: AsyncClient) -> _DeadPreview:
        if choice["ids"]:
            return _DeadPreview(choice["ids"])
        group: Any = {by.field: choice[by.field] for by in DeadLetterGrouping}
        return _DeadPreview([one.id async for one in client.dead_letters.iterate(limit=200, **group)])

    return look
