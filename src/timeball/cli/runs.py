"""`timeball run`, `timeball runs` and `timeball dead`: start executions, and look after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.files import Bom, FileFormat, ToFile, file_format, write_download
from timeball.cli.job_options import Arguments, JobFlags, read_json, read_moment
from timeball.cli.output import Column, ColumnKind, OutputFormat, Printer
from timeball.cli.session import CliSession, take
from timeball.cli.tree import (
    DryRun,
    Limit,
    Reason,
    Yes,
    command,
    command_group,
    default_command,
    list_command,
    ungrouped_commands,
)
from timeball.cli.views import (
    FINAL_STATES,
    LATE_LOG_SECONDS,
    RUN_COLUMNS,
    RUN_DETAILS,
    BulkMode,
    NoWait,
    follow_execution,
    run_bulk,
    show_outcome,
)
from timeball.domain.search import DeadLetterGrouping
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()

_CREATED_COLUMNS = [
    Column("job", "id"),
    Column("name"),
    Column("execution", "execution_id"),
    Column("handler"),
    Column("queue"),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
]


@command(
    commands,
    "run",
    "timeball run test.echo hello=world",
    "timeball run test.echo hello=world --wait",
    "timeball run http.webhook url=https://example.com/hook --in 10m --queue web",
    'timeball run test.log message=hello --cron "0 6 * * *" --name morning',
)
def run_handler(
    session: CliSession,
    handler: Annotated[
        str, typer.Argument(metavar="HANDLER", help="The handler to run, such as test.echo or app.mail:send.")
    ],
    options: JobFlags,
    arguments: Arguments = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the job; a schedule needs one.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit code 6 if it does not succeed.")
    ] = False,
) -> None:
    """Run a handler now, later, or on a schedule. Later is --in or --at; a schedule is --cron or --every."""
    fields: Any = options.fields(arguments)
    if wait and ("schedule" in fields or "interval_seconds" in fields):
        raise InvalidInput("--wait cannot be used with a schedule, which has no end", field="wait", hint="omit --wait")
    session.talk(lambda client: _run(client, session, handler, name, fields, wait))


async def _run(
    client: AsyncClient, session: CliSession, handler: str, name: str | None, fields: Any, wait: bool
) -> None:
    job = await client.jobs.create(handler, name, **fields)
    session.printer.warn(job)
    execution_id = job.execution_id
    if not wait or execution_id is None:
        session.printer.details(job.model_dump(mode="json") | {"execution_id": execution_id}, _CREATED_COLUMNS)
        return
    show_outcome(session, await follow_execution(client, session, execution_id))


runs = command_group(
    "runs",
    "Runs: executions of jobs, past, present and waiting.",
    ["timeball runs", "timeball runs --status dead --since 2h", "timeball runs --job nightly"],
)

RunRef = Annotated[str, typer.Argument(metavar="RUN", help="An execution's id, exe_...")]
RunRefs = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Ids of executions, exe_...")]


@dataclass(frozen=True)
class RunFilterFlags:
    """The options that select executions."""

    status: Annotated[
        str | None, typer.Option("--status", help="States, with commas: queued, running, succeeded, dead, ...")
    ] = None
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None
    query: Annotated[
        str | None,
        typer.Option("-q", "--query", help="A search, such as 'status:dead late:>30s payload.id:42'."),
    ] = None
    since: Annotated[str | None, typer.Option("--since", help="From this instant on, or how long ago, such as 2h.")] = (
        None
    )
    until: Annotated[str | None, typer.Option("--until", help="Up to this instant, or how long ago.")] = None

    def params(self) -> dict[str, Any]:
        """The filter as the API takes it."""
        params = {
            "status": self.status,
            "handler": self.handler,
            "queue": self.queue,
            "q": self.query,
            "start_date": None if self.since is None else read_moment(self.since, "--since"),
            "end_date": None if self.until is None else read_moment(self.until, "--until"),
        }
        return {name: value for name, value in params.items() if value is not None}

    def bulk_filter(self) -> dict[str, Any]:
        """The filter as bulk actions take it."""
        from timeball.client.requests import encode_params

        params = self.params()
        if "status" in params:
            params["status"] = params["status"].split(",")
        return encode_params(params)


@list_command(
    runs, "timeball runs list -q 'status:dead handler:test.* after:-2h'", "timeball runs list --job nightly -o csv"
)
def list_runs(
    session: CliSession,
    filters: RunFilterFlags,
    job: Annotated[str | None, typer.Option("--job", help="A job's name or id.")] = None,
    limit: Limit = 50,
) -> None:
    """List executions, the latest first."""

    async def read(client: AsyncClient) -> list[Any]:
        size = min(limit, 200)
        if job is None:
            return await take(client.executions.iterate(limit=size, **filters.params()), limit)
        return await take(client.jobs.iterate_executions(job, limit=size, **filters.params()), limit)

    session.printer.rows(session.talk(read), RUN_COLUMNS, empty="no executions match")


@command(runs, "show", "timeball runs show RUN")
def show_run(session: CliSession, run: RunRef) -> None:
    """Show one execution: times, attempts, payload, result, error."""
    session.printer.details(session.talk(lambda client: client.executions.get(run)), RUN_DETAILS)


_LOG_COLUMNS = [Column("at", kind=ColumnKind.INSTANT), Column("level"), Column("message")]


@command(runs, "logs", "timeball runs logs RUN", "timeball runs logs RUN --follow")
def show_logs(
    session: CliSession,
    run: RunRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the execution ends.")] = False,
) -> None:
    """Show the log of an execution."""

    async def read(client: AsyncClient) -> None:
        from asyncio import sleep

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
    """Follow an execution to its end. Shows states, log and result; exit code 6 if it does not succeed."""
    show_outcome(session, session.talk(lambda client: follow_execution(client, session, run)))


@command(runs, "cancel", "timeball runs cancel RUN", "timeball runs cancel --status queued --queue mail --yes")
def cancel_runs(
    session: CliSession,
    filters: RunFilterFlags,
    run: RunRefs = None,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Cancel executions, named or selected by a filter. Waiting ones end at once, running ones are asked to stop."""
    _run_bulk_action(session, "cancel", run or [], filters, reason, BulkMode(yes, dry_run, waits=not no_wait))


