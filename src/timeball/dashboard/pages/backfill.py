"""Backfill: the form that chooses a span and what of it runs, and what it would do, counted while it is being chosen."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.application.queries.ledger import DEFAULT_BEHIND
from timeball.dashboard.context import PageContext, PageRouter, browser_zone, typed_instant, zone_label
from timeball.dashboard.internal_api import ApiProblem, field_errors
from timeball.domain.backfill import MAX_RUNNING
from timeball.domain.job import Job
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.values.ids import format_job_id

router = PageRouter()

_ONLY = (("missing", "what was skipped"), ("failed", "what failed"), ("all", "all of it, also what succeeded"))
_BY = (("versions", "the schedule as it was then"), ("present", "the schedule as it is now"))
_ORDER = (("asc", "the oldest first"), ("desc", "the latest first"))
_BLANK = {"only": "missing", "by": "versions", "order": "asc", "max_running": "1", "priority": "0", "reason": ""}
_SECOND = timedelta(seconds=1)


@router.get("/jobs/{job}/backfill", Role.EDITOR)
async def backfill_form(context: PageContext) -> Response:
    """The form, for the span in the address; for the last week if there is none."""
    job = await context.site.queries.jobs.find(context.path["job"])
    zone = browser_zone(context.request).key
    given = {name: parse_instant(context.query(name), zone, name) for name in ("from", "until") if context.query(name)}
    since, until = given.get("from", context.site.queries.now() - DEFAULT_BEHIND), given.get("until")
    # The fields have whole seconds: the span grows to them.
    span = {"from": _typed(context, since), "until": _typed(context, until + _SECOND) if until else ""}
    return _form(context, job, _BLANK | span)


@router.post("/parts/backfill/{job}", Role.EDITOR)
async def preview_backfill(context: PageContext) -> Response:
    """What the backfill of the form would do; it writes nothing."""
    try:
        preview = await context.api.post(
            "jobs", context.path["job"], "backfill", body=_body(context) | {"dry_run": True}
        )
    except ApiProblem as problem:
        return context.page("partials/backfill_preview.html", problem=problem, preview=None)
    return context.page("partials/backfill_preview.html", problem=None, preview=preview)


@router.post("/jobs/{job}/backfill", Role.EDITOR)
async def start_backfill(context: PageContext) -> Response:
    """Run what was chosen, and go to the operation."""
    try:
        operation = await context.api.post("jobs", context.path["job"], "backfill", body=_body(context))
    except ApiProblem as problem:
        return _form(context, await context.site.queries.jobs.find(context.path["job"]), _BLANK | context.form, problem)
    return context.go(context.site_url(f"/operations/{operation['id']}"), "The backfill has begun.")


def _body(context: PageContext) -> dict[str, Any]:
    given = {name: context.form[name].strip() for name in _BLANK if context.form.get(name, "").strip()}
    numbers = {name: int(given[name]) for name in ("max_running", "priority") if given.get(name, "").isdecimal()}
    until = typed_instant(context, "until")
    return given | numbers | {"from": typed_instant(context, "from")} | ({"until": until} if until else {})


def _typed(context: PageContext, at: datetime) -> str:
    """An instant as a field of the form holds it, on the clock that the page shows."""
    return f"{at.astimezone(browser_zone(context.request)):%Y-%m-%dT%H:%M:%S}"


def _form(context: PageContext, job: Job, values: dict[str, str], problem: ApiProblem | None = None) -> Response:
    return context.page(
        "backfill_form.html",
        http_status=200 if problem is None else 422,
        job_id=format_job_id(job.id),
        name=job.name or format_job_id(job.id),
        values=values,
        only=_ONLY,
        by=_BY,
        order=_ORDER,
        most=MAX_RUNNING,
        zone=zone_label(browser_zone(context.request)),
        problem=problem,
        errors=field_errors(problem),
    )
