"""What a schedule would do, while it is being typed: plain words, the next ten, clock changes, what would move, what it meets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.views import landing_document
from timeball.dashboard.pages.job_form import schedule_fields
from timeball.dashboard.routing import Pages
from timeball.dashboard.visit import Visit
from timeball.dashboard.wording import counted, seconds
from timeball.domain.job import Job
from timeball.domain.schedule import Manual, Schedule, parse_schedule
from timeball.errors import InvalidInput
from timeball.insights import FireTime, LandingWish

pages = Pages()
_SHOWN = 10


@pages.post("/parts/schedule", Role.VIEWER)
async def preview(visit: Visit) -> Response:
    """The schedule of a form, as it would be."""
    insights = visit.site.insights
    now = insights.now()
    zone = visit.form.get("timezone", "").strip() or "UTC"
    try:
        rule = _rule(visit.form, zone, now)
    except InvalidInput as error:
        return visit.page("partials/schedule_preview.html", error=error, rule=None)
    times = insights.next_times(rule, zone, now, _SHOWN)
    job = visit.form.get("job", "")
    current = await insights.find_job(job) if job else None
    return visit.page(
        "partials/schedule_preview.html",
        error=None,
        rule=rule,
        is_manual=isinstance(rule, Manual),
        times=times,
        changes=[change for change in insights.clock_changes(rule, now, 4) if change not in times],
        zone=zone,
        compared=None if current is None else _compared(visit, current, times),
        landing=await _landing(visit, current, times),
    )


def _rule(form: dict[str, str], zone: str, now: Any) -> Schedule:
    return parse_schedule(
        **schedule_fields(form),
        timezone=zone,
        on_gap=form.get("on_gap", "next_valid"),
        on_repeat=form.get("on_repeat", "first"),
        starts_at=form.get("starts_at", "").strip() or None,
        ends_at=form.get("ends_at", "").strip() or None,
        now=now,
    )


async def _landing(visit: Visit, job: Job | None, times: Sequence[FireTime]) -> dict[str, Any] | None:
    """What the next run would meet."""
    first = next((time.occurrence.at for time in times if time.occurrence.is_due), None)
    if first is None:
        return None
    queue = visit.form.get("queue", "").strip() or "default"
    wish = LandingWish(at=first, queue=queue, job_id=None if job is None else job.id)
    return landing_document(await visit.site.insights.landing(wish))


def _compared(visit: Visit, job: Job, new: Sequence[FireTime]) -> dict[str, Any]:
    insights = visit.site.insights
    old = insights.next_times(job.rule, job.timezone, insights.now(), _SHOWN)
    return {"words": job.rule.describe(), "verdict": verdict(old, new)}


def verdict(old: Sequence[FireTime], new: Sequence[FireTime]) -> str:
    """What a change of schedule does to the next runs, in a sentence."""
    before = [time.occurrence.at for time in old if time.occurrence.is_due]
    after = [time.occurrence.at for time in new if time.occurrence.is_due]
    if before == after:
        return "Nothing moves: the next runs stay where they are."
    if not before or not after:
        return f"It had {counted(len(before), 'run')} ahead, and would have {len(after) or 'none'}."
    shifts = [there - here for here, there in zip(before, after, strict=False)]
    moved = [shift for shift in shifts if shift]
    if len(set(moved)) == 1:
        return f"{len(moved)} of {len(shifts)} move {_shift(moved[0])}."
    return f"{len(moved)} of {len(shifts)} move; the next one {_shift(shifts[0]) if shifts[0] else 'stays'}."


def _shift(shift: timedelta) -> str:
    return f"{seconds(abs(shift.total_seconds()))} {'later' if shift > timedelta(0) else 'earlier'}"
