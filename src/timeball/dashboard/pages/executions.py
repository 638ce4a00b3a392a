"""Executions: the list, one execution with its log, failed attempts, and the actions on one execution or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.documents import full_execution_document
from timeball.api.models.executions import execution_document, show_worker
from timeball.api.models.system import explanation_document, instant_document
from timeball.api.params import check_payload_search, execution_filter
from timeball.application.queries.executions import ExecutionView
from timeball.dashboard.context import PageContext, PageRouter, Undo, parse_json_field, worker_names
from timeball.dashboard.formatting import parse_instant, pretty_json
from timeball.dashboard.pages.operations import (
    BulkForm,
    ask_to_confirm,
    go_to_operation,
    is_operation,
    retry_undo,
    run_if_confirmed,
    summarize,
)
from timeball.domain.execution import Attempt, Execution, ExecutionState
from timeball.domain.search import ExecutionFilter, ResultPage, where
from timeball.domain.values.ids import format_execution_id
from timeball.errors import InvalidInput

router = PageRouter()


STATUSES = tuple(ExecutionState)
_PAGE = 50


# Executions that workers already hold for their instant are listed, too.
_AHEAD = timedelta(seconds=2)


# The log is written beside the outcome; so long after the end no more lines come.
_LOG_GRACE = timedelta(minutes=1)


def parse_execution_filter(context: PageContext, q: str, status: str) -> ExecutionFilter:
    """The filter of a search text and a status."""
    filter_ = execution_filter(q=q or None, status=[status] if status else None)
    check_payload_search(filter_, context.caller)
    return filter_


def default_until(context: PageContext) -> datetime:
    """The end of the list without a search: it shows what is due now, not what is scheduled for later."""
    return context.site.queries.now() + _AHEAD


@router.get("/executions")
async def list_executions(context: PageContext) -> Response:
    """All executions, the latest first, or those that match."""
    q, status = context.query("q"), context.query("status")
    error: InvalidInput | None = None
    page: ResultPage[Execution] = ResultPage([])
    try:
        filter_ = parse_execution_filter(context, q, status)
        if not (q or status):
            filter_ = ExecutionFilter((*filter_.terms, *where(before=default_until(context))))
        page = await context.site.queries.executions.page(filter_, context.page_request(_PAGE))
    except InvalidInput as problem:
        error = problem
    return context.page(
        "executions.html",
        part="partials/executions_list.html",
        rows=await named_execution_rows(context, page.items),
        page=page,
        q=q,
        status=status,
        statuses=STATUSES,
        error=error,
        is_filtered=bool(q or status),
    )


@router.get("/executions/{execution}")
async def execution_page(context: PageContext) -> Response:
    """One execution in full."""
    view = await context.site.queries.executions.view(context.path["execution"])
    (run,) = await named_execution_rows(context, [view.execution])
    now, ended_at = context.site.queries.now(), view.execution.finished_at
    return context.page(
        "execution.html",
        part="partials/execution_body.html",
        run=full_execution_document(view) | {name: run[name] for name in ("job_name", "lateness_ms")},
        steps=state_history(view, now),
        workers=await worker_names(context),
        is_over=view.execution.state.is_final,
        is_settled=ended_at is not None and now - ended_at > _LOG_GRACE,
    )


@router.get("/executions/{execution}/why")
async def why(context: PageContext) -> Response:
    """Why an execution is in its state, check by check."""
    explanation = await context.site.queries.explain.execution(context.path["execution"])
    return _why_page(context, explanation_document(explanation), "execution")


@router.get("/jobs/{job}/why")
async def why_job(context: PageContext) -> Response:
    """Why a job does not run; or what became of it at an instant."""
    job, at, queries = context.path["job"], context.query("at"), context.site.queries
    problem: InvalidInput | None = None
    try:
        if at:
            return _why_page(context, instant_document(await queries.instants.of_job(job, at)), "job")
    except InvalidInput as refused:
        problem = refused
    return _why_page(context, explanation_document(await queries.explain.job(job)), "job", problem)


def _why_page(
    context: PageContext, explanation: dict[str, Any], about: str, problem: InvalidInput | None = None
) -> Response:
    at = context.query("at")
    return context.page("why.html", part="partials/why.html", why=explanation, about=about, at=at, problem=problem)


@router.post("/executions/{execution}/cancel", Role.OPERATOR)
async def cancel(context: PageContext) -> Response:
    """Cancel an execution: a waiting one ends at once, a running one is asked to stop."""
    execution = context.path["execution"]
    run = await context.api.post("executions", execution, "cancel", body={"reason": context.form.get("reason") or None})
    toast = "Cancelled." if run["state"] == "cancelled" else "Asked to stop."
    return context.go(context.back(f"/executions/{execution}"), toast)


@router.post("/executions/{execution}/retry", Role.OPERATOR)
async def retry(context: PageContext) -> Response:
    """Run an ended execution again as a new one; undo cancels the new one."""
    body: dict[str, Any] = {"reason": context.form.get("reason") or None}
    if "payload" in context.form:
        try:
            body["payload"] = parse_json_field(context.form["payload"], "payload")
        except InvalidInput as problem:
            return await _retry_form(context, context.form["payload"], problem)
    created = await context.api.post("executions", context.path["execution"], "retry", body=body)
    undo = Undo(context.site_url(f"/executions/{created['id']}/cancel"), {"reason": "retried by mistake"})
    stays = context.form.get("stay") == "yes"
    target = context.back("/executions") if stays else context.site_url(f"/executions/{created['id']}")
    return context.go(target, "Retried as a new execution.", undo=undo)


@router.get("/executions/{execution}/retry", Role.EDITOR)
async def retry_form(context: PageContext) -> Response:
    """Retry with another payload; the old execution stays as it is."""
    return await _retry_form(context, None, None)


async def _retry_form(context: PageContext, payload: str | None, problem: InvalidInput | None) -> Response:
    view = await context.site.queries.executions.view(context.path["execution"])
    run = full_execution_document(view)
    return context.page(
        "retry_form.html",
        http_status=200 if problem is None else 422,
        run=run,
        payload=pretty_json(run["payload"]) if payload is None else payload,
        errors={} if problem is None else {"payload": str(problem)},
    )


_VERBS = {"cancel": "cancelled", "retry": "retried"}
_ADDRESS = ("executions", "bulk")


@router.post("/executions/bulk", Role.OPERATOR)
async def bulk_action(context: PageContext) -> Response:
    """Cancel or retry the selected executions, or all that match a search after their number is confirmed."""
    bulk = BulkForm.of(context)
    if bulk.action not in _VERBS or not (bulk.ids or bulk.is_matching):
        return context.go(context.back("/executions"), "Nothing was selected.", kind="bad")
    body: dict[str, Any] = {"action": bulk.action, "reason": bulk.reason}
    if not bulk.is_matching:
        return _bulk_response(context, bulk.action, await context.api.post(*_ADDRESS, body=body | {"ids": bulk.ids}))
    until = bulk.until or ("" if bulk.q or bulk.status else default_until(context).isoformat())
    body["filter"] = {"q": bulk.q or None, "status": [bulk.status] if bulk.status else [], "end_date": until or None}
    result = await run_if_confirmed(context, bulk, _ADDRESS, body)
    if result is not None:
        return _bulk_response(context, bulk.action, result)
    return await ask_to_confirm(context, bulk, _ADDRESS, body, noun="execution", path="/executions/bulk", until=until)


def _bulk_response(context: PageContext, action: str, result: dict[str, Any]) -> Response:
    if is_operation(result):
        return go_to_operation(context, result)
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    created = [item["execution_id"] for item in result["results"] if item["execution_id"]]
    toast = summarize(result["done"], "execution", _VERBS[action], failed)
    return context.go(
        context.back("/executions"), toast, undo=retry_undo(context, created), kind="bad" if failed else "done"
    )


@router.post("/executions/undo", Role.OPERATOR)
async def undo_retries(context: PageContext) -> Response:
    """Cancel the executions that a bulk retry created."""
    body = {"action": "cancel", "ids": context.form.get("ids", "").split(), "reason": "retried by mistake"}
    results = await context.api.post(*_ADDRESS, body=body)
    return context.go(context.back("/executions"), summarize(results["done"], "execution", "cancelled", []))


_LOG_PAGE = 500


@router.get("/executions/{execution}/log")
async def execution_log(context: PageContext) -> Response:
    """Log lines behind a cursor; the headers have the next cursor."""
    log = await context.site.queries.executions.log(
        context.path["execution"], context.query("cursor") or None, _LOG_PAGE
    )
    response = context.page("partials/log_lines.html", lines=log.lines)
    response.headers["X-Next-Cursor"] = log.next_cursor or ""
    response.headers["X-Has-More"] = "yes" if log.has_more else "no"
    return response


_ATTEMPTS_PAGE = 100
_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)


@router.get("/attempts")
async def failed_attempts(context: PageContext) -> Response:
    """The attempts of the last hour that failed, timed out or were lost with their worker, the latest first."""
    since, until = last_hour(context.site.queries.now())
    before = _parse_cursor(context.query("cursor")) or until
    attempts = await context.site.queries.executions.unsuccessful_tries(since, min(before, until), _ATTEMPTS_PAGE + 1)
    rows = await attempt_rows(context, attempts[:_ATTEMPTS_PAGE])
    cursor = rows[-1]["finished_at"].isoformat() if len(attempts) > _ATTEMPTS_PAGE else None
    overview = await context.shared("overview", context.site.queries.metrics.overview)
    total = overview.last_hour.counts
    return context.page(
        "attempts.html",
        part="partials/attempts.html",
        rows=rows,
        cursor=cursor,
        since=since,
        total=total,
        workers=await worker_names(context),
    )


async def attempt_rows(context: PageContext, attempts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Failed attempts as tables show them, each with the name of its job."""
    names = await context.site.queries.jobs.names([row["job_id"] for row in attempts])
    return [_attempt_row(row) | {"job_name": names.get(row["job_id"])} for row in attempts]


