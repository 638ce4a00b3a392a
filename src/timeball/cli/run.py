"""`timeball run`, and following what was started: one execution, or a bulk operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.formatting import to_json
from timeball.cli.job_options import Arguments, JobFlags
from timeball.cli.output import Column, ColumnKind
from timeball.cli.session import CliSession
from timeball.cli.tree import command, ungrouped_commands
from timeball.errors import ExecutionFailed, InvalidInput, TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient

commands = ungrouped_commands()


# `timeball run`: one thing, now, later or again and again.

EXAMPLES = (
    "timeball run test.echo hello=world",
    "timeball run test.echo hello=world --wait",
    "timeball run http.webhook url=https://example.com/hook --in 10m --queue web",
    'timeball run test.log message=hello --cron "0 6 * * *" --name morning',
)


_CREATED_COLUMNS = [
    Column("job", "id"),
    Column("name"),
    Column("execution", "execution_id"),
    Column("handler"),
    Column("queue"),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
]


@command(commands, "run", *EXAMPLES)
def run_handler(
    session: CliSession,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="What runs, such as test.echo or app.mail:send.")],
    options: JobFlags,
    arguments: Arguments = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the job; schedules need one.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit code 6 if it did not succeed.")
    ] = False,
) -> None:
    """Run a handler: now, once later (--in, --at), or by a schedule (--cron, --every)."""
    fields: Any = options.fields(arguments)
    if wait and ("schedule" in fields or "interval_seconds" in fields):
        raise InvalidInput("a schedule has no end to wait for", field="wait", hint="leave --wait out")
    session.talk(lambda client: _run(client, session, handler, name, fields, wait))


async def _run(
    client: AsyncClient, session: CliSession, handler: str, name: str | None, fields: Any, wait: bool
) -> None:
    made = await client.jobs.create(handler, name, **fields)
    session.printer.warn(made)
    execution_id = made.execution_id
    if execution_id is None and name is not None and made.kind == "manual":
        execution_id = (await client.jobs.trigger(made.id)).id
    if not wait or execution_id is None:
        session.printer.details(made.model_dump(mode="json") | {"execution_id": execution_id}, _CREATED_COLUMNS)
        return
    show_outcome(session, await follow_execution(client, session, execution_id))


# Watching one execution: its log as it is written, its states as they change, and how it ended.

FINAL_STATES = frozenset({"succeeded", "cancelled", "dead", "skipped"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


# Lines are written beside the outcome, and perhaps a moment after it.
LATE_LOG_SECONDS = 0.3


# What waits for longer is told why.
_EXPLAIN_AFTER_SECONDS = 2.0
_STARTED_COLUMNS = [
    Column("execution", "id"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
]


def start_and_show(session: CliSession, start: Callable[[AsyncClient], Awaitable[Any]], *, wait: bool) -> None:
    """Start an execution and show it, or wait for its end and show its result."""
    if not wait:
        session.printer.details(session.talk(start), _STARTED_COLUMNS)
        return

    async def follow(client: AsyncClient) -> Any:
        begun = await start(client)
        return await follow_execution(client, session, begun.id)

    show_outcome(session, session.talk(follow))


async def follow_execution(client: AsyncClient, session: CliSession, execution_id: str) -> Any:
    """Follow an execution to its end: log lines and changes of state go to stderr."""
    from asyncio import sleep
    from time import monotonic

    pause, state, cursor = _FIRST_PAUSE, None, None
    waits_since: float | None = monotonic()
    session.printer.say(f"{execution_id}")
    while True:
        # The state first: what is written before the end is seen is read after it.
        found = await client.executions.get(execution_id)
        cursor, said = await _print_log(client, session, execution_id, cursor)
        if found.state in FINAL_STATES:
            await sleep(LATE_LOG_SECONDS)
            await _print_log(client, session, execution_id, cursor)
        if found.state != state:
            session.printer.say(f"  {found.state}" + (f" on {found.worker}" if found.worker else ""))
        if found.state in FINAL_STATES:
            return found
        if waits_since is not None and monotonic() - waits_since > _EXPLAIN_AFTER_SECONDS:
            waits_since = None
            if found.state not in ("running", "scheduled", "retrying"):
                session.printer.say(f"  {(await client.executions.explain(execution_id)).headline}")
        pause = _FIRST_PAUSE if said or found.state != state else min(pause * 1.5, _LONGEST_PAUSE)
        state = found.state
        await sleep(pause)


async def _print_log(
    client: AsyncClient, session: CliSession, execution_id: str, cursor: str | None
) -> tuple[str | None, int]:
    said = 0
    while True:
        page = await client.executions.logs(execution_id, cursor=cursor)
        for line in page.data:
            session.printer.say(log_line(session, line))
        said += len(page.data)
        cursor = page.next_cursor
        if not page.has_more:
            return cursor, said


def log_line(session: CliSession, line: Any) -> str:
    """A line of a log, as people read it."""
    # Further lines stand to the right of it, so that none passes for a line of ours.
    message = line.message.replace("\n", "\n" + " " * 23)
    return f"  {line.at:%H:%M:%S}.{line.at.microsecond // 1000:03d} {line.level:<7} {message}"


def show_outcome(session: CliSession, ended: Any) -> None:
    """Print the result of an execution; ExecutionFailed if it did not succeed."""
    if session.printer.is_for_programs:
        session.printer.json(ended.model_dump(mode="json"))
    elif ended.state == "succeeded" and ended.result is not None:
        session.printer.line(ended.result if isinstance(ended.result, str) else to_json(ended.result))
    if ended.state != "succeeded":
        words = ended.error or ended.reason
        error = ExecutionFailed(ended.id, ended.state, f"{ended.error_type}: {words}" if ended.error_type else words)
        error.hint = f"timeball runs show {ended.id} tells more; timeball runs retry {ended.id} tries again"
        raise error


# Things done to many executions at once: asked about before, followed with a bar, and with an account of what failed.

BulkCall = Callable[["AsyncClient"], Awaitable[Any]]

_ITEM_COLUMNS = [
    Column("id"),
    Column("status", kind=ColumnKind.STATE),
    Column("execution", "execution_id"),
    Column("error"),
]
_OPERATION_COLUMNS = [
    Column("operation", "id"),
    Column("action"),
    Column("state", kind=ColumnKind.STATE),
    Column("total"),
]
_PAUSE_SECONDS = 0.3

NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Print the id of the operation that more than 500 become, and end.")
]


class PartialFailure(TimeballError):
    """Not everything that was asked for could be done."""

    code = "some_failed"


@dataclass(frozen=True)
class BulkMode:
    """How something is done to many: after asking or not, for real or not, to its end or not."""

    yes: bool = False
    dry_run: bool = False
    waits: bool = True


def run_bulk(session: CliSession, what: str, manner: BulkMode, *, look: BulkCall, act: BulkCall) -> None:
    """Do something to many; *look* tells beforehand what would be touched."""
    session.talk(lambda client: _run_bulk(client, session, what, manner, look, act))


async def _run_bulk(
    client: AsyncClient, session: CliSession, what: str, manner: BulkMode, look: BulkCall, act: BulkCall
) -> None:
    printer = session.printer
    if manner.dry_run or not manner.yes:
        would = await look(client)
        if manner.dry_run:
            printer.rows(would.results, _ITEM_COLUMNS, empty="nothing matches")
            printer.say(f"would {what}: {would.done}")
            return
        printer.confirm(f"{what[0].upper()}{what[1:]}: {would.done}?", yes=manner.yes)
    answer = await act(client)
    if hasattr(answer, "results"):
        _show_results(session, answer, answer.results, empty="nothing matches")
    elif manner.waits:
        await _follow_operation(client, session, what, answer)
    else:
        printer.details(answer, _OPERATION_COLUMNS)
        printer.say("it goes on in a running API; its /api/v1/operations tells how far it has come")


async def _follow_operation(client: AsyncClient, session: CliSession, what: str, operation: Any) -> None:
    """An operation to its end; of very many, people are told of those that failed."""
    ended = await _wait_for_operation(client, session, what, operation)
    wanted: Any = {"status": "failed"} if session.printer.is_terminal else {}
    items = [item async for item in client.operations.iterate_items(ended.id, limit=200, **wanted)]
    _show_results(session, ended, items, empty=f"{ended.done} done")
    if ended.state != "succeeded":
        raise PartialFailure(
            f"the operation {ended.id} is {ended.state}: {ended.error or ended.reason or 'it was ended'}"
        )


async def _wait_for_operation(client: AsyncClient, session: CliSession, what: str, operation: Any) -> Any:
    from asyncio import sleep

    from timeball.client.executions import is_over

    tried = 0
    with session.printer.progress(what, operation.total) as advance:
        while True:
            found = await client.operations.get(operation.id)
            advance(found.done + found.failed - tried)
            tried = found.done + found.failed
            if is_over(found):
                return found
            await sleep(_PAUSE_SECONDS)


def _show_results(session: CliSession, answer: Any, results: list[Any], *, empty: str) -> None:
    session.printer.rows(results, _ITEM_COLUMNS, empty=empty)
    if answer.failed:
        raise PartialFailure(f"{answer.failed} of {answer.done + answer.failed} could not be done")
