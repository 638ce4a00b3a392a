"""What is to run, for calendar programs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import EXECUTION_ID, JOB_ID, described
from timeball.api.desk import TheDesk
from timeball.api.icalendar import MEDIA_TYPE, calendar_text
from timeball.api.routes.jobs import JobRef
from timeball.api.routes.time import Days, Queue, Zone
from timeball.domain.ids import show_job
from timeball.insights import Calendar, ForecastWish

router = APIRouter(tags=["time"])

_EXAMPLE = "\r\n".join(
    [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Timeball//Timeball//EN",
        "X-WR-CALNAME:Timeball",
        "REFRESH-INTERVAL;VALUE=DURATION:PT1H",
        "BEGIN:VEVENT",
        f"UID:{EXECUTION_ID}@timeball",
        "DTSTAMP:20261116T054200Z",
        "DTSTART:20261116T060000Z",
        "DURATION:PT9S",
        "SUMMARY:daily-report",
        f"URL:http://localhost:8080/jobs/{JOB_ID}",
        "END:VEVENT",
        "END:VCALENDAR",
        "",
    ]
)
_ALL = described(Role.VIEWER, _EXAMPLE, media_type="text/calendar", is_heavy=True)
_OF_A_JOB = described(Role.VIEWER, _EXAMPLE, media_type="text/calendar", fails=[404], is_heavy=True)


@router.get("/calendar.ics", response_class=Response, **_ALL)
async def calendar(
    request: Request, desk: TheDesk, days: Days = 7, queue: Queue = None, timezone: Zone = "UTC"
) -> Response:
    """What is to run in the next days, as iCalendar (RFC 5545): a program can subscribe to it, at most 2,000 entries.

    Every time is in UTC, and lasts as long as the job usually takes. What runs more than eight times a day is one entry for
    each day of the zone, with how often. An entry keeps its UID from one reading to the next.
    """
    found = await desk.insights.calendar(ForecastWish(days=days, queue=queue, timezone=timezone))
    return await _file(request, found, "Timeball" if queue is None else f"Timeball: {queue}", "timeball")


@router.get("/jobs/{job}/calendar.ics", response_class=Response, **_OF_A_JOB)
async def calendar_of_job(
    request: Request,
    job: JobRef,
    desk: TheDesk,
    days: Annotated[int, Query(ge=1, le=366, description="For how many days, today included.")] = 366,
) -> Response:
    """When a job is to run next, as iCalendar: at most 200 entries; days are those of its own time zone."""
    found, ahead = await desk.insights.calendar_of_job(job, days)
    shown = show_job(found.id)
    return await _file(request, ahead, f"Timeball: {found.name or shown}", shown)


async def _file(request: Request, calendar: Calendar, name: str, file: str) -> Response:
    site = str(request.url.replace(path=request.scope.get("root_path", ""), query="", fragment=""))
    # Aside: two thousand entries take a while to write, and others wait for this loop.
    text = await asyncio.to_thread(calendar_text, calendar, name, site)
    headers = {"Content-Disposition": f'attachment; filename="{file}.ics"', "Content-Type": MEDIA_TYPE}
    return Response(text, headers=headers)
