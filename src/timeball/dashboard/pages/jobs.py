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
from timeball.api.documents import resolved_payload_document
from timeball.api.models.jobs import job_document
from timeball.api.params import check_payload_search, execution_filter, job_filter
from timeball.api.resources.system import revision_document
from timeball.application.queries.metrics import MetricsScope
from timeball.dashboard import charts
from timeball.dashboard.components import Components, time_tag
from timeball.dashboard.context import PageContext, PageRouter, Undo, typed_instant
from timeball.dashboard.formatting import format_milliseconds, log_height, state_tone
from timeball.dashboard.history import history_of
from timeball.dashboard.pages.executions import default_until, execution_rows, named_execution_rows
from timeball.dashboard.pages.freezes import freeze_rows
from timeball.dashboard.pages.ledger import ledger_tab
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
from timeball.domain.execution import ExecutionState
from timeball.domain.job import Job, JobStatus, JobView, calendar_of
from timeball.domain.payload_references import VersionSchedule
from timeball.domain.scheduling.civil_time import load_zone
from timeball.domain.scheduling.schedule import Once
from timeball.domain.search import ExecutionFilter, JobFilter, JobOrder, PageRequest, RecentRuns, ResultPage, where
from timeball.domain.values.ids import JobId, format_execution_id
from timeball.domain.values.ids import format_job_id as show_job_id
from timeball.domain.values.text import check_label
from timeball.errors import InvalidInput

router = PageRouter()


STATUSES = ("active", "paused", "finished", "running", "dead")
TABS = ("overview", "executions", "ledger", "schedule", "settings", "activity")
_PAGE, _STRIP, _LONG_STRIP = 50, 20, 60
_TAG_RUNS = 10
_NEXT_DAYS = 5
_SMALL: dict[str, Any] = {"class": "small"}


# More jobs than this are estimated.
_MAX_COUNTED = 500


def parse_job_filter(context: PageContext, q: str, status: str) -> JobFilter:
    """The filter of a search text and a status."""
    filter_ = job_filter(q=q or None, status=[status] if status else None)
    check_payload_search(filter_, context.caller)
    return filter_


@router.get("/jobs")
async def list_jobs(context: PageContext) -> Response:
    """All jobs, or those that match."""
    q, status = context.query("q"), context.query("status")
    with_one_offs = context.query("all") == "yes"
    error: InvalidInput | None = None
    page: ResultPage[JobView] = ResultPage([])
    try:
        cursor = context.query("cursor") or None
        request = PageRequest(limit=_PAGE, cursor=cursor, with_total=True, exact_up_to=_MAX_COUNTED)
        filter_ = parse_job_filter(context, q, status)
        # Without a search, the list shows the jobs with a name, and not every enqueued one-off.
        is_named = not (q or status or with_one_offs)
        order = JobOrder.NAME if is_named else JobOrder.NEWEST
        page = await context.site.queries.jobs.page(replace(filter_, is_named=is_named), order, request)
    except InvalidInput as problem:
        error = problem
    return context.page(
        "jobs.html",
        part="partials/jobs_list.html",
        rows=await _rows(context, page.items),
        page=page,
        total=page.total,
        q=q,
        status=status,
        statuses=STATUSES,
        error=error,
        is_filtered=bool(q or status),
        with_one_offs=with_one_offs,
    )


@router.get("/tags/{tag:path}")
async def tag_page(context: PageContext) -> Response:
    """The jobs of a tag; its executions and failures are a part of their own, because searching for them may take two seconds."""
    tag, queries = check_label(context.path["tag"], "tag"), context.site.queries
    if context.is_partial and context.query("part") == "runs":
        return context.page("partials/tag_runs.html", tag=tag, **await _tag_runs(context, tag))
    page = await queries.jobs.page(JobFilter(where(tag=tag)), JobOrder.NEWEST, context.page_request(_PAGE))
    return context.page("tag.html", part="partials/tag.html", tag=tag, rows=await _rows(context, page.items), page=page)


async def _tag_runs(context: PageContext, tag: str) -> dict[str, Any]:
    latest = ExecutionFilter(where(tag=tag, before=default_until(context)))
    dead = ExecutionFilter(where(tag=tag, status=ExecutionState.DEAD))
    lists = {}
    for name, filter_ in (("latest", latest), ("dead", dead)):
        page = await context.site.queries.executions.page(filter_, PageRequest(limit=_TAG_RUNS))
        lists[name] = {"rows": await named_execution_rows(context, page.items), "page": page}
    return lists