def last_hour(now: datetime) -> tuple[datetime, datetime]:
    """The last hour as the metrics count it: sixty whole minutes, including the current one."""
    until = now.replace(second=0, microsecond=0) + _MINUTE
    return until - _HOUR, until


def _attempt_row(row: dict[str, Any]) -> dict[str, Any]:
    took = None if row["started_at"] is None else (row["finished_at"] - row["started_at"]) / timedelta(milliseconds=1)
    return row | {"id": format_execution_id(row["execution_id"]), "worker": show_worker(row["worker"]), "ms": took}


def _parse_cursor(cursor: str) -> datetime | None:
    try:
        at = parse_instant(cursor or None)
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


@dataclass(frozen=True, slots=True)
class StatePeriod:
    """A state of an execution, its start and its duration; None while it lasts."""

    state: str
    at: datetime | None
    took: timedelta | None
    note: str = ""

    @property
    def ms(self) -> float | None:
        return None if self.took is None else self.took / timedelta(milliseconds=1)


def state_history(view: ExecutionView, now: datetime) -> list[StatePeriod]:
    """The states of an execution in order, up to the current one."""
    execution = view.execution
    steps = [StatePeriod("scheduled", execution.scheduled_for, _between(execution.scheduled_for, execution.queued_at))]
    if execution.queued_at is not None:
        steps.append(
            StatePeriod("queued", execution.queued_at, _between(execution.queued_at, first_start(view) or now))
        )
    steps += _attempt_periods(view, now)
    if execution.state is ExecutionState.RETRYING:
        steps.append(StatePeriod("retrying", execution.run_at, None, "next attempt"))
    if execution.state.is_final:
        steps.append(StatePeriod(execution.state.value, execution.finished_at, None, _attempts_note(execution)))
    return steps if execution.state is not ExecutionState.SCHEDULED else steps[:1]


