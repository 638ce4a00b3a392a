"""What a route is given: the parts of the process that it calls, the job in a body, and parameters with the filters they become."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from uuid import UUID

from fastapi import Depends, Header, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from timeball.api.auth import Caller, CurrentCaller, KeyLookup, Role
from timeball.api.errors import HttpProblem
from timeball.api.limits import HeavyRequestLimiter
from timeball.api.models import ShortText
from timeball.api.models.jobs import JobBody
from timeball.application.commands.requests import JobRequest
from timeball.config.settings import Settings
from timeball.domain.execution import Origin, parse_states
from timeball.domain.follow_ups import FOLLOW_UP_FIELDS
from timeball.domain.job import JobStatus
from timeball.domain.job_fields import LIST_FIELDS, JobSpec
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
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.values.redaction import refuse_redacted
from timeball.env import Env
from timeball.errors import quote_text
from timeball.telemetry.events import Emit
from timeball.telemetry.metrics import MetricsSource

if TYPE_CHECKING:
    from timeball.api.middleware import IdempotencyRecords
    from timeball.application.commands import Commands
    from timeball.application.events import EventHub
    from timeball.application.queries import Queries


class DeadLetterStore(Protocol):
    """Marks dead executions as settled."""

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: Any) -> set[ExecutionId]: ...


class CatalogueItem(Protocol):
    """A handler in the catalogue."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def run_style(self) -> str: ...
    @property
    def payload_schema(self) -> dict[str, Any]: ...
    @property
    def example(self) -> Any: ...
    @property
    def is_enabled_here(self) -> bool: ...


class CatalogueReader(Protocol):
    """The handlers that can be scheduled."""

    def entries(self) -> Sequence[CatalogueItem]: ...

    def check(self, schema: Mapping[str, Any], name: str, payload: str) -> None: ...


class ApiParts(Protocol):
    """The parts of a process that the API is built from."""

    @property
    def settings(self) -> Settings: ...
    @property
    def env(self) -> Env: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def queries(self) -> Queries: ...
    @property
    def live(self) -> EventHub: ...
    @property
    def process(self) -> MetricsSource: ...
    @property
    def emit(self) -> Emit: ...
    @property
    def keys(self) -> KeyLookup: ...
    @property
    def requests(self) -> IdempotencyRecords: ...
    @property
    def dead_letters(self) -> DeadLetterStore: ...
    @property
    def catalogue(self) -> CatalogueReader: ...


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What a route calls."""

    commands: Commands
    queries: Queries
    live: EventHub
    process: MetricsSource
    dead_letters: DeadLetterStore
    catalogue: CatalogueReader
    # The holder of the operations that this process carries out.
    holder: UUID
    # A stream of events ends after this time, and its reader connects again.
    longest_stream: timedelta
    # The zone of times without an offset, in the drop-in routes.
    zone: str
    heavy_requests: HeavyRequestLimiter


async def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]


async def limit_heavy_request(request: Request) -> AsyncIterator[None]:
    """A dependency of expensive routes: one request of a caller at a time."""
    context: ApiContext = request.app.state.context
    caller = request.state.caller
    async with context.heavy_requests.of("" if caller is None else caller.name):
        yield


_NUMBERED_DEFAULT, _NUMBERED_MOST = 20, 100


def given_fields(body: JobBody) -> dict[str, Any]:
    """The fields that were given, as `JobSpec` takes them."""
    fields = body.model_dump(exclude_unset=True, exclude={"unchecked"})
    for name in LIST_FIELDS:
        if name in fields:
            fields[name] = tuple(fields[name])
    for name in ("payload", "meta", *FOLLOW_UP_FIELDS):
        if name in fields:
            refuse_redacted(fields[name], name)
    return fields


def job_request(body: JobBody) -> JobRequest:
    """The request for a new job, with the names of the given fields."""
    fields = given_fields(body)
    return JobRequest(JobSpec(**fields), fields.keys(), body.unchecked)


def parse_if_match(if_match: str | None) -> int | None:
    """The version in an If-Match header: `"3"`; no header, or `*`, means any version."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise HttpProblem(
            412,
            "precondition_failed",
            describe_mismatch("If-Match", 'an ETag such as "3"', describe_value(if_match)),
            hint="read it again, and send its ETag",
        )
    return int(text)


def optional_instant(text: str | None, field: str, timezone: str = "UTC") -> datetime | None:
    """An instant in a parameter or body; without an offset, it is on the clock of *timezone*."""
    return None if text is None else parse_instant(text, timezone, field)