async def _rows(context: PageContext, views: Sequence[JobView]) -> list[dict[str, Any]]:
    strips = await context.site.queries.jobs.recent_runs([view.job.id for view in views], _STRIP)
    queue_page = cache(lambda name: context.url("/queues/one", name=name))
    return [
        _row(context.components, view, strips[view.job.id]) | {"queue_page": queue_page(view.job.queue)}
        for view in views
    ]


def _row(components: Components, view: JobView, runs: RecentRuns) -> dict[str, Any]:
    """A job as the list shows it; built in Python, because a template is slow for fifty of them."""
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
        "next": _next_words(view),
        "acts": _row_actions(components, path, view.status),
    }


def _next_words(view: JobView) -> Markup | str:
    """When a job runs next, or when its pause ends."""
    until = view.job.paused_until
    if view.status is JobStatus.PAUSED and until is not None:
        return Markup('<span class="soft">resumes</span> ') + time_tag(until)
    return time_tag(view.situation.next_run_at) if view.situation.next_run_at else ""


def _row_actions(components: Components, path: str, status: JobStatus) -> Markup:
    """The buttons of a row."""
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
    return charts.strip([log_height(span) for span in spans], [state_tone(state) for state in states], label, _STRIP)


def schedule_text(job: Job) -> str:
    """When a job runs, in plain words."""
    return job.rule.describe().partition(", counted from")[0]


@router.get("/jobs/{job}")
async def job_page(context: PageContext) -> Response:
    """One job: what it is, how it goes, when it runs, what was changed."""
    view = await context.site.queries.jobs.view(context.path["job"])
    tab = context.query("tab", "overview") if context.query("tab") in TABS else "overview"
    if context.is_partial and context.query("part") == "history":
        return context.page("partials/history.html", history=await _history(context, view.job))
    variables = await _TABS[tab](context, view.job)
    # A one-off has no rollups of its own: it is one run.
    if tab == "overview" and not context.is_partial and not isinstance(view.job.rule, Once):
        variables["history"] = await _history(context, view.job)
    freezes = await freeze_rows(context, await context.site.queries.jobs.freezes_of(view.job))
    return context.page(
        "job.html",
        part="partials/job_body.html",
        job=job_document(view),
        words=schedule_text(view.job),
        tab=tab,
        tabs=TABS,
        freezes=freezes,
        **variables,
    )


async def _history(context: PageContext, job: Job) -> dict[str, Any]:
    return await history_of(context, f"/jobs/{show_job_id(job.id)}", MetricsScope(job_id=job.id))


async def _overview(context: PageContext, job: Job) -> dict[str, Any]:
    runs = (await context.site.queries.jobs.recent_runs([job.id], _LONG_STRIP))[job.id]
    times = await context.site.queries.jobs.next_times_of(job, 5)
    schedule = VersionSchedule(job.rule, job.timezone)
    payload = context.site.queries.jobs.next_payload(job.payload, schedule, times, job.id)
    latest = await _executions(context, job.id, None, 8)
    return {"runs": runs, "latest": latest[0], "next_payload": resolved_payload_document(payload)}


async def _executions_tab(context: PageContext, job: Job) -> dict[str, Any]:
    rows, page = await _executions(context, job.id, context.query("cursor") or None, _PAGE, context.query("status"))
    return {"rows": rows, "page": page}


async def _executions(
    context: PageContext, job_id: JobId, cursor: str | None, limit: int, status: str = ""
) -> tuple[list[dict[str, Any]], ResultPage[Any]]:
    filter_ = replace(execution_filter(status=[status]) if status else ExecutionFilter(), job_id=job_id)
    page = await context.site.queries.executions.page(filter_, PageRequest(limit=limit, cursor=cursor))
    return await execution_rows(context, page.items), page


async def _schedule(context: PageContext, job: Job) -> dict[str, Any]:
    queries = context.site.queries
    times = await queries.jobs.next_times_of(job, 20)
    rule = calendar_of(job.rule)
    today = queries.now().astimezone(load_zone(job.timezone)).date()
    calendars = [
        {"name": one.name, "is_skipped": is_skipped, "next_days": one.days.from_day(today, _NEXT_DAYS)}
        for versions, is_skipped in (() if rule is None else ((rule.skip_on, True), (rule.only_on, False)))
        for one in versions
    ]
    return {"times": times, "calendars": calendars, "changes": queries.jobs.clock_changes(job.rule, queries.now(), 4)}


async def _settings(_context: PageContext, _job: Job) -> dict[str, Any]:
    return {}


async def _activity(context: PageContext, job: Job) -> dict[str, Any]:
    """The changes of a job, the latest first."""
    page = await context.site.queries.jobs.revisions(show_job_id(job.id), context.page_request(_PAGE))
    revisions = await asyncio.to_thread(lambda: [revision_document(revision) for revision in page.items])
    changes = [
        revision
        | {
            "before": revision["version"] != 1,
            "differences": [tuple(change.values()) for change in revision["changes"]],
        }
        for revision in revisions
    ]
    return {"changes": changes, "page": page}