@command(runs, "retry", "timeball runs retry RUN", "timeball runs retry --status dead --handler test.echo --yes")
def retry_runs(
    session: CliSession,
    filters: RunFilterFlags,
    run: RunRefs = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", help="Another payload, for a single execution: JSON, @file, or - for stdin."),
    ] = None,
    reason: Reason = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
) -> None:
    """Run ended executions again, named or selected by a filter. Each becomes a new execution, linked to the old."""
    if payload is None:
        _run_bulk_action(session, "retry", run or [], filters, reason, BulkMode(yes, dry_run, waits=not no_wait))
        return
    if not run or len(run) != 1:
        raise InvalidInput(
            f"--payload is given with {len(run or ())} executions, expected exactly one",
            field="payload",
            hint="name one",
        )
    document = read_json(payload)
    session.printer.details(session.talk(lambda client: client.executions.retry(run[0], document, reason)), RUN_DETAILS)


def _run_bulk_action(
    session: CliSession, action: Any, ids: list[str], filters: RunFilterFlags, reason: str | None, mode: BulkMode
) -> None:
    matching = filters.bulk_filter()
    if bool(ids) == bool(matching):
        raise InvalidInput(
            f"{len(ids)} executions and {len(matching)} filters are given, expected either executions or filters",
            hint=f"name executions, or select them: timeball runs {action} --status queued",
        )
    selection: dict[str, Any] = {"ids": ids} if ids else {"matching": matching}
    run_bulk(
        session,
        f"{action} executions",
        # Executions that are named one by one need no question.
        replace(mode, yes=mode.yes or bool(ids)),
        preview=lambda client: client.executions.bulk(action, **selection, dry_run=True),
        act=lambda client: client.executions.bulk(action, **selection, reason=reason),
    )


@command(runs, "export", "timeball runs export --status dead --to dead.csv")
def export_runs(
    session: CliSession, filters: RunFilterFlags, to: ToFile = None, format_: FileFormat = None, bom: Bom = False
) -> None:
    """Export the executions that match. The format is CSV, JSON lines or one JSON list."""
    kind = file_format(format_, to)
    write_download(session, to, lambda client: client.executions.export(kind, bom, **filters.params()))


dead = command_group(
    "dead",
    "Dead letters: executions that ended dead. Retrying or discarding one removes it from the list.",
    ["timeball dead", "timeball dead list", "timeball dead retry --all --yes"],
)