Status = Annotated[
    list[str] | None,
    Query(
        max_length=12,
        description="States; `pending picked completed failed` are understood too. Repeat it, or separate by commas.",
    ),
]
Since = Annotated[str | None, Query(max_length=64, description="From this instant on (ISO 8601, UTC).")]
Until = Annotated[str | None, Query(max_length=64, description="Up to and including this instant (ISO 8601, UTC).")]


Search = Annotated[
    str | None,
    Query(
        max_length=MAX_QUERY_LENGTH,
        description="A search: `status:dead queue:mail handler:app.mail.* payload.user.id:42 after:-2h late:>30s "
        "-tag:test`; bare words match names and ids. Searching payloads needs the role editor.",
    ),
]


def page_request(
    limit: Annotated[int | None, Query(ge=1, le=200, description="The size of a page; 50, or 20 with `page`.")] = None,
    cursor: Annotated[str | None, Query(max_length=1_000, description="`next_cursor` of the previous page.")] = None,
    page: Annotated[int | None, Query(ge=1, le=10_000, description="A page by number; adds totals.")] = None,
    include: Annotated[
        Literal["total"] | None, Query(description="`total`: exact to 10,000, then an estimate.")
    ] = None,
) -> PageRequest:
    """The requested part of a list."""
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
    """The filter of executions. Dates compare with the id: the scheduled instant of an occurrence, else its creation."""
    terms = where(
        status=parse_states(split_commas(status)),
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
    """The filter of jobs. `status` is the job's (active, paused, finished) or the state of its latest execution."""
    words = split_commas(status)
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
    """The end of a range in search terms, which exclude it; parameters include it."""
    return None if instant is None else instant + resolution


def check_payload_search(filters: JobFilter | ExecutionFilter, caller: Caller) -> None:
    """Require the role editor for a search in payloads or meta: it would reveal to a viewer what is hidden from them."""
    if any(term.field in ("payload", "meta") for term in filters.terms):
        caller.needs(Role.EDITOR, "searching payloads and meta")


async def allowed_execution_filter(
    filters: Annotated[ExecutionFilter, Depends(execution_filter)], caller: CurrentCaller
) -> ExecutionFilter:
    """The filter of executions, if the caller's role allows it."""
    check_payload_search(filters, caller)
    return filters


async def allowed_job_filter(filters: Annotated[JobFilter, Depends(job_filter)], caller: CurrentCaller) -> JobFilter:
    """The filter of jobs, if the caller's role allows it."""
    check_payload_search(filters, caller)
    return filters


def within_job(filters: ExecutionFilter, job_id: JobId) -> ExecutionFilter:
    """The same filter, for one job."""
    return replace(filters, job_id=job_id)


def split_commas(given: list[str] | None) -> list[str]:
    """The words of a parameter that may be repeated, or have commas."""
    return [word for text in given or () for word in text.split(",") if word]


JobRef = Annotated[str, Path(max_length=200, description="A job's id or name.")]
IfMatch = Annotated[str | None, Header(description='The ETag of the version to change, such as `"3"`.')]
ReasonParam = Annotated[ShortText | None, Query(description="The reason, for the audit.")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="A request that is repeated with the same key within 24 hours gets the first response again."),
]
JobFilterParams = Annotated[JobFilter, Depends(allowed_job_filter)]
PageParams = Annotated[PageRequest, Depends(page_request)]
JobSort = Annotated[JobOrder, Query(description="The order; a minus means descending. By name: named jobs only.")]


ExecutionRef = Annotated[str, Path(max_length=200, description="An execution's id.")]
ExecutionFilterParams = Annotated[ExecutionFilter, Depends(allowed_execution_filter)]


QueueParam = Annotated[ShortText | None, Query(description="Only this queue.")]


Days = Annotated[int, Query(ge=1, le=31, description="The number of days, including today.")]
Zone = Annotated[str, Query(max_length=200, description="The IANA time zone of days and hours.")]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have: a misspelt filter that is ignored would list everything."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _parameter_names(route.dependant)
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        expected = f"parameters {', '.join(sorted(known))}" if known else "no parameters"
        detail = f"parameter {quote_text(unknown[0])} is unknown, expected {expected}"
        raise HttpProblem(422, "unknown_parameter", detail, hint="check its spelling")


def _parameter_names(dependant: Dependant) -> set[str]:
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(_parameter_names(inner) for inner in dependant.dependencies))