def _attempt_periods(view: ExecutionView, now: datetime) -> list[StatePeriod]:
    execution, failed = view.execution, [attempt for attempt in view.attempts if attempt.started_at is not None]
    steps: list[StatePeriod] = []
    if len(failed) > 1 or (failed and not execution.state.is_final):
        first, last = failed[0], failed[-1]
        steps.append(
            StatePeriod("running", first.started_at, _between(first.started_at, first.finished_at), "first attempt")
        )
        if len(failed) > 1:
            took = _between(first.finished_at, last.finished_at)
            steps.append(StatePeriod("retrying", first.finished_at, took, f"then attempt {len(failed)}"))
    is_last_open = execution.started_at is not None and (not failed or _is_further_attempt(execution, view))
    if is_last_open or (execution.started_at is not None and not steps):
        end = execution.finished_at or now
        steps.append(StatePeriod("running", execution.started_at, _between(execution.started_at, end)))
    return steps


def _is_further_attempt(execution: Execution, view: ExecutionView) -> bool:
    return execution.state in (ExecutionState.RUNNING, ExecutionState.SUCCEEDED) and bool(view.attempts)


def first_start_lateness_ms(execution: Execution, attempts: Sequence[Attempt]) -> float | None:
    """How long after its instant the first attempt started. Later attempts do not count: they wait for their backoff."""
    late = _between(execution.scheduled_for, min(_starts(execution, attempts), default=None))
    return None if late is None else late / timedelta(milliseconds=1)


def first_start(view: ExecutionView) -> datetime | None:
    """When the first attempt started; the end of the execution if there was none."""
    return min(_starts(view.execution, view.attempts), default=view.execution.finished_at)


def _starts(execution: Execution, attempts: Sequence[Attempt]) -> list[datetime]:
    starts = [execution.started_at, *(attempt.started_at for attempt in attempts)]
    return [at for at in starts if at is not None]


def _between(start: datetime | None, end: datetime | None) -> timedelta | None:
    return None if start is None or end is None else max(end - start, timedelta(0))


def _attempts_note(execution: Execution) -> str:
    return f"after {execution.attempts} attempts" if execution.attempts > 1 else ""


async def named_execution_rows(context: PageContext, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as tables show them, each with the name of its job."""
    names = await context.site.queries.jobs.names([execution.job_id for execution in executions])
    rows = await execution_rows(context, executions)
    return [row | {"job_name": names.get(execution.job_id)} for execution, row in zip(executions, rows, strict=True)]


async def execution_rows(context: PageContext, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as tables show them, with the lateness of their first start."""
    retried = [execution for execution in executions if _has_earlier_attempts(execution)]
    attempts = await context.site.queries.executions.attempts(retried)
    return [
        execution_document(execution)
        | {"lateness_ms": first_start_lateness_ms(execution, attempts.get(execution.id, ()))}
        for execution in executions
    ]


def _has_earlier_attempts(execution: Execution) -> bool:
    return execution.attempts + execution.lost > 1 or execution.state is ExecutionState.RETRYING
