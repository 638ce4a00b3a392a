"""Jobs: the list, and one job with its tabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from timeball.api.views import job_document
from timeball.api.wishes import check_search, execution_filter, job_filter
from timeball.dashboard import charts
from timeball.dashboard.pages.executions import timed
from timeball.dashboard.pieces import Pieces, when
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import bar_height, span, tone
from timeball.domain.ids import JobId, show_execution
from timeball.domain.ids import show_job as show_job_id
from timeball.domain.job import Job, JobStatus
from timeball.domain.schedule import Once
from timeball.domain.search import ExecutionFilter, JobFilter, JobOrder, Page, PageRequest
from timeball.errors import InvalidInput
from timeball.insights import JobView, RecentRuns

pages = Pages()
STATUSES = ("active", "paused", "finished", "running", "dead")
TABS = ("overview", "executions", "schedule", "settings", "activity")
_PAGE, _STRIP, _LONG_STRIP = 50, 20, 60
_SMALL: dict[str, Any] = {"class": "small"}
# Beyond that the foot of the list says about how many there are.
_MOST_COUNTED = 500


def wanted_jobs(visit: Visit, q: str, status: str) -> JobFilter:
    """Which jobs are asked for, in words and by a chip."""
    wanted = job_filter(q=q or None, status=[status] if status else None)
    check_search(wanted, visit.caller)
    return wanted


@pages.get("/jobs")
async def list_jobs(visit: Visit) -> Response:
    """All jobs, or those that match."""
    q, status = visit.query("q"), visit.query("status")
    with_one_offs = visit.query("all") == "yes"
    error: InvalidInput | None = None
    found: Page[JobView] = Page([])
    try:
        cursor = visit.query("cursor") or None
        request = PageRequest(limit=_PAGE, cursor=cursor, with_total=True, exact_up_to=_MOST_COUNTED)
        wanted = wanted_jobs(visit, q, status)
        # Whoever looks for nothing in particular means the jobs with a name, not every one-off that was ever enqueued.
        is_named = not (q or status or with_one_offs)
        order = JobOrder.NAME if is_named else JobOrder.NEWEST
        found = await visit.site.insights.jobs(replace(wanted, is_named=is_named), order, request)
    except InvalidInput as problem:
        error = problem
    return visit.page(
        "jobs.html",
        part="partials/jobs_list.html",
        rows=await _rows(visit, found.items),
        page=found,
        total=found.total,
        q=q,
        status=status,
        statuses=STATUSES,
        error=error,
        is_filtered=bool(q or status),
        with_one_offs=with_one_offs,
    )


async def _rows(visit: Visit, views: Sequence[JobView]) -> list[dict[str, Any]]:
    strips = await visit.site.insights.recent_runs([view.job.id for view in views], _STRIP)
    queue_page = cache(lambda name: visit.url("/queues/one", name=name))
    return [
        _row(visit.pieces, view, strips[view.job.id]) | {"queue_page": queue_page(view.job.queue)} for view in views
    ]


def _row(pieces: Pieces, view: JobView, runs: RecentRuns) -> dict[str, Any]:
    """A job as the list shows it: put together here, because there are fifty of them and a template takes long for each piece."""
    job, standing = view.job, view.standing
    shown = show_job_id(job.id)
    path = f"/jobs/{shown}"
    return {
        "id": shown,
        "href": pieces.site_url(path),
        "name": job.name,
        "handler": job.handler,
        "queue": job.queue,
        "state": pieces.state(view.status),
        "words": "Once, " + when(job.rule.scheduled_at) if isinstance(job.rule, Once) else words_of(job),
        "strip": _drawn(runs),
        "last_page": standing.last_id and pieces.site_url(f"/executions/{show_execution(standing.last_id)}"),
        "last_state": standing.last_state and pieces.state(standing.last_state),
        "last_at": when(standing.last_finished_at),
        "next": when(standing.next_run_at) if standing.next_run_at else "",
        "acts": _acts(pieces, path, view.status),
    }


def _acts(pieces: Pieces, path: str, status: JobStatus) -> Markup:
    """What can be done to a job from its row."""
    word = "Resume" if status is JobStatus.PAUSED else "Pause"
    trigger = pieces.action(f"{path}/trigger", "Trigger", fields={"stay": "yes"}, key="t", **_SMALL)
    return trigger + " " + pieces.action(f"{path}/{word.lower()}", word, key="p", **_SMALL)


def _drawn(runs: RecentRuns) -> Markup | str:
    """The latest runs as small bars; nothing if there are none."""
    states, spans = runs
    if not states:
        return ""
    good = states.count("succeeded")
    label = f"The latest {len(states)} runs: {good} succeeded; took {span(min(spans))} to {span(max(spans))}"
    return charts.strip([bar_height(one) for one in spans], [tone(state) for state in states], label, _STRIP)


def words_of(job: Job) -> str:
    """When a job runs, in plain words."""
    return job.rule.describe().partition(", counted from")[0]


@pages.get("/jobs/{job}")
async def show_job(visit: Visit) -> Response:
    """One job: what it is, how it goes, when it runs, what was changed."""
    view = await visit.site.insights.view_job(visit.path["job"])
    tab = visit.query("tab", "overview") if visit.query("tab") in TABS else "overview"
    context = await _TABS[tab](visit, view.job)
    return visit.page(
        "job.html",
        part="partials/job_body.html",
        job=job_document(view),
        words=words_of(view.job),
        tab=tab,
        tabs=TABS,
        **context,
    )


async def _overview(visit: Visit, job: Job) -> dict[str, Any]:
    runs = (await visit.site.insights.recent_runs([job.id], _LONG_STRIP))[job.id]
    times = visit.site.insights.next_times(job.rule, job.timezone, visit.site.insights.now(), 5)
    latest = await _executions(visit, job.id, None, 8)
    return {"runs": runs, "times": times, "latest": latest[0]}


async def _executions_tab(visit: Visit, job: Job) -> dict[str, Any]:
    rows, page = await _executions(visit, job.id, visit.query("cursor") or None, _PAGE, visit.query("status"))
    return {"rows": rows, "page": page}


async def _executions(
    visit: Visit, job_id: JobId, cursor: str | None, limit: int, status: str = ""
) -> tuple[list[dict[str, Any]], Page[Any]]:
    states = execution_filter(status=[status] if status else None).states
    wanted = ExecutionFilter(job_id=job_id, states=states)
    page = await visit.site.insights.executions(wanted, PageRequest(limit=limit, cursor=cursor))
    return await timed(visit, page.items), page


async def _schedule(visit: Visit, job: Job) -> dict[str, Any]:
    insights = visit.site.insights
    now = insights.now()
    times = insights.next_times(job.rule, job.timezone, now, 20)
    return {"times": times, "changes": insights.clock_changes(job.rule, now, 4)}


async def _settings(_visit: Visit, _job: Job) -> dict[str, Any]:
    return {}


async def _activity(visit: Visit, job: Job) -> dict[str, Any]:
    """How it came to be as it is: who changed what, when and why."""
    found = await visit.api.get("jobs", show_job_id(job.id), "revisions", limit=50, cursor=visit.query("cursor"))
    changes = [
        revision
        | {"before": revision["version"] != 1, "differences": [tuple(one.values()) for one in revision["changes"]]}
        for revision in found["data"]
    ]
    return {"changes": changes, "page": found}


_TABS = {
    "overview": _overview,
    "executions": _executions_tab,
    "schedule": _schedule,
    "settings": _settings,
    "activity": _activity,
}
