"""More than a thing usually tells: its job, its attempts, its next times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends

from timeball.api.schemas.executions import ExecutionFull, ExecutionOut
from timeball.api.schemas.jobs import JobOut
from timeball.api.shape import Shape, shape_of
from timeball.api.views import (
    Document,
    attempt_document,
    execution_document,
    fire_time_document,
    job_document,
    off_loop,
    page_document,
    show_worker,
)
from timeball.domain.execution import Attempt, Execution, ExecutionState
from timeball.domain.ids import ExecutionId
from timeball.domain.search import Page, PageRequest
from timeball.insights import Insights, JobView

_NEXT = 5

JobShape = Annotated[Shape, Depends(shape_of(JobOut, ("next",)))]
ExecutionShape = Annotated[Shape, Depends(shape_of(ExecutionOut, ("job", "attempts")))]
FullExecutionShape = Annotated[Shape, Depends(shape_of(ExecutionFull, ("job", "attempts")))]


async def job_answer(view: JobView, shape: Shape, insights: Insights) -> Document:
    """A job in the shape that was asked for."""
    return await off_loop(lambda: shape.fit(_expanded_job(view, shape, insights)), len(view.job.payload))


async def jobs_page(page: Page[JobView], request: PageRequest, shape: Shape, insights: Insights) -> Document:
    """A page of jobs in the shape that was asked for; large payloads are left out."""

    def show(view: JobView) -> Document:
        return _expanded_job(view, shape, insights, in_list=True)

    shown = shape.shows("payload")
    characters = sum(len(view.job.payload) for view in page.items) if shown else 0
    # Next times are as much work as some thousand characters.
    characters += len(page.items) * _NEXT * 1_000 if "next" in shape.expand else 0
    return await off_loop(lambda: shape.fit_page(page_document(page, request, show)), characters)


def _expanded_job(view: JobView, shape: Shape, insights: Insights, *, in_list: bool = False) -> Document:
    """A job, with its next times if they were asked for."""
    document = job_document(view, in_list=in_list, with_payload=shape.shows("payload"))
    if "next" not in shape.expand:
        return document
    job = view.job
    times = [] if job.is_paused else insights.next_times(job.rule, job.timezone, insights.now(), _NEXT)
    return document | {"next": [fire_time_document(time) for time in times]}


async def executions_page(page: Page[Execution], request: PageRequest, shape: Shape, insights: Insights) -> Document:
    """A page of executions in the shape that was asked for."""
    more = await expansions(page.items, shape, insights, in_list=True)
    document = page_document(page, request, lambda execution: execution_document(execution) | more[execution.id])
    return shape.fit_page(document)


async def expansions(
    executions: Sequence[Execution], shape: Shape, insights: Insights, *, in_list: bool = False
) -> dict[ExecutionId, Document]:
    """What was asked for besides each execution: one statement for all of them."""
    more: dict[ExecutionId, Document] = {execution.id: {} for execution in executions}
    if "job" in shape.expand:
        jobs = await insights.jobs_of(executions)
        documents = await off_loop(
            lambda: {id_: job_document(view, in_list=in_list) for id_, view in jobs.items()},
            sum(len(view.job.payload) for view in jobs.values()),
        )
        for execution in executions:
            more[execution.id]["job"] = documents.get(execution.job_id)
    if "attempts" in shape.expand:
        attempts = await insights.attempts_of(executions)
        for execution in executions:
            more[execution.id]["attempts"] = tries(execution, attempts[execution.id])
    return more


def tries(execution: Execution, attempts: Sequence[Attempt]) -> list[Document]:
    """Every try: those that failed are kept one by one, the one that runs or succeeded is the execution itself."""
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
    }
    return [*failed, last | error]
