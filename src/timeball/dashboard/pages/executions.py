"""Executions: the list, and one execution with its time line, attempts, log, payload, result and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.views import execution_document, full_execution_document
from timeball.api.wishes import check_search, execution_filter
from timeball.dashboard.pages.job_form import read_json
from timeball.dashboard.pages.state_line import late_ms, state_line
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Undo, Visit
from timeball.dashboard.wording import pretty
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.search import ExecutionFilter, Page, PageRequest
from timeball.errors import InvalidInput

pages = Pages()
STATUSES = tuple(ExecutionState)
_PAGE = 50
# What workers hold ready for its instant is shown already.
_AHEAD = timedelta(seconds=2)
# The log is written beside the outcome: after such a while nothing more comes.
_LAST_WORDS = timedelta(minutes=1)


def wanted_executions(visit: Visit, q: str, status: str) -> ExecutionFilter:
    """Which executions are asked for, in words and by a chip."""
    wanted = execution_filter(q=q or None, status=[status] if status else None)
    check_search(wanted, visit.caller)
    return wanted


def so_far(visit: Visit) -> datetime:
    """Up to where whoever looks for nothing in particular is shown what there is."""
    return visit.site.insights.now() + _AHEAD


@pages.get("/executions")
async def list_executions(visit: Visit) -> Response:
    """All executions, the latest first, or those that match."""
    q, status = visit.query("q"), visit.query("status")
    error: InvalidInput | None = None
    found: Page[Execution] = Page([])
    try:
        request = PageRequest(limit=_PAGE, cursor=visit.query("cursor") or None)
        wanted = wanted_executions(visit, q, status)
        if not (q or status):
            # Whoever looks for nothing in particular means what has come so far, not what lies ahead.
            wanted = replace(wanted, until=so_far(visit))
        found = await visit.site.insights.executions(wanted, request)
    except InvalidInput as problem:
        error = problem
    return visit.page(
        "executions.html",
        part="partials/executions_list.html",
        rows=await named(visit, found.items),
        page=found,
        q=q,
        status=status,
        statuses=STATUSES,
        error=error,
        is_filtered=bool(q or status),
    )


async def named(visit: Visit, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as they are shown, each with the name of its job."""
    names = await visit.site.insights.job_names([one.job_id for one in executions])
    rows = await timed(visit, executions)
    return [row | {"job_name": names.get(one.job_id)} for one, row in zip(executions, rows, strict=True)]


async def timed(visit: Visit, executions: Sequence[Execution]) -> list[dict[str, Any]]:
    """Executions as they are shown; late is the first start, and a retry that waited for its turn was not."""
    tried = await visit.site.insights.attempts_of([one for one in executions if _was_tried_before(one)])
    return [execution_document(one) | {"lateness_ms": late_ms(one, tried.get(one.id, ()))} for one in executions]


def _was_tried_before(execution: Execution) -> bool:
    return execution.attempts + execution.lost > 1 or execution.state is ExecutionState.RETRYING


@pages.get("/executions/{execution}")
async def show_execution(visit: Visit) -> Response:
    """One execution in full."""
    view = await visit.site.insights.view_execution(visit.path["execution"])
    (run,) = await named(visit, [view.execution])
    now, ended_at = visit.site.insights.now(), view.execution.finished_at
    return visit.page(
        "execution.html",
        part="partials/execution_body.html",
        run=full_execution_document(view) | {name: run[name] for name in ("job_name", "lateness_ms")},
        steps=state_line(view, now),
        is_over=view.execution.state.is_final,
        is_settled=ended_at is not None and now - ended_at > _LAST_WORDS,
    )


@pages.get("/executions/{execution}/why")
async def why(visit: Visit) -> Response:
    """Why an execution is where it is, gate by gate."""
    found = await visit.api.get("executions", visit.path["execution"], "explain")
    return visit.page("why.html", part="partials/why.html", why=found, about="execution")


@pages.get("/jobs/{job}/why")
async def why_job(visit: Visit) -> Response:
    """Why a job does not run."""
    found = await visit.api.get("jobs", visit.path["job"], "explain")
    return visit.page("why.html", part="partials/why.html", why=found, about="job")


@pages.post("/executions/{execution}/cancel", Role.OPERATOR)
async def cancel(visit: Visit) -> Response:
    """Give an execution up: what waits, at once; what runs is asked to stop."""
    found = visit.path["execution"]
    run = await visit.api.post("executions", found, "cancel", body={"reason": visit.form.get("reason") or None})
    told = "Cancelled." if run["state"] == "cancelled" else "Asked to stop."
    return visit.go(visit.back(f"/executions/{found}"), told)


@pages.post("/executions/{execution}/retry", Role.OPERATOR)
async def retry(visit: Visit) -> Response:
    """Run an ended execution again, as a new one; cancelling that undoes it."""
    body: dict[str, Any] = {"reason": visit.form.get("reason") or None}
    if "payload" in visit.form:
        try:
            body["payload"] = read_json(visit.form["payload"], "payload")
        except InvalidInput as problem:
            return await _retry_form(visit, visit.form["payload"], problem)
    made = await visit.api.post("executions", visit.path["execution"], "retry", body=body)
    undo = Undo(visit.site_url(f"/executions/{made['id']}/cancel"), {"reason": "retried by mistake"})
    stays = visit.form.get("stay") == "yes"
    target = visit.back("/executions") if stays else visit.site_url(f"/executions/{made['id']}")
    return visit.go(target, "Retried, as a new execution.", undo=undo)


@pages.get("/executions/{execution}/retry", Role.EDITOR)
async def ask_for_changes(visit: Visit) -> Response:
    """Retry with another payload; the old execution stays as it is."""
    return await _retry_form(visit, None, None)


async def _retry_form(visit: Visit, payload: str | None, problem: InvalidInput | None) -> Response:
    view = await visit.site.insights.view_execution(visit.path["execution"])
    run = full_execution_document(view)
    return visit.page(
        "retry_form.html",
        http_status=200 if problem is None else 422,
        run=run,
        payload=pretty(run["payload"]) if payload is None else payload,
        errors={} if problem is None else {"payload": str(problem)},
    )
