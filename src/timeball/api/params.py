"""Path, query and header parameters that routes share, and the filters they become."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import Depends, Header, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from timeball.api.auth import Caller, CurrentCaller, Role
from timeball.api.errors import HttpProblem
from timeball.api.models import ShortText
from timeball.domain.execution import Origin, parse_states
from timeball.domain.job import JobStatus
from timeball.domain.scheduling.civil_time import parse_instant
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.search import (
    EXECUTION_FIELDS,
    JOB_FIELDS,
    MAX_QUERY_LENGTH,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    PageRequest,
    SearchRelation,
    parse_query,
    where,
)
from timeball.domain.values.field_errors import describe_mismatch, describe_value
from timeball.domain.values.ids import JobId
from timeball.errors import quote_text

_NUMBERED_DEFAULT, _NUMBERED_MOST = 20, 100


def parse_if_match(if_match: str | None) -> int | None:
    """The version an If-Match names: `"3"`; none, or `*`, means any."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise HttpProblem(
            412,
            "precondition_failed",
            describe_mismatch("If-Match", 'an ETag such as "3"', describe_value(if_match)),
            hint="read the job again",
        )
    return int(text)


def optional_instant(text: str | None, field: str, timezone: str = "UTC") -> datetime | None:
    """An instant as people write it."""
    return None if text is None else parse_instant(text, timezone, field)


Status = Annotated[
    list[str] | None,
    Query(
        max_length=12, description="States; `pending picked completed failed` are understood. Repeat it, or use commas."
    ),
]
Since = Annotated[str | None, Query(max_length=64, description="From this instant on (ISO 8601, UTC).")]
Until = Annotated[str | None, Query(max_length=64, description="Up to and with this instant (ISO 8601, UTC).")]


Search = Annotated[
    str | None,
    Query(
        max_length=MAX_QUERY_LENGTH,
        description="A search in words: `status:dead queue:mail handler:app.mail.* payload.user.id:42 after:-2h late:>30s "
        "-tag:test`; bare words are looked for in names and ids. Searching payloads needs the role editor.",
    ),
]


def page_request(
    limit: Annotated[int | None, Query(ge=1, le=200, description="How many; 50, or 20 with `page`.")] = None,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the page before.")] = None,
    page: Annotated[int | None, Query(ge=1, le=10_000, description="A page by number; adds totals.")] = None,
    include: Annotated[
        Literal["total"] | None, Query(description="`total`: exact to 10,000, then an estimate.")
    ] = None,
) -> PageRequest:
    """Which part of a list is asked for."""
    if page is None:
        return PageRequest(limit=limit or 50, cursor=cursor, with_total=include == "total")
    size = min(limit or _NUMBERED_DEFAULT, _NUMBERED_MOST)
    return PageRequest(limit=size, cursor=cursor, page=page, with_total=True)


def execution_filter(
    status: Status = None,
    handler: Annotated[ShortText | None, Query()] = None,
    queue: Annotated[ShortText | None, Query()] = None,
    origin: Annotated[Origin | None, Query()] = None,
    start_date: Since = None,
    end_date: Until = None,
    q: Search = None,
) -> ExecutionFilter:
    """Which executions are asked for. Dates are those of the id: the scheduled instant of an occurrence, else its creation."""
    terms = where(
        status=parse_states(_split_commas(status)),
        handler=handler,
        queue=queue,
        origin=origin,
        after=optional_instant(start_date, "start_date"),
        before=_just_after(optional_instant(end_date, "end_date"), timedelta(milliseconds=1)),
    )
    return ExecutionFilter((*terms, *parse_query(q or "", EXECUTION_FIELDS)))