Fingerprint = Annotated[str | None, typer.Option("--group", help="All of one group, as `timeball dead` lists them.")]
OfHandler = Annotated[str | None, typer.Option("--handler", help="All of this handler.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="All of this queue.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]


@command(dead, "list", "timeball dead list", "timeball dead list --group 4c1a9d02")
def list_dead(
    session: CliSession,
    group: Fingerprint = None,
    handler: Annotated[str | None, typer.Option("--handler", help="The handler's name.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="The queue's name.")] = None,
    limit: Limit = 50,
) -> None:
    """List dead letters, the latest first."""
    filters: Any = {name: value for name, value in (("handler", handler), ("queue", queue)) if value}

    async def read(client: AsyncClient) -> list[Any]:
        return await take(client.dead_letters.iterate(fingerprint=group, limit=min(limit, 200), **filters), limit)

    session.printer.rows(session.talk(read), RUN_COLUMNS, empty="no dead letters")


@default_command(dead)
@command(dead, "groups", "timeball dead groups", "timeball dead groups --by handler")
def list_groups(
    session: CliSession,
    by: Annotated[
        DeadLetterGrouping, typer.Option("--by", help="What they are grouped by.")
    ] = DeadLetterGrouping.ERROR,
) -> None:
    """List dead letters in groups, the largest first. `dead list --group` shows the executions of one group."""
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
    groups = session.talk(lambda client: client.dead_letters.groups(by=by.value))
    session.printer.rows(groups, columns, empty="no dead letters")


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
    """Run dead executions again, and remove them from the list. Each becomes a new execution."""
    selection = _select_dead(run, all_, fingerprint=group, handler=handler, queue=queue)
    run_bulk(
        session,
        "retry dead executions",
        # A retry loses nothing; only --all needs a question.
        BulkMode(yes or not all_, dry_run, waits=not no_wait),
        preview=_preview(selection),
        act=lambda client: client.dead_letters.retry(**selection, reason=reason),
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
    """Remove dead executions from the list. They do not run again; their history stays."""
    selection = _select_dead(run, all_, fingerprint=group, handler=handler, queue=queue)
    run_bulk(
        session,
        "discard dead executions",
        BulkMode(yes or bool(run), dry_run, waits=not no_wait),
        preview=_preview(selection),
        act=lambda client: client.dead_letters.discard(**selection, reason=reason),
    )


@command(dead, "export", "timeball dead export --to dead.csv")
def export_dead(
    session: CliSession,
    group: Fingerprint = None,
    to: Annotated[Path | None, typer.Option("--to", help="The file to write. Default: stdout.")] = None,
) -> None:
    """Export all dead letters, as CSV, or as -o says."""

    async def read(client: AsyncClient) -> list[Any]:
        return [execution async for execution in client.dead_letters.iterate(fingerprint=group, limit=200)]

    executions = session.talk(read)
    columns = [
        *RUN_COLUMNS,
        Column("job", "job_id"),
        Column("error type"),
        Column("finished", "finished_at", ColumnKind.INSTANT),
    ]
    output = session.output or OutputFormat.CSV
    if to is None:
        Printer(output, session.times).rows(executions, columns)
        return
    with to.open("w", encoding="utf-8", newline="") as file:
        Printer(output, session.times, out=file).rows(executions, columns)
    session.printer.say(f"{len(executions)} dead letters are in {to}")


def _select_dead(ids: list[str] | None, all_: bool, **group: str | None) -> dict[str, Any]:
    number = [bool(ids), all_, *(value is not None for value in group.values())].count(True)
    if number != 1:
        raise InvalidInput(
            f"{number} selections are given, expected one: executions, --group, --handler, --queue, or --all",
            hint="timeball dead lists the groups",
        )
    return {"ids": ids or None, "all_of_them": all_} | group


class _DeadPreview:
    """What a selection would affect, in the shape of the result of a bulk action."""

    def __init__(self, ids: list[str]) -> None:
        self.results = [{"id": id_, "status": "would be done", "execution_id": None, "error": None} for id_ in ids]
        self.done = len(ids)


def _preview(selection: dict[str, Any]) -> Any:
    async def read(client: AsyncClient) -> _DeadPreview:
        if selection["ids"]:
            return _DeadPreview(selection["ids"])
        group: Any = {by.field: selection[by.field] for by in DeadLetterGrouping}
        return _DeadPreview([execution.id async for execution in client.dead_letters.iterate(limit=200, **group)])

    return read
