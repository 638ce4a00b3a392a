"""Calendars: named sets of days that jobs skip, or run on alone."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import precondition_error
from timeball.api.models import PageOut
from timeball.api.models.jobs import CalendarIn, CalendarOut, CalendarPatch, CalendarWritten
from timeball.api.openapi import INSTANT_EXAMPLE, page_example, route_options
from timeball.api.params import ApiContext, Context, IdempotencyKey, IfMatch, PageParams, parse_if_match
from timeball.api.responses import Document, json_response, page_document
from timeball.application.commands.calendars import DaysRequest, WrittenCalendar
from timeball.application.queries.calendars import CalendarView
from timeball.domain.values.ids import format_job_id
from timeball.errors import Conflict

router = APIRouter(prefix="/calendars", tags=["calendars"])

CalendarRef = Annotated[str, Path(max_length=200, description="A calendar's name.")]

_EXAMPLE = {
    "name": "holidays",
    "description": "Days on which the office is closed",
    "source": {"kind": "list"},
    "days": ["sat", "sun", "12-25", "2027-01-04"],
    "next_days": ["2026-11-21", "2026-11-22"],
    "version": 1,
    "jobs": 1,
    "job_names": ["daily-report"],
    "created_at": INSTANT_EXAMPLE,
    "updated_at": INSTANT_EXAMPLE,
}
_WRITTEN_EXAMPLE = _EXAMPLE | {"followed": True, "warnings": []}


@router.get("", response_model=PageOut[CalendarOut], **route_options(Role.VIEWER, page_example(_EXAMPLE)))
async def list_calendars(context: Context, page: PageParams) -> Response:
    """List calendars by name."""
    return json_response(page_document(await context.queries.calendars.page(page), page, calendar_document))


@router.post(
    "",
    response_model=CalendarWritten,
    **route_options(
        Role.EDITOR,
        _WRITTEN_EXAMPLE,
        status=201,
        request={"name": "holidays", "days": ["sat", "sun", "12-25", "2027-01-04"]},
        has_body=True,
        fails=[409],
    ),
)
async def create_calendar(
    body: CalendarIn, context: Context, caller: CurrentCaller, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create a calendar from a list of days, the text of an iCalendar file, or the holidays of a country.

    A day is `2026-12-25`, a range `2026-12-24..2027-01-01`, a day of every year `12-25`, or a day of the week `sat`.
    A file and a country need the extras `timeball[ics]` and `timeball[holidays]` where the server runs.
    """
    written = await context.commands.calendars.create(body.name, _days(body), body.description, caller.as_actor())
    location = {"Location": f"/api/v1/calendars/{quote(written.calendar.name, safe='')}"}
    return await _response(context, written, 201, location)


@router.get("/{calendar}", response_model=CalendarOut, **route_options(Role.VIEWER, _EXAMPLE, fails=[404]))
async def get_calendar(
    calendar: CalendarRef,
    context: Context,
    version: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="An earlier version, such as a job cites it.")
    ] = None,
) -> Response:
    """One calendar. Its ETag is its version."""
    view = await context.queries.calendars.find(calendar, version)
    return json_response(calendar_document(view), headers=_etag(view.calendar.version))


_CHANGE: dict[str, Any] = route_options(
    Role.EDITOR, _WRITTEN_EXAMPLE, request={"days": ["sat", "sun"]}, has_body=True, fails=[404, 409, 412]
)


@router.put("/{calendar}", response_model=CalendarWritten, **_CHANGE)
async def replace_calendar(
    calendar: CalendarRef, body: CalendarPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; the same as PATCH."""
    return await _change(calendar, body, context, caller, if_match)


@router.patch("/{calendar}", response_model=CalendarWritten, **_CHANGE)
async def change_calendar(
    calendar: CalendarRef, body: CalendarPatch, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Change the given fields; days replace all that are there.

    Every job that uses the calendar gets a new version, which answers from now on. With more than a thousand jobs
    the others follow within a minute, and `followed` is false.
    """
    return await _change(calendar, body, context, caller, if_match)


async def _change(
    calendar: str, body: CalendarPatch, context: ApiContext, caller: Caller, if_match: str | None
) -> Response:
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    expected = parse_if_match(if_match)
    try:
        written = await context.commands.calendars.update(calendar, fields, _days(body), caller.as_actor(), expected)
    except Conflict as error:
        raise precondition_error(error) from error
    return await _response(context, written)


@router.delete(
    "/{calendar}", response_class=Response, **route_options(Role.EDITOR, None, status=204, fails=[404, 409, 412])
)
async def delete_calendar(
    calendar: CalendarRef, context: Context, caller: CurrentCaller, if_match: IfMatch = None
) -> Response:
    """Delete a calendar that no job uses; otherwise 409 names jobs that do. Its versions are kept, because records cite them."""
    try:
        await context.commands.calendars.delete(calendar, caller.as_actor(), parse_if_match(if_match))
    except Conflict as error:
        raise precondition_error(error) from error
    return Response(status_code=204)


def _days(body: CalendarIn | CalendarPatch) -> DaysRequest:
    return DaysRequest(days=body.days, ics=body.ics, country=body.country, subdivision=body.subdivision)


async def _response(
    context: ApiContext, written: WrittenCalendar, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    view = await context.queries.calendars.view(written.calendar)
    document = calendar_document(view) | {"followed": written.is_followed, "warnings": written.warnings}
    return json_response(document, status, _etag(written.calendar.version) | (headers or {}))


def _etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def calendar_document(view: CalendarView) -> Document:
    """A calendar, its next days, and the jobs that use it."""
    calendar = view.calendar
    return {
        "name": calendar.name,
        "description": calendar.description,
        "source": dict(calendar.source),
        "days": calendar.days.entries,
        "next_days": [day.isoformat() for day in view.next_days],
        "version": calendar.version,
        "jobs": view.jobs,
        "job_names": [name or format_job_id(id_) for id_, name in view.some_jobs],
        "created_at": calendar.created_at,
        "updated_at": calendar.updated_at,
    }
