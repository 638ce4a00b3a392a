"""Upcoming runs as iCalendar files (RFC 5545)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.context import Context
from timeball.api.openapi import EXECUTION_ID, JOB_ID, route_options
from timeball.api.params import Days, JobRef, QueueParam, Zone
from timeball.application.queries.views import Calendar, CalendarEntry, ForecastRequest
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.domain.values.wording import counted, duration_in_words
from timeball.version import __version__

# What is to run, for calendar programs.

router = APIRouter(tags=["time"])

_CALENDAR_EXAMPLE = "\r\n".join(
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
_ALL = route_options(Role.VIEWER, _CALENDAR_EXAMPLE, media_type="text/calendar", is_heavy=True)
_OF_A_JOB = route_options(Role.VIEWER, _CALENDAR_EXAMPLE, media_type="text/calendar", fails=[404], is_heavy=True)


@router.get("/calendar.ics", response_class=Response, **_ALL)
async def calendar(
    request: Request, context: Context, days: Days = 7, queue: QueueParam = None, timezone: Zone = "UTC"
) -> Response:
    """What is to run in the next days, as iCalendar (RFC 5545): a program can subscribe to it, at most 2,000 entries.

    Every time is in UTC, and lasts as long as the job usually takes. What runs more than eight times a day is one entry for
    each day of the zone, with how often. An entry keeps its UID from one reading to the next.
    """
    found = await context.queries.calendar(ForecastRequest(days=days, queue=queue, timezone=timezone))
    return await _file(request, found, "Timeball" if queue is None else f"Timeball: {queue}", "timeball")


@router.get("/jobs/{job}/calendar.ics", response_class=Response, **_OF_A_JOB)
async def calendar_of_job(
    request: Request,
    job: JobRef,
    context: Context,
    days: Annotated[int, Query(ge=1, le=366, description="For how many days, today included.")] = 366,
) -> Response:
    """When a job is to run next, as iCalendar: at most 200 entries; days are those of its own time zone."""
    found, ahead = await context.queries.calendar_of_job(job, days)
    shown = format_job_id(found.id)
    return await _file(request, ahead, f"Timeball: {found.name or shown}", shown)


async def _file(request: Request, calendar: Calendar, name: str, file: str) -> Response:
    site = str(request.url.replace(path=request.scope.get("root_path", ""), query="", fragment=""))
    # Aside: two thousand entries take a while to write, and others wait for this loop.
    text = await asyncio.to_thread(calendar_text, calendar, name, site)
    headers = {"Content-Disposition": f'attachment; filename="{file}.ics"', "Content-Type": CALENDAR_MEDIA_TYPE}
    return Response(text, headers=headers)


# Calendars as RFC 5545 wants them: lines of at most 75 octets that end in CR LF, texts escaped, instants in UTC.

CALENDAR_MEDIA_TYPE = "text/calendar; charset=utf-8"
_MOST_OCTETS = 75
_REFRESH = "PT1H"
_ESCAPES = str.maketrans({"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n"})
_LINE_ENDS = re.compile(r"\r\n?")


# What no text of a calendar may hold; a tab may stand in it.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


# A calendar must hold something: where nothing is to run, it says what UTC is.
_UTC = (
    "BEGIN:VTIMEZONE",
    "TZID:UTC",
    "BEGIN:STANDARD",
    "DTSTART:19700101T000000",
    "TZOFFSETFROM:+0000",
    "TZOFFSETTO:+0000",
    "END:STANDARD",
    "END:VTIMEZONE",
)


def calendar_text(calendar: Calendar, name: str, site: str) -> bytes:
    """A calendar as its file; *site* is the address that the pages of the dashboard lie below."""
    events = [line for entry in calendar.entries for line in _event(entry, calendar.now, site)]
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        f"PRODID:-//Timeball//Timeball {__version__}//EN",
        "CALSCALE:GREGORIAN",
        "METHOD:PUBLISH",
        f"NAME:{escaped(name)}",
        f"X-WR-CALNAME:{escaped(name)}",
        *_remarks(calendar),
        f"REFRESH-INTERVAL;VALUE=DURATION:{_REFRESH}",
        f"X-PUBLISHED-TTL:{_REFRESH}",
        *(events or _UTC),
        "END:VCALENDAR",
    ]
    return b"".join(map(folded, lines))


def escaped(text: str) -> str:
    """A text as the value of a property: what would end it, or part it, is escaped."""
    return _CONTROLS.sub("", _LINE_ENDS.sub("\n", text)).translate(_ESCAPES)


def folded(line: str) -> bytes:
    """A line with its end; one that is too long goes on behind a blank, and no letter is torn apart."""
    octets = line.encode()
    parts: list[bytes] = []
    while len(octets) > _MOST_OCTETS - bool(parts):
        cut = _MOST_OCTETS - bool(parts)
        while octets[cut] & 0b1100_0000 == 0b1000_0000:
            cut -= 1
        parts.append(octets[:cut])
        octets = octets[cut:]
    return b"\r\n ".join([*parts, octets]) + b"\r\n"


def _remarks(calendar: Calendar) -> Iterable[str]:
    """What is not in it, for whoever looks at its description."""
    said = []
    if calendar.left_out:
        said.append(f"{counted(calendar.left_out, 'job')} left out: too many to foresee.")
    if calendar.cut_after is not None:
        said.append(f"There is more after {calendar.cut_after.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")
    return [f"X-WR-CALDESC:{escaped(' '.join(said))}"] if said else []


def _event(entry: CalendarEntry, now: datetime, site: str) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{escaped(_identity(entry))}@timeball"
    yield f"DTSTAMP:{_instant(now)}"
    if entry.day is not None:
        yield f"DTSTART;VALUE=DATE:{entry.day:%Y%m%d}"
    else:
        yield f"DTSTART:{_instant(entry.start)}"
        yield f"DURATION:PT{_seconds(entry.what.length)}S"
    yield f"SUMMARY:{escaped(_summary(entry))}"
    yield f"DESCRIPTION:{escaped(_described(entry))}"
    yield f"URL:{site}{_page(entry)}"
    yield f"CATEGORIES:{escaped(entry.what.queue)}"
    # Nobody is busy because a machine is.
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"


def _identity(entry: CalendarEntry) -> str:
    if entry.execution_id is not None:
        return format_execution_id(entry.execution_id)
    what = entry.what
    of = f"{what.handler}/{what.queue}" if what.job_id is None else format_job_id(what.job_id)
    return f"{of}/{entry.day}"


def _summary(entry: CalendarEntry) -> str:
    if entry.day is None:
        return entry.what.label
    return f"{entry.what.label}, {entry.times:,} {'time' if entry.times == 1 else 'times'}"


def _described(entry: CalendarEntry) -> str:
    what = entry.what
    length = "has not run yet" if what.is_guess else f"usually takes {duration_in_words(what.length)}"
    lines = [what.schedule, f"handler {what.handler}", f"queue {what.queue}", length]
    return "\n".join(line for line in lines if line)


def _page(entry: CalendarEntry) -> str:
    if entry.what.job_id is not None:
        return f"/jobs/{format_job_id(entry.what.job_id)}"
    if entry.execution_id is not None:
        return f"/executions/{format_execution_id(entry.execution_id)}"
    return "/executions?status=scheduled"


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _seconds(length: timedelta) -> int:
    """Whole ones, and not none: a duration has to be positive."""
    return max(1, ceil(length.total_seconds()))