_TABS = {
    "overview": _overview,
    "executions": _executions_tab,
    "ledger": ledger_tab,
    "schedule": _schedule,
    "settings": _settings,
    "activity": _activity,
}


# The bulk actions: the last step of the path in the API, and the word of the toast.
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
    """Pause a job, without end or until an instant; can be undone."""
    job = context.path["job"]
    body = {"reason": context.form.get("reason") or None, "until": context.form.get("until") or None}
    paused = await context.api.post("jobs", job, "pause", body=body)
    undo = Undo(context.site_url(f"/jobs/{paused['id']}/resume"), {})
    return context.go(context.back(f"/jobs/{job}"), f"{_name(paused)} is paused.", undo=undo)


@router.post("/jobs/{job}/resume", Role.OPERATOR)
async def resume(context: PageContext) -> Response:
    """Resume a paused job; can be undone."""
    job = context.path["job"]
    before = job_document(await context.site.queries.jobs.view(job))
    resumed = await context.api.post("jobs", job, "resume", body={"reason": context.form.get("reason") or None})
    until = before["paused_until"]
    fields = {"reason": before["pause_reason"] or "", "until": "" if until is None else until.isoformat()}
    undo = Undo(context.site_url(f"/jobs/{resumed['id']}/pause"), fields)
    return context.go(context.back(f"/jobs/{job}"), f"{_name(resumed)} is resumed.", undo=undo)


@router.post("/jobs/{job}/trigger", Role.OPERATOR)
async def trigger(context: PageContext) -> Response:
    """Run a job now, and go to its execution; undo cancels it."""
    run = await context.api.post(
        "jobs", context.path["job"], "trigger", body={"reason": context.form.get("reason") or None}
    )
    undo = Undo(context.site_url(f"/executions/{run['id']}/cancel"), {"reason": "triggered by mistake"})
    stays = context.form.get("stay") == "yes"
    target = context.back("/jobs") if stays else context.site_url(f"/executions/{run['id']}")
    return context.go(target, "Triggered.", undo=undo)


@router.post("/jobs/{job}/delete", Role.EDITOR)
async def delete(context: PageContext) -> Response:
    """Delete a job; its history stays."""
    await context.api.delete("jobs", context.path["job"], reason=context.form.get("reason"))
    return context.go(context.site_url("/jobs"), "Deleted. Its history stays.")


@router.post("/jobs/{job}/duplicate", Role.EDITOR)
async def duplicate(context: PageContext) -> Response:
    """Create a copy of a job, and open its form."""
    copy = await context.api.post("jobs", context.path["job"], "duplicate")
    return context.go(context.site_url(f"/jobs/{copy['id']}/edit"), f"{_name(copy)} is a copy; change what differs.")


@router.post("/jobs/bulk", Role.OPERATOR)
async def bulk_action(context: PageContext) -> Response:
    """Do the same to the selected jobs, or to all that match a search after their number is confirmed."""
    bulk = BulkForm.of(context)
    if bulk.action not in _VERBS or not (bulk.ids or bulk.is_matching):
        return context.go(context.back("/jobs"), "Nothing was selected.", kind="bad")
    address = ("jobs", "bulk", bulk.action)
    body: dict[str, Any] = {"reason": bulk.reason}
    if bulk.action == "pause" and bulk.pause_until:
        body["until"] = typed_instant(context, "pause_until")
    if not bulk.is_matching:
        return _bulk_response(context, bulk, await context.api.post(*address, body=body | {"ids": bulk.ids}))
    # As the list: without a search, only the jobs with a name.
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
    toast = summarize(result["done"], "job", _VERBS[bulk.action], failed)
    undo = _undo_of(context, bulk.action, [item for item in result["results"] if item["status"] == "done"])
    return context.go(context.back("/jobs"), toast, undo=undo, kind="bad" if failed else "done")


def _undo_of(context: PageContext, action: str, done: list[dict[str, Any]]) -> Undo | None:
    """The opposite action: cancel the new executions, resume or pause the jobs."""
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
        return context.go(context.back("/jobs"), "Nothing was selected.", kind="bad")
    body = {"ids": context.form.get("ids", "").split(), "reason": f"{_VERBS[_OPPOSITES[action]]} by mistake"}
    result = await context.api.post("jobs", "bulk", action, body=body)
    return context.go(context.back("/jobs"), summarize(result["done"], "job", _VERBS[action], []))


def _name(job: dict[str, Any]) -> str:
    return str(job["name"] or job["id"])