def job_filter(
    status: Status = None,
    kind: Annotated[ScheduleKind | None, Query()] = None,
    handler: Annotated[ShortText | None, Query()] = None,
    queue: Annotated[ShortText | None, Query()] = None,
    tag: Annotated[ShortText | None, Query()] = None,
    search: Annotated[ShortText | None, Query(description="Part of the name.")] = None,
    payload: Annotated[ShortText | None, Query(description="Part of the payload, as JSON text.")] = None,
    start_date: Since = None,
    end_date: Until = None,
    due_from: Since = None,
    due_until: Until = None,
    q: Search = None,
) -> JobFilter:
    """Which jobs are asked for. `status` is the job's (active, paused, finished) or the state of its latest execution."""
    words = _split_commas(status)
    statuses = [JobStatus(word) for word in words if word in list(JobStatus)]
    states = parse_states([word for word in words if word not in list(JobStatus)])
    terms = where(
        status=(*statuses, *states),
        kind=kind,
        handler=handler,
        queue=queue,
        tag=tag,
        after=optional_instant(start_date, "start_date"),
        before=_just_after(optional_instant(end_date, "end_date"), timedelta(microseconds=1)),
        due_after=optional_instant(due_from, "due_from"),
        due_before=_just_after(optional_instant(due_until, "due_until"), timedelta(microseconds=1)),
    )
    parts = where(SearchRelation.CONTAINS, name=search, payload=payload)
    return JobFilter((*terms, *parts, *parse_query(q or "", JOB_FIELDS)))


def _just_after(instant: datetime | None, resolution: timedelta) -> datetime | None:
    """Parameters include their last instant, search terms do not."""
    return None if instant is None else instant + resolution


def check_payload_search(wanted: JobFilter | ExecutionFilter, caller: Caller) -> None:
    """Searching payloads needs the role editor: it would tell a viewer what is hidden from them."""
    if any(term.field == "payload" for term in wanted.terms):
        caller.needs(Role.EDITOR, "searching payloads")


async def allowed_execution_filter(
    wanted: Annotated[ExecutionFilter, Depends(execution_filter)], caller: CurrentCaller
) -> ExecutionFilter:
    """Which executions are asked for, if the caller may ask so."""
    check_payload_search(wanted, caller)
    return wanted


async def allowed_job_filter(wanted: Annotated[JobFilter, Depends(job_filter)], caller: CurrentCaller) -> JobFilter:
    """Which jobs are asked for, if the caller may ask so."""
    check_payload_search(wanted, caller)
    return wanted


def within_job(wanted: ExecutionFilter, job_id: JobId) -> ExecutionFilter:
    """The same filter, within one job."""
    return replace(wanted, job_id=job_id)


def _split_commas(given: list[str] | None) -> list[str]:
    return [word for text in given or () for word in text.split(",") if word]


JobRef = Annotated[str, Path(max_length=200, description="A job's id or name.")]
IfMatch = Annotated[str | None, Header(description='The ETag that the change is made for, such as `"3"`.')]
ReasonParam = Annotated[ShortText | None, Query(description="Why; it goes into the audit.")]
IdempotencyKey = Annotated[
    str | None, Header(description="Sent again with the same key within 24 hours, the first answer comes again.")
]
JobFilterParams = Annotated[JobFilter, Depends(allowed_job_filter)]
PageParams = Annotated[PageRequest, Depends(page_request)]
JobSort = Annotated[
    JobOrder, Query(description="The order; a minus means the largest first. By name: named jobs only.")
]


ExecutionRef = Annotated[str, Path(max_length=200, description="An execution's id.")]
ExecutionFilterParams = Annotated[ExecutionFilter, Depends(allowed_execution_filter)]


QueueParam = Annotated[ShortText | None, Query(description="Only of this queue.")]


Days = Annotated[int, Query(ge=1, le=31, description="For how many days, today included.")]
Zone = Annotated[str, Query(max_length=200, description="Whose days and hours: an IANA time zone.")]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse parameters in the query that the route does not have."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _parameter_names(route.dependant)
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise HttpProblem(
            422,
            "unknown_parameter",
            f"unknown parameter {quote_text(unknown[0])!r}; known are: {listed}",
            hint="check its spelling",
        )


def _parameter_names(dependant: Dependant) -> set[str]:
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(_parameter_names(inner) for inner in dependant.dependencies))
