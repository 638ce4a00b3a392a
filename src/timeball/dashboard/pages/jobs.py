"""Jobs: the list, one job with its tabs, and the actions on one job or many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.documents import job_document
from timeball.api.params import check_payload_search, execution_filter, job_filter
from timeball.api.resources.system import revision_document
from timeball.application.queries.jobs import JobView
from timeball.dashboard import charts
from timeball.dashboard.components import Components, time_tag
from timeball.dashboard.context import PageContext, PageRouter, Undo
from timeball.dashboard.execution_rows import execution_rows
from timeball.dashboard.formatting import format_milliseconds, log_height, state_tone
from timeball.dashboard.pages.operations import (
    MAX_UNDO_IDS,
    BulkForm,
    ask_to_confirm,
    go_to_operation,
    is_operation,
    retry_undo,
    run_if_confirmed,
    summarize,
)
from timeball.domain.job import Job, JobStatus
from timeball.domain.scheduling.schedule import Once
from timeball.domain.search import JobFilter, JobOrder, PageRequest, RecentRuns, ResultPage
from timeball.domain.values.ids import JobId, format_execution_id
from timeball.domain.values.ids import format_job_id as show_job_id
from timeball.errors import InvalidInput

router = PageRouter()


# Jobs: the list, and one job with its tabs.

STATUSES = ("active", "paused", "finished", "running", "dead")
TABS = ("overview", "executions", "schedule", "settings", "activity")
_PAGE, _STRIP, _LONG_STRIP = 50, 20, 60
_SMALL: dict[str, Any] = {"class": "small"}


# Beyond that the foot of the list says about how many there are.
_MAX_COUNTED = 500


def parse_job_filter(context: PageContext, q: str, status: str) -> JobFilter:
    """Which jobs are asked for, in words and by a chip."""
    wanted = job_filter(q=q or None, status=[status] if status else None)
    check_payload_search(wanted, context.caller)
    return wanted


@router.get("/jobs")
async def list_jobs(context: PageContext) -> Response:
    """All jobs, or those that match."""
    q, status = context.query("q"), context.query("status")
    with_one_offs = context.query("all") == "yes"
    error: InvalidInput | None = None
    found: ResultPage[JobView] = ResultPage([])
    try:
        cursor = context.query("cursor") or None
        request = PageRequest(limit=_PAGE, cursor=cursor, with_total=True, exact_up_to=_MAX_COUNTED)
        wanted = parse_job_filter(context, q, status)
        # Whoever looks for nothing in particular means the jobs with a name, not every one-off that was ever enqueued.
        is_named = not (q or status or with_one_offs)
        order = JobOrder.NAME if is_named else JobOrder.NEWEST
        found = await context.site.queries.jobs.page(replace(wanted, is_named=is_named), order, request)
    except InvalidInput as problem:
        error = problem
    return context.page(
        "jobs.html",
        part="partials/jobs_list.html",
        rows=await _rows(context, found.items),
        page=found,
        total=found.total,
        q=q,
        status=status,
        statuses=STATUSES,
        error=error,
        is_filtered=bool(q or status),
        with_one_offs=with_one_offs,
    )


async def _rows(context: PageContext, views: Sequence[JobView]) -> list[dict[str, Any]]:
    strips = await context.site.queries.jobs.recent_runs([view.job.id for view in views], _STRIP)
    queue_page = cache(lambda name: context.url("/queues/one", name=name))
    return [
        _row(context.components, view, strips[view.job.id]) | {"queue_page": queue_page(view.job.queue)}
        for view in views
    ]


def _row(components: Components, view: JobView, runs: RecentRuns) -> dict[str, Any]:
    """A job as the list shows it: put together here, because there are fifty of them and a template takes long for each piece."""
    job, standing = view.job, view.situation
    shown = show_job_id(job.id)
    path = f"/jobs/{shown}"
    return {
        "id": shown,
        "href": components.site_url(path),
        "name": job.name,
        "handler": job.handler,
        "queue": job.queue,
        "state": components.state(view.status),
        "words": "Once, " + time_tag(job.rule.scheduled_at) if isinstance(job.rule, Once) else schedule_text(job),
        "strip": _run_strip(runs),
        "last_page": standing.last_id and components.site_url(f"/executions/{format_execution_id(standing.last_id)}"),
        "last_state": standing.last_state and components.state(standing.last_state),
        "last_at": time_tag(standing.last_finished_at),
        "next": time_tag(standing.next_run_at) if standing.next_run_at else "",
        "acts": _row_actions(components, path, view.status),
    }


def _row_actions(components: Components, path: str, status: JobStatus) -> Markup:
    """What can be done to a job from its row."""
    word = "Resume" if status is JobStatus.PAUSED else "Pause"
    trigger = components.action(f"{path}/trigger", "Trigger", fields={"stay": "yes"}, key="t", **_SMALL)
    return trigger + " " + components.action(f"{path}/{word.lower()}", word, key="p", **_SMALL)


def _run_strip(runs: RecentRuns) -> Markup | str:
    """The latest runs as small bars; nothing if there are none."""
    states, spans = runs
    if not states:
        return ""
    good = states.count("succeeded")
    label = f"The latest {len(states)} runs: {good} succeeded; took {format_milliseconds(min(spans))} to {format_milliseconds(max(spans))}"
    return charts.strip([log_height(one) for one in spans], [state_tone(state) for state in states], label, _STRIP)


def schedule_text(job: Job) -> str:
    """When a job runs, in plain words."""
    return job.rule.describe().partition(", counted from")[0]


@router.get("/jobs/{job}")
async def job_page(context: PageContext) -> Response:
    """One job: what it is, how it goes, when it runs, what was changed."""
    view = await context.site.queries.jobs.view(context.path["job"])
    tab = context.query("tab", "overview") if context.query("tab") in TABS else "overview"
    variables = await _TABS[tab](context, view.job)
    return context.page(
        "job.html",
        part="partials/job_body.html",
        job=job_document(view),
        words=schedule_text(view.job),
        tab=tab,
        tabs=TABS,
        **variables,
    )


async def _overview(context: PageContext, job: Job) -> dict[str, Any]:
    runs = (await context.site.queries.jobs.recent_runs([job.id], _LONG_STRIP))[job.id]
    times = context.site.queries.jobs.next_times(job.rule, job.timezone, context.site.queries.now(), 5)
    latest = await _executions(context, job.id, None, 8)
    return {"runs": runs, "times": times, "latest": latest[0]}


async def _executions_tab(context: PageContext, job: Job) -> dict[str, Any]:
    rows, page = await _executions(context, job.id, context.query("cursor") or None, _PAGE, context.query("status"))
    return {"rows": rows, "page": page}


async def _executions(
    context: PageContext, job_id: JobId, cursor: str | None, limit: int, status: str = ""
) -> tuple[list[dict[str, Any]], ResultPage[Any]]:
    wanted = replace(execution_filter(status=[status] if status else None), job_id=job_id)
    page = await context.site.queries.executions.page(wanted, PageRequest(limit=limit, cursor=cursor))
    return await execution_rows(context, page.items), page


async def _schedule(context: PageContext, job: Job) -> dict[str, Any]:
    queries = context.site.queries
    now = queries.now()
    times = queries.jobs.next_times(job.rule, job.timezone, now, 20)
    return {"times": times, "changes": queries.jobs.clock_changes(job.rule, now, 4)}


async def _settings(_context: PageContext, _job: Job) -> dict[str, Any]:
    return {}


async def _activity(context: PageContext, job: Job) -> dict[str, Any]:
    """How it came to be as it is: who changed what, when and why."""
    page = await context.site.queries.jobs.revisions(show_job_id(job.id), context.page_request(_PAGE))
    revisions = await asyncio.to_thread(lambda: [revision_document(revision) for revision in page.items])
    changes = [
        revision
        | {"before": revision["version"] != 1, "differences": [tuple(one.values()) for one in revision["changes"]]}
        for revision in revisions
    ]
    return {"changes": changes, "page": page}


_TABS = {
    "overview": _overview,
    "executions": _executions_tab,
    "schedule": _schedule,
    "settings": _settings,
    "activity": _activity,
}


# What can be done to a job, or to many: each is a call of the API's own route.


# What is done to each of many jobs: the last step of its path in the API, and how it is told afterwards.
_VERBS = {
    "pause": "paused",
    "resume": "resumed",
    "trigger": "triggered",
    "cancel": "cancelled",
    "retry": "retried",
    "delete": "deleted",
}
_OPPOSITES = {"pause": "resume", "resume": "pause"}


@router.post("/jobs/{job}/pause", Role.OPERATOR)
async def pause(context: PageContext) -> Response:
    """Pause, for ever or until an instant; can be undone."""
    job = context.path["job"]
    body = {"reason": context.form.get("reason") or None, "until": context.form.get("until") or None}
    found = await context.api.post("jobs", job, "pause", body=body)
    undo = Undo(context.site_url(f"/jobs/{found['id']}/resume"), {})
    return context.go(context.back(f"/jobs/{job}"), f"{_name(found)} is paused.", undo=undo)


@router.post("/jobs/{job}/resume", Role.OPERATOR)
async def resume(context: PageContext) -> Response:
    """Let a paused job go on; can be undone."""
    job = context.path["job"]
    found = await context.api.post("jobs", job, "resume", body={"reason": context.form.get("reason") or None})
    undo = Undo(context.site_url(f"/jobs/{found['id']}/pause"), {})
    return context.go(context.back(f"/jobs/{job}"), f"{_name(found)} goes on.", undo=undo)


@router.post("/jobs/{job}/trigger", Role.OPERATOR)
async def trigger(context: PageContext) -> Response:
    """Run a job now, and go to its execution; cancelling undoes it."""
    made = await context.api.post(
        "jobs", context.path["job"], "trigger", body={"reason": context.form.get("reason") or None}
    )
    undo = Undo(context.site_url(f"/executions/{made['id']}/cancel"), {"reason": "triggered by mistake"})
    stays = context.form.get("stay") == "yes"
    target = context.back("/jobs") if stays else context.site_url(f"/executions/{made['id']}")
    return context.go(target, "Triggered.", undo=undo)


@router.post("/jobs/{job}/delete", Role.EDITOR)
async def delete(context: PageContext) -> Response:
    """Take a job out of service; its history stays."""
    await context.api.delete("jobs", context.path["job"], reason=context.form.get("reason"))
    return context.go(context.site_url("/jobs"), "Deleted. Its history stays.")


@router.post("/jobs/{job}/duplicate", Role.EDITOR)
async def duplicate(context: PageContext) -> Response:
    """Make a copy, and open it for editing."""
    made = await context.api.post("jobs", context.path["job"], "duplicate")
    return context.go(context.site_url(f"/jobs/{made['id']}/edit"), f"{_name(made)} is a copy; change what differs.")


@router.post("/jobs/bulk", Role.OPERATOR)
async def bulk_action(context: PageContext) -> Response:
    """The same for all selected jobs, or for all that match; those are counted first, and asked about."""
    bulk = BulkForm.of(context)
    if bulk.action not in _VERBS or not (bulk.ids or bulk.is_matching):
        return context.go(context.back("/jobs"), "Nothing was chosen.", kind="bad")
    address = ("jobs", "bulk", bulk.action)
    body: dict[str, Any] = {"reason": bulk.reason}
    if not bulk.is_matching:
        return _bulk_response(context, bulk, await context.api.post(*address, body=body | {"ids": bulk.ids}))
    # As the list shows them: whoever looks for nothing in particular means the jobs with a name.
    is_named = not (bulk.q or bulk.status or bulk.with_one_offs)
    status = [bulk.status] if bulk.status else []
    body["filter"] = {"q": bulk.q or None, "status": status, "named": is_named}
    result = await run_if_confirmed(context, bulk, address, body)
    if result is not None:
        return _bulk_response(context, bulk, result)
    return await ask_to_confirm(context, bulk, address, body, noun="job", path="/jobs/bulk")


def _bulk_response(context: PageContext, bulk: BulkForm, result: dict[str, Any]) -> Response:
    if is_operation(result):
        return go_to_operation(context, result)
    failed = [item["error"] for item in result["results"] if item["status"] == "failed"]
    told = summarize(result["done"], "job", _VERBS[bulk.action], failed)
    undo = _undo_of(context, bulk.action, [item for item in result["results"] if item["status"] == "done"])
    return context.go(context.back("/jobs"), told, undo=undo, kind="bad" if failed else "done")


def _undo_of(context: PageContext, action: str, done: list[dict[str, Any]]) -> Undo | None:
    """The way back: what was made is cancelled, what was paused is resumed."""
    if action in ("trigger", "retry"):
        return retry_undo(context, [item["execution_id"] for item in done])
    if action in _OPPOSITES and 0 < len(done) <= MAX_UNDO_IDS:
        ids = " ".join(item["id"] for item in done)
        return Undo(context.site_url("/jobs/undo"), {"action": _OPPOSITES[action], "ids": ids})
    return None


@router.post("/jobs/undo", Role.OPERATOR)
async def undo_bulk_action(context: PageContext) -> Response:
    """Resume the jobs that a bulk action paused, or pause those that it resumed."""
    action = context.form.get("action", "")
    if action not in _OPPOSITES:
        return context.go(context.back("/jobs"), "Nothing was chosen.", kind="bad")
    body = {"ids": context.form.get("ids", "").split(), "reason": f"{_VERBS[_OPPOSITES[action]]} by mistake"}
    result = await context.api.post("jobs", "bulk", action, body=body)
    return context.go(context.back("/jobs"), summarize(result["done"], "job", _VERBS[action], []))


def _name(job: dict[str, Any]) -> str:
    return str(job["name"] or job["id"])
