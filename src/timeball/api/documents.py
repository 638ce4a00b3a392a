"""Jobs and executions in responses: serialising, expanding, and waiting for an execution."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Depends, Query
from starlette.responses import Response

from timeball.api.models.executions import ExecutionFull, ExecutionOut, execution_document, show_worker
from timeball.api.models.jobs import JobOut, job_document
from timeball.api.models.system import fire_time_document
from timeball.api.params import ApiContext
from timeball.api.responses import (
    Document,
    FieldSelection,
    field_selection,
    in_thread_if_large,
    json_response,
    page_document,
)
from timeball.application.queries.executions import ExecutionView, ResolvedPayload
from timeball.domain.execution import Attempt, Execution, ExecutionState
from timeball.domain.follow_ups import ExecutionLinks
from timeball.domain.job import JobView
from timeball.domain.payload_references import OF_ATTEMPT
from timeball.domain.search import PageRequest, ResultPage
from timeball.domain.values.field_errors import unexpected_value
from timeball.domain.values.ids import ExecutionId, format_execution_id, format_id
from timeball.domain.values.redaction import redact
from timeball.domain.values.wording import parse_duration

if TYPE_CHECKING:
    from timeball.application.queries import Queries


def full_execution_document(view: ExecutionView) -> Document:
    """An execution with its payload, result, attempts and timeline; secrets hidden."""
    return execution_document(view.execution) | {
        "payload": redact(orjson.loads(view.payload)),
        "resolved": None if view.resolved is None else _resolved_document(view.resolved),
        "result": redact(view.execution.result),
        "fingerprint": view.fingerprint,
        "stop_requested": view.stop,
        "follows": _follows(view.links),
        "followed_by": [format_execution_id(id_) for id_ in view.links.followed_by],
        "group": None if view.links.group_id is None else _group_document(view.links),
        "attempt_list": [attempt_document(attempt) for attempt in view.attempts],
        "timeline": _timeline(view),
    }


def _follows(links: ExecutionLinks) -> str | None:
    if links.follows_group is not None:
        return format_id("grp", links.follows_group)
    return None if links.follows is None else format_execution_id(links.follows)


def _group_document(links: ExecutionLinks) -> Document:
    assert links.group_id is not None
    return {"id": format_id("grp", links.group_id), "part": links.part}


def _resolved_document(resolved: ResolvedPayload) -> Document:
    return {
        "payload": resolved_payload_document(resolved.payload),
        "attempt": resolved.attempt,
        "changes_by_attempt": [str(name) for name in resolved.references if name in OF_ATTEMPT],
    }


def resolved_payload_document(payload: str | None) -> Any:
    """A payload with the values of its references; secrets hidden."""
    return None if payload is None else redact(orjson.loads(payload))


def attempt_document(attempt: Attempt) -> Document:
    """One unsuccessful attempt."""
    error = attempt.error
    return {
        "number": attempt.number,
        "worker": show_worker(attempt.worker),
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "outcome": attempt.outcome,
        "error_type": error and error.type,
        "error": error and error.message,
        "traceback": error and error.traceback,
        "top_frame": error and error.top_frame,
        "fingerprint": error and error.fingerprint,
        "is_expected": attempt.is_expected,
    }


def _timeline(view: ExecutionView) -> list[Document]:
    execution = view.execution
    points: list[tuple[datetime | None, str]] = [
        (execution.scheduled_for, "scheduled"),
        (execution.queued_at, "queued"),
        (execution.started_at, "started"),
        (execution.finished_at, execution.state.value),
    ]
    for attempt in view.attempts:
        points.append((attempt.started_at, f"attempt {attempt.number} started"))
        points.append((attempt.finished_at, f"attempt {attempt.number} {attempt.outcome}"))
    past = [(at, what) for at, what in points if at is not None]
    return [{"at": at, "what": what} for at, what in sorted(past)]


_NEXT_COUNT = 5

JobSelection = Annotated[FieldSelection, Depends(field_selection(JobOut, ("next",)))]
ExecutionSelection = Annotated[FieldSelection, Depends(field_selection(ExecutionOut, ("job", "attempts")))]
FullExecutionSelection = Annotated[FieldSelection, Depends(field_selection(ExecutionFull, ("job", "attempts")))]


async def selected_job(view: JobView, selection: FieldSelection, queries: Queries) -> Document:
    """A job with the selected fields."""
    return await in_thread_if_large(
        lambda: selection.fit(_expanded_job(view, selection, queries)), len(view.job.payload)
    )


async def jobs_page(
    page: ResultPage[JobView], request: PageRequest, selection: FieldSelection, queries: Queries
) -> Document:
    """A page of jobs with the selected fields; large payloads are left out."""

    def show(view: JobView) -> Document:
        return _expanded_job(view, selection, queries, in_list=True)

    shown = selection.shows("payload")
    characters = sum(len(view.job.payload) for view in page.items) if shown else 0
    # The next times of a job cost as much as some thousand characters.
    characters += len(page.items) * _NEXT_COUNT * 1_000 if "next" in selection.expand else 0
    return await in_thread_if_large(lambda: selection.fit_page(page_document(page, request, show)), characters)


def _expanded_job(view: JobView, selection: FieldSelection, queries: Queries, *, in_list: bool = False) -> Document:
    """A job, with its next times if they are selected."""
    document = job_document(view, in_list=in_list, with_payload=selection.shows("payload"))
    if "next" not in selection.expand:
        return document
    job = view.job
    times = [] if job.is_paused else queries.jobs.next_times(job.rule, job.timezone, queries.now(), _NEXT_COUNT)
    return document | {"next": [fire_time_document(time) for time in times]}


async def executions_page(
    page: ResultPage[Execution], request: PageRequest, selection: FieldSelection, queries: Queries
) -> Document:
    """A page of executions with the selected fields."""
    more = await expansions(page.items, selection, queries, in_list=True)
    document = page_document(page, request, lambda execution: execution_document(execution) | more[execution.id])
    return selection.fit_page(document)


async def expansions(
    executions: Sequence[Execution], selection: FieldSelection, queries: Queries, *, in_list: bool = False
) -> dict[ExecutionId, Document]:
    """The expansions of each execution, read by one statement for all of them."""
    more: dict[ExecutionId, Document] = {execution.id: {} for execution in executions}
    if "job" in selection.expand:
        jobs = await queries.jobs.views_by_id(executions)
        documents = await in_thread_if_large(
            lambda: {id_: job_document(view, in_list=in_list) for id_, view in jobs.items()},
            sum(len(view.job.payload) for view in jobs.values()),
        )
        for execution in executions:
            more[execution.id]["job"] = documents.get(execution.job_id)
    if "attempts" in selection.expand:
        attempts = await queries.executions.attempts(executions)
        for execution in executions:
            more[execution.id]["attempts"] = attempt_documents(execution, attempts[execution.id])
    return more


def attempt_documents(execution: Execution, attempts: Sequence[Attempt]) -> list[Document]:
    """Every attempt: failed ones are stored one by one, the one that runs or succeeded is the execution itself."""
    failed = [attempt_document(attempt) for attempt in attempts]
    if execution.started_at is None or execution.state not in (ExecutionState.RUNNING, ExecutionState.SUCCEEDED):
        return failed
    error = dict.fromkeys(("error_type", "error", "traceback", "top_frame", "fingerprint"))
    last = {
        "number": execution.attempts,
        "worker": show_worker(execution.worker),
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
        "outcome": execution.state,
        "is_expected": False,
    }
    return [*failed, last | error]


MAX_WAIT = timedelta(seconds=60)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def _wait(
    wait: Annotated[
        str | None,
        Query(
            max_length=20,
            description="How long to wait until the execution finishes, such as `30s`; at most 60 seconds.",
        ),
    ] = None,
) -> timedelta:
    """How long the caller wants to wait; checked before anything is done."""
    span = timedelta(0) if wait is None else parse_duration(wait, "wait")
    if span > MAX_WAIT:
        raise unexpected_value("wait", wait, "at most 60s")
    return span


WaitParam = Annotated[timedelta, Depends(_wait)]


async def wait_for_execution(context: ApiContext, execution_id: ExecutionId, wait: timedelta) -> Response:
    """The finished execution (200), or the unfinished one after the wait (202); the wait ends early if the process stops."""
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + wait.total_seconds(), _FIRST_PAUSE
    while loop.time() < deadline and not context.live.is_closed:
        if (await context.queries.executions.find(str(execution_id))).state.is_final:
            return await execution_response(context, execution_id, 200)
        await asyncio.sleep(min(pause, max(deadline - loop.time(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return await execution_response(context, execution_id, 202)


async def execution_response(context: ApiContext, execution_id: ExecutionId, status: int) -> Response:
    """A full execution as a response."""
    view = await context.queries.executions.view(str(execution_id))
    headers = {"Location": f"/api/v1/executions/{format_execution_id(execution_id)}"} if status == 202 else None
    return json_response(full_execution_document(view), status, headers)
