"""What several commands show: a job, an execution, a sync plan, an execution that is followed, and a bulk operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeball.cli.output import Column, ColumnKind, to_json
from timeball.cli.session import CliSession
from timeball.domain.job_fields import SPEC_FIELDS, TIME_FIELDS, JobField, json_default
from timeball.errors import ExecutionFailed, TimeballError

if TYPE_CHECKING:
    from timeball.client import AsyncClient


def schedule_text(job: Any) -> str:
    """When a job runs, in a few words."""
    match job["kind"]:
        case "cron" | "rrule":
            zone = "" if job["timezone"] == "UTC" else f" {job['timezone']}"
            return f"{job['schedule']}{zone}"
        case "every":
            from datetime import timedelta

            from timeball.domain.values.wording import format_duration

            return f"every {format_duration(timedelta(seconds=job['interval_seconds']))}"
        case "after":
            return f"after {job['after']}"
        case kind:
            return str(kind)


def show_fire_times(session: CliSession, times: Any) -> None:
    """When a schedule or a job fires next, in words and as rows; with the payload of the first time, if it has references."""
    printer = session.printer
    if not printer.is_for_programs:
        printer.say(times.description)
    columns = [Column("at", kind=ColumnKind.INSTANT), Column("local"), Column("note", _fire_note)]
    printer.rows(times.next, columns, empty="no further occurrences")
    if times.payload is not None and not printer.is_for_programs:
        import json

        printer.say(f"payload of the next run: {json.dumps(times.payload, ensure_ascii=False)}")


def _fire_note(time: Any) -> str | None:
    """What a clock change, a calendar or a freeze does to a time: `4 left out by calendar: holidays; frozen`."""
    words = [(time["note"] or "").replace("_", " ")]
    if time["calendars"]:
        words = [f"{time['count'] or 'many'} {words[0]}: {', '.join(time['calendars'])}"]
    return "; ".join([*filter(None, words), *(["frozen"] if time["is_frozen"] else [])]) or None


def _unusual_value(line: JobField, job: Any) -> Any:
    return None if job.get(line.name) == json_default(line) else job.get(line.name)


JOB_DETAILS = [
    Column("id"),
    Column("name"),
    Column("description"),
    Column("status", kind=ColumnKind.STATE),
    Column("handler"),
    Column("schedule", schedule_text),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
    Column("last run", "last_execution.finished_at", ColumnKind.INSTANT),
    Column("last state", "last_execution.state", ColumnKind.STATE),
    Column("paused until", "paused_until", ColumnKind.INSTANT),
    Column("pause reason"),
    Column("queue"),
    Column("priority"),
    Column("payload"),
    Column("tags"),
    Column("retries", "max_retries"),
    Column("timeout", "timeout_ms", ColumnKind.MILLISECONDS),
    Column("misfire"),
    Column("overlap"),
    Column("max running"),
    Column("unique key"),
    Column("declared by"),
    Column("created by"),
    Column("version"),
    Column("created", "created_at", ColumnKind.INSTANT),
    Column("updated", "updated_at", ColumnKind.INSTANT),
    Column("execution", "execution_id"),
]
# The fields that are not among these are shown if they do not have their default.
_SHOWN = {column.source or column.title.replace(" ", "_") for column in JOB_DETAILS}
JOB_DETAILS += [
    Column(name.replace("_", " "), partial(_unusual_value, line))
    for name, line in SPEC_FIELDS.items()
    if name not in {*_SHOWN, *TIME_FIELDS}
]
RUN_COLUMNS = [
    Column("id"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
    Column("due", "scheduled_for", ColumnKind.INSTANT),
    Column("late", "lateness_ms", ColumnKind.MILLISECONDS),
    Column("took", "duration_ms", ColumnKind.MILLISECONDS),
    Column("attempts", kind=ColumnKind.NUMBER),
    Column("error", lambda run: run["error"] or run["reason"]),
]


def progress_words(progress: Mapping[str, Any] | None) -> str:
    """How far a run is: `42%, page 42`."""
    if progress is None:
        return ""
    return f"{progress['fraction']:.0%}{', ' + progress['note'] if progress['note'] else ''}"


RUN_DETAILS = [
    Column("id"),
    Column("job", "job_id"),
    Column("state", kind=ColumnKind.STATE),
    Column("handler"),
    Column("queue"),
    Column("origin"),
    Column("created by"),
    Column("scheduled for", "scheduled_for", ColumnKind.INSTANT),
    Column("expires", "expires_at", ColumnKind.INSTANT),
    Column("queued", "queued_at", ColumnKind.INSTANT),
    Column("started", "started_at", ColumnKind.INSTANT),
    Column("finished", "finished_at", ColumnKind.INSTANT),
    Column("late", "lateness_ms", ColumnKind.MILLISECONDS),
    Column("took", "duration_ms", ColumnKind.MILLISECONDS),
    Column("attempts"),
    Column("progress", lambda run: progress_words(run.get("progress"))),
    Column("worker"),
    Column("retry of"),
    Column("follows"),
    Column("followed by", lambda run: " ".join(run.get("followed_by") or ())),
    Column("group", "group.id"),
    Column("part", "group.part"),
    Column("payload"),
    Column("meta"),
    Column("trace", "trace_id"),
    Column("result"),
    Column("error type"),
    Column("error"),
    Column("reason"),
    Column(
        "attempt list",
        lambda run: "\n".join(
            f"{attempt['number']} {attempt['outcome']} {attempt['finished_at']} "
            f"{attempt['error_type'] or ''} {attempt['error'] or ''}"
            for attempt in run.get("attempt_list") or ()
        ),
    ),
]

# Sync plans: what `timeball plan`, `apply` and `jobs sync` do to each job.

_STEP_COLUMNS = [
    Column("action", kind=ColumnKind.STATE),
    Column("name"),
    Column(
        "changes",
        lambda step: "; ".join(
            f"{field}: {change['before']} -> {change['after']}" for field, change in step["changes"].items()
        ),
    ),
    Column("next before", lambda step: step["next_before"][:1]),
    Column("next after", lambda step: step["next_after"][:1]),
]


def show_plan(session: CliSession, results: list[Any]) -> None:
    """Print what is done to each job, or would be."""
    steps = [step for result in results for step in result.jobs]
    session.printer.rows(steps, _STEP_COLUMNS, empty="no jobs are declared")
    for result in results:
        session.printer.warn(result)
    session.printer.say(summarise_plan(results))


def summarise_plan(results: list[Any]) -> str:
    """How many jobs are created, changed, deleted and left."""
    would = "would be " if any(result.dry_run for result in results) else ""
    number = {
        name: sum(getattr(result, name) for result in results) for name in ("created", "changed", "deleted", "left")
    }
    return (
        f"{number['created']} {would}created, {number['changed']} changed, {number['deleted']} deleted, "
        f"{number['left']} left as they are"
    )


# Following one execution: its log lines and states as they come, and how it ended.

FINAL_STATES = frozenset({"succeeded", "cancelled", "dead", "skipped"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# Log lines are written beside the outcome, and may arrive a moment after it.
LATE_LOG_SECONDS = 0.3
# An execution that waits longer than this is explained.
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
        execution = await start(client)
        return await follow_execution(client, session, execution.id)

    show_outcome(session, session.talk(follow))


async def follow_execution(client: AsyncClient, session: CliSession, execution_id: str) -> Any:
    """Follow an execution to its end: its log lines and states go to stderr."""
    from asyncio import sleep
    from time import monotonic

    pause, state, cursor = _FIRST_PAUSE, None, None
    waits_since: float | None = monotonic()
    session.printer.say(f"{execution_id}")
    while True:
        # The state first: every log line that was written before a final state is then read after it.
        execution = await client.executions.get(execution_id)
        cursor, lines = await _print_log(client, session, execution_id, cursor)
        if execution.state in FINAL_STATES:
            await sleep(LATE_LOG_SECONDS)
            await _print_log(client, session, execution_id, cursor)
        if execution.state != state:
            session.printer.say(f"  {execution.state}" + (f" on {execution.worker}" if execution.worker else ""))
        if execution.state in FINAL_STATES:
            return execution
        if waits_since is not None and monotonic() - waits_since > _EXPLAIN_AFTER_SECONDS:
            waits_since = None
            if execution.state not in ("running", "scheduled", "retrying"):
                session.printer.say(f"  {(await client.executions.explain(execution_id)).headline}")
        pause = _FIRST_PAUSE if lines or execution.state != state else min(pause * 1.5, _LONGEST_PAUSE)
        state = execution.state
        await sleep(pause)


async def _print_log(
    client: AsyncClient, session: CliSession, execution_id: str, cursor: str | None
) -> tuple[str | None, int]:
    """Print the log lines behind the cursor; returns the next cursor and the number of lines."""
    number = 0
    while True:
        page = await client.executions.logs(execution_id, cursor=cursor)
        for line in page.data:
            session.printer.say(_log_line(line))
        number += len(page.data)
        cursor = page.next_cursor
        if not page.has_more:
            return cursor, number


def _log_line(line: Any) -> str:
    # The further lines of a message are indented, so that none looks like a line of ours.
    message = line.message.replace("\n", "\n" + " " * 23)
    return f"  {line.at:%H:%M:%S}.{line.at.microsecond // 1000:03d} {line.level:<7} {message}"


def show_outcome(session: CliSession, execution: Any) -> None:
    """Print the result of an execution; ExecutionFailed if it did not succeed."""
    if session.printer.is_for_programs:
        session.printer.json(execution.model_dump(mode="json"))
    elif execution.state == "succeeded" and execution.result is not None:
        session.printer.line(execution.result if isinstance(execution.result, str) else to_json(execution.result))
    if execution.state != "succeeded":
        reason = execution.error or execution.reason
        error = ExecutionFailed(
            execution.id, execution.state, f"{execution.error_type}: {reason}" if execution.error_type else reason
        )
        error.hint = f"details: timeball runs show {execution.id}; again: timeball runs retry {execution.id}"
        raise error


# Bulk operations: one question before, a progress bar, and a list of what failed.

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
_POLL_SECONDS = 0.3

NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="Above 500 executions: print the id of the operation, and do not wait for its end."),
]


class PartialFailure(TimeballError):
    """A part of what was asked for could not be done."""

    code = "some_failed"


@dataclass(frozen=True)
class BulkMode:
    """Whether a bulk operation asks before, changes anything, and is followed to its end."""

    yes: bool = False
    dry_run: bool = False
    waits: bool = True


def run_bulk(session: CliSession, label: str, mode: BulkMode, *, preview: BulkCall, act: BulkCall) -> None:
    """Run a bulk operation; *preview* returns what it would affect, in the shape of its result."""
    session.talk(lambda client: _run_bulk(client, session, label, mode, preview, act))


async def _run_bulk(
    client: AsyncClient, session: CliSession, label: str, mode: BulkMode, preview: BulkCall, act: BulkCall
) -> None:
    printer = session.printer
    if mode.dry_run or not mode.yes:
        affected = await preview(client)
        if mode.dry_run:
            printer.rows(affected.results, _ITEM_COLUMNS, empty="nothing matches")
            printer.say(f"would {label}: {affected.done}")
            return
        printer.confirm(f"{label[0].upper()}{label[1:]}: {affected.done}?", yes=mode.yes)
    result = await act(client)
    if hasattr(result, "results"):
        _show_results(session, result, result.results, empty="nothing matches")
    elif mode.waits:
        await follow_operation(client, session, label, result)
    else:
        show_operation(session, result)


def show_operation(session: CliSession, operation: Any) -> None:
    """Show an operation that nothing waits for."""
    session.printer.details(operation, _OPERATION_COLUMNS)
    session.printer.say(f"a running API carries it out; progress: GET /api/v1/operations/{operation.id}")


async def follow_operation(client: AsyncClient, session: CliSession, label: str, operation: Any) -> None:
    """Follow an operation to its end. On a terminal only the items that failed are listed: there may be very many others."""
    operation = await _wait_for_operation(client, session, label, operation)
    item_filter: Any = {"status": "failed"} if session.printer.is_terminal else {}
    items = [item async for item in client.operations.iterate_items(operation.id, limit=200, **item_filter)]
    _show_results(session, operation, items, empty=f"{operation.done} done")
    if operation.state != "succeeded":
        reason = operation.error or operation.reason or "it was stopped"
        raise PartialFailure(f"operation {operation.id} is {operation.state}: {reason}")


async def _wait_for_operation(client: AsyncClient, session: CliSession, label: str, operation: Any) -> Any:
    from asyncio import sleep

    from timeball.client.executions import is_over

    shown = 0
    # A backfill does not know beforehand how many it will run.
    total = None if operation.action == "backfill" else operation.total
    with session.printer.progress(label, total) as advance:
        while True:
            operation = await client.operations.get(operation.id)
            advance(operation.done + operation.failed - shown)
            shown = operation.done + operation.failed
            if is_over(operation):
                return operation
            await sleep(_POLL_SECONDS)


def _show_results(session: CliSession, result: Any, items: list[Any], *, empty: str) -> None:
    session.printer.rows(items, _ITEM_COLUMNS, empty=empty)
    if result.failed:
        raise PartialFailure(f"{result.failed} of {result.done + result.failed} failed")
