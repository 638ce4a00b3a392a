"""Executions: the list, one execution with its log, failed attempts, and the actions on one execution or many."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.documents import full_execution_document, show_worker
from timeball.api.params import check_payload_search, execution_filter
from timeball.api.resources.system import explanation_document
from timeball.dashboard.context import PageContext, PageRouter, Undo, parse_json_field
from timeball.dashboard.execution_rows import named_execution_rows, state_history
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
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.search import ExecutionFilter, PageRequest, ResultPage, where
from timeball.domain.values.ids import format_execution_id
from timeball.errors import InvalidInput

router = PageRouter()


# Executions: the list, and one execution with its time line, attempts, log, payload, result and why.

STATUSES = tuple(ExecutionState)
_PAGE = 50


# What workers hold ready for its instant is shown already.
_AHEAD = timedelta(seconds=2)


# The log is written beside the outcome: after such a while nothing more comes.
_LOG_GRACE = timedelta(minutes=1)


def parse_execution_filter(context: PageContext, q: str, status: str) -> ExecutionFilter:
    """Which executions are asked for, in words and by a chip."""
    wanted = execution_filter(q=q or None, status=[status] if status else None)
    check_payload_search(wanted, context.caller)
    return wanted


def default_until(context: PageContext) -> datetime:
    """Up to where whoever looks for nothing in particular is shown what there is."""
    return context.site.queries.now() + _AHEAD


@router.get("/executions")
async def list_executions(context: PageContext) -> Response:
    """All executions, the latest first, or those that match."""
    q, status = context.query("q"), context.query("status")
    error: InvalidInput | None = None
    found: ResultPage[Execution] = ResultPage([])
    try:
        request = PageRequest(limit=_PAGE, cursor=context.query("cursor") or None)
        wanted = parse_execution_filter(context, q, status)
        if not (q or status):
            # Whoever looks for nothing in particular means what has come so far, not what lies ahead.
            wanted = ExecutionFilter((*wanted.terms, *where(before=default_until(context))))
        found = await context.site.queries.executions.page(wanted, request)
    except InvalidInput as problem:
        error = problem
    return context.page(
        "executions.html",
        part="partials/executions_list.html",
        rows=await named_execution_rows(context, found.items),
        page=found,
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
        is_over=view.execution.state.is_final,
        is_settled=ended_at is not None and now - ended_at > _LOG_GRACE,
    )


@router.get("/executions/{execution}/why")
async def why(context: PageContext) -> Response:
    """Why an execution is where it is, gate by gate."""
    explanation = await context.site.queries.explain.execution(context.path["execution"])
    return context.page("why.html", part="partials/why.html", why=explanation_document(explanation), about="execution")


@router.get("/jobs/{job}/why")
async def why_job(context: PageContext) -> Response:
    """Why a job does not run."""
    explanation = await context.site.queries.explain.job(context.path["job"])
    return context.page("why.html", part="partials/why.html", why=explanation_document(explanation), about="job")


@router.post("/executions/{execution}/cancel", Role.OPERATOR)
async def cancel(context: PageContext) -> Response:
    """Give an execution up: what waits, at once; what runs is asked to stop."""
    found = context.path["execution"]
    run = await context.api.post("executions", found, "cancel", body={"reason": context.form.get("reason") or None})
    told = "Cancelled." if run["state"] == "cancelled" else "Asked to stop."
    return context.go(context.back(f"/executions/{found}"), told)


@router.post("/executions/{execution}/retry", Role.OPERATOR)
async def retry(context: PageContext) -> Response:
    """Run an ended execution again, as a new one; cancelling that undoes it."""
    body: dict[str, Any] = {"reason": context.form.get("reason") or None}
    if "payload" in context.form:
        try:
            body["payload"] = parse_json_field(context.form["payload"], "payload")
        except InvalidInput as problem:
            return await _retry_form(context, context.form["payload"], problem)
    made = await context.api.post("executions", context.path["execution"], "retry", body=body)
    undo = Undo(context.site_url(f"/executions/{made['id']}/cancel"), {"reason": "retried by mistake"})
    stays = context.form.get("stay") == "yes"
    target = context.back("/executions") if stays else context.site_url(f"/executions/{made['id']}")
    return context.go(target, "Retried, as a new execution.", undo=undo)


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


# What can be done to many executions: those that were selected, or all that match.

_VERBS = {"cancel": "cancelled", "retry": "retried"}
_ADDRESS = ("executions", "bulk")


@router.post("/executions/bulk", Role.OPERATOR)
async def bulk_action(context: PageContext) -> Response:
    """Cancel or retry all selected executions, or all that match; those are counted first, and asked about."""
    bulk = BulkForm.of(context)
    if bulk.action not in _VERBS or not (bulk.ids or bulk.is_matching):
        return context.go(context.back("/executions"), "Nothing was chosen.", kind="bad")
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
    made = [item["execution_id"] for item in result["results"] if item["execution_id"]]
    told = summarize(result["done"], "execution", _VERBS[action], failed)
    return context.go(
        context.back("/executions"), told, undo=retry_undo(context, made), kind="bad" if failed else "done"
    )


@router.post("/executions/undo", Role.OPERATOR)
async def undo_retries(context: PageContext) -> Response:
    """Cancel the executions that a bulk retry made."""
    body = {"action": "cancel", "ids": context.form.get("ids", "").split(), "reason": "retried by mistake"}
    results = await context.api.post(*_ADDRESS, body=body)
    return context.go(context.back("/executions"), summarize(results["done"], "execution", "cancelled", []))


# What a handler says: the lines behind a cursor, in components that follow one another while it runs.

_LOG_PAGE = 500


@router.get("/executions/{execution}/log")
async def execution_log(context: PageContext) -> Response:
    """Some lines, and where the next ones begin."""
    log = await context.site.queries.executions.log(
        context.path["execution"], context.query("cursor") or None, _LOG_PAGE
    )
    response = context.page("partials/log_lines.html", lines=log.lines)
    response.headers["X-Next-Cursor"] = log.next_cursor or ""
    response.headers["X-Has-More"] = "yes" if log.has_more else "no"
    return response


# The tries of the last hour that did not succeed: what the number on the first page counts.

_ATTEMPTS_PAGE = 100
_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)


@router.get("/tries")
async def failed_attempts(context: PageContext) -> Response:
    """Each try that failed, timed out or was lost with its worker, the latest first."""
    since, until = last_hour(context.site.queries.now())
    before = _parse_cursor(context.query("cursor")) or until
    found = await context.site.queries.executions.unsuccessful_tries(since, min(before, until), _ATTEMPTS_PAGE + 1)
    names = await context.site.queries.jobs.names([row["job_id"] for row in found[:_ATTEMPTS_PAGE]])
    rows = [_attempt_row(row) | {"job_name": names.get(row["job_id"])} for row in found[:_ATTEMPTS_PAGE]]
    cursor = rows[-1]["finished_at"].isoformat() if len(found) > _ATTEMPTS_PAGE else None
    overview = await context.shared("overview", context.site.queries.metrics.overview)
    total = overview.last_hour.counts
    return context.page("tries.html", part="partials/tries.html", rows=rows, cursor=cursor, since=since, total=total)


def last_hour(now: datetime) -> tuple[datetime, datetime]:
    """The last hour as the numbers count it: sixty whole minutes, the one that has begun among them."""
    until = now.replace(second=0, microsecond=0) + _MINUTE
    return until - _HOUR, until


def _attempt_row(row: dict[str, Any]) -> dict[str, Any]:
    took = None if row["started_at"] is None else (row["finished_at"] - row["started_at"]) / timedelta(milliseconds=1)
    return row | {"id": format_execution_id(row["execution_id"]), "worker": show_worker(row["worker"]), "ms": took}


def _parse_cursor(cursor: str) -> datetime | None:
    try:
        found = parse_instant(cursor or None)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
