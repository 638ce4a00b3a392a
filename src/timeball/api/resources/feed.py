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
from timeball.api.openapi import EXECUTION_ID, JOB_ID, route_options
from timeball.api.params import Context, Days, JobRef, QueueParam, Zone
from timeball.application.queries.feed import FeedEntry, RunFeed
from timeball.application.queries.forecast import ForecastRequest
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.domain.values.wording import counted, duration_in_words
from timeball.version import __version__

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
    """The runs of the next days as iCalendar (RFC 5545), for subscription by a calendar program; at most 2,000 entries.

    Every time is in UTC, and an entry lasts as long as the job usually takes. A job that runs more than eight times a day has
    one entry for each day of the zone, with the number of runs. An entry keeps its UID from one reading to the next.
    """
    runs = await context.queries.feed.of_all(ForecastRequest(days=days, queue=queue, timezone=timezone))
    return await _file(request, runs, "Timeball" if queue is None else f"Timeball: {queue}", "timeball")


@router.get("/jobs/{job}/calendar.ics", response_class=Response, **_OF_A_JOB)
async def calendar_of_job(
    request: Request,
    job: JobRef,
    context: Context,
    days: Annotated[int, Query(ge=1, le=366, description="The number of days, including today.")] = 366,
) -> Response:
    """The next runs of a job as iCalendar: at most 200 entries; days are those of its own time zone."""
    target = await context.queries.jobs.find(job)
    runs = await context.queries.feed.of_job(target, days)
    job_id = format_job_id(target.id)
    return await _file(request, runs, f"Timeball: {target.name or job_id}", job_id)


async def _file(request: Request, calendar: RunFeed, name: str, file: str) -> Response:
    site = str(request.url.replace(path=request.scope.get("root_path", ""), query="", fragment=""))
    # In a thread: writing two thousand entries would block the loop.
    text = await asyncio.to_thread(calendar_text, calendar, name, site)
    headers = {"Content-Disposition": f'attachment; filename="{file}.ics"', "Content-Type": CALENDAR_MEDIA_TYPE}
    return Response(text, headers=headers)


CALENDAR_MEDIA_TYPE = "text/calendar; charset=utf-8"
_MAX_OCTETS = 75
_REFRESH = "PT1H"
_ESCAPES = str.maketrans({"\\": "\\\\", ";": "\\;", ",": "\\,", "\n": "\\n"})
_LINE_ENDS = re.compile(r"\r\n?")


# Characters that a text may not contain; a tab is allowed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


# A calendar must have a component: without runs, it defines UTC.
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


def calendar_text(calendar: RunFeed, name: str, site: str) -> bytes:
    """A calendar as the text of a file; *site* is the base address of the dashboard."""
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
    """A text as the value of a property, with separators and line breaks escaped."""
    return _CONTROLS.sub("", _LINE_ENDS.sub("\n", text)).translate(_ESCAPES)


def folded(line: str) -> bytes:
    """A line with CR LF, folded at 75 octets without splitting a character."""
    octets = line.encode()
    parts: list[bytes] = []
    while len(octets) > _MAX_OCTETS - bool(parts):
        cut = _MAX_OCTETS - bool(parts)
        while octets[cut] & 0b1100_0000 == 0b1000_0000:
            cut -= 1
        parts.append(octets[:cut])
        octets = octets[cut:]
    return b"\r\n ".join([*parts, octets]) + b"\r\n"


def _remarks(calendar: RunFeed) -> Iterable[str]:
    """The description of the calendar: what it leaves out."""
    sentences = []
    if calendar.left_out:
        sentences.append(f"{counted(calendar.left_out, 'job')} left out: too many to predict.")
    if calendar.cut_after is not None:
        sentences.append(f"There is more after {calendar.cut_after.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")
    return [f"X-WR-CALDESC:{escaped(' '.join(sentences))}"] if sentences else []


def _event(entry: FeedEntry, now: datetime, site: str) -> Iterator[str]:
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
    # A run does not make the reader busy.
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"


def _identity(entry: FeedEntry) -> str:
    if entry.execution_id is not None:
        return format_execution_id(entry.execution_id)
    what = entry.what
    of = f"{what.handler}/{what.queue}" if what.job_id is None else format_job_id(what.job_id)
    return f"{of}/{entry.day}"


def _summary(entry: FeedEntry) -> str:
    if entry.day is None:
        return entry.what.label
    return f"{entry.what.label}, {entry.times:,} {'time' if entry.times == 1 else 'times'}"


def _described(entry: FeedEntry) -> str:
    what = entry.what
    length = "has not run yet" if what.is_guess else f"usually takes {duration_in_words(what.length)}"
    lines = [what.schedule, f"handler {what.handler}", f"queue {what.queue}", length]
    return "\n".join(line for line in lines if line)


def _page(entry: FeedEntry) -> str:
    if entry.what.job_id is not None:
        return f"/jobs/{format_job_id(entry.what.job_id)}"
    if entry.execution_id is not None:
        return f"/executions/{format_execution_id(entry.execution_id)}"
    return "/executions?status=scheduled"


def _instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _seconds(length: timedelta) -> int:
    """Whole seconds, at least one: a duration has to be positive."""
    return max(1, ceil(length.total_seconds()))
