"""What callers ask for, as the domain's wishes and filters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from fastapi import Depends, Query

from timeball.api.auth import Caller, Role, TheCaller
from timeball.api.problems import Refusal
from timeball.api.schemas.common import Words
from timeball.api.schemas.jobs import JobFields
from timeball.commands import Told
from timeball.domain.civil_time import read_moment
from timeball.domain.execution import Origin, parse_states
from timeball.domain.ids import JobId
from timeball.domain.job import Job, JobSpec, JobStatus, redefine, spec_of
from timeball.domain.query import EXECUTION_FIELDS, JOB_FIELDS, LONGEST, parse_query
from timeball.domain.redaction import refuse_redacted
from timeball.domain.schedule import ScheduleKind
from timeball.domain.search import ExecutionFilter, JobFilter, PageRequest

_NUMBERED_DEFAULT, _NUMBERED_MOST = 20, 100


def fields_of(body: JobFields) -> dict[str, Any]:
    """The fields that were given, as the domain takes them."""
    fields = body.model_dump(exclude_unset=True, exclude={"unchecked"})
    if "tags" in fields:
        fields["tags"] = tuple(fields["tags"])
    if "payload" in fields:
        refuse_redacted(fields["payload"])
    return fields


def told(body: JobFields) -> Told:
    """The wish that a posted job is, and which of its fields were given."""
    fields = fields_of(body)
    return Told(JobSpec(**fields), fields.keys(), body.unchecked)


def copy_of(job: Job, overrides: dict[str, Any], now: datetime) -> JobSpec:
    """The wish for a copy of a job; a named one is called `<name>-copy`, unless another name is given."""
    # The number of shards does not matter: only the checked fields are used.
    changed = redefine(job, overrides, now, 1)
    name = changed.name if "name" in overrides or changed.name is None else f"{changed.name}-copy"
    # Two jobs under one unique key would be one.
    unique_key = changed.unique_key if "unique_key" in overrides else None
    return replace(spec_of(changed), name=name, unique_key=unique_key, payload=orjson.loads(changed.payload))


def version_from(if_match: str | None) -> int | None:
    """The version an If-Match names: `"3"`; none, or `*`, means any."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise Refusal(
            412,
            "precondition_failed",
            f'If-Match is {if_match[:60]!r}, expected an ETag such as "3"',
            hint="read the job again",
        )
    return int(text)


def moment_from(text: str | None, field: str, timezone: str = "UTC") -> datetime | None:
    """An instant as people write it."""
    return None if text is None else read_moment(text, timezone, field)


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
        max_length=LONGEST,
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
    handler: Annotated[Words | None, Query()] = None,
    queue: Annotated[Words | None, Query()] = None,
    origin: Annotated[Origin | None, Query()] = None,
    start_date: Since = None,
    end_date: Until = None,
    q: Search = None,
) -> ExecutionFilter:
    """Which executions are asked for. Dates are those of the id: the scheduled instant of an occurrence, else its creation."""
    return ExecutionFilter(
        states=parse_states(_words(status)),
        handler=handler,
        queue=queue,
        origin=origin,
        since=moment_from(start_date, "start_date"),
        until=moment_from(end_date, "end_date"),
        terms=parse_query(q or "", EXECUTION_FIELDS),
    )


def job_filter(
    status: Status = None,
    kind: Annotated[ScheduleKind | None, Query()] = None,
    handler: Annotated[Words | None, Query()] = None,
    queue: Annotated[Words | None, Query()] = None,
    tag: Annotated[Words | None, Query()] = None,
    search: Annotated[Words | None, Query(description="Part of the name.")] = None,
    payload: Annotated[Words | None, Query(description="Part of the payload, as JSON text.")] = None,
    start_date: Since = None,
    end_date: Until = None,
    due_from: Since = None,
    due_until: Until = None,
    q: Search = None,
) -> JobFilter:
    """Which jobs are asked for. `status` is the job's (active, paused, finished) or the state of its latest execution."""
    words = _words(status)
    own = [word for word in words if word in list(JobStatus)]
    if own and len(words) > 1:
        raise Refusal(422, "invalid_input", "one status of a job, or some states of its latest execution; not both")
    return JobFilter(
        status=JobStatus(own[0]) if own else None,
        states=() if own else parse_states(words),
        kind=kind,
        handler=handler,
        queue=queue,
        tag=tag,
        search=search,
        payload=payload,
        created_from=moment_from(start_date, "start_date"),
        created_until=moment_from(end_date, "end_date"),
        due_from=moment_from(due_from, "due_from"),
        due_until=moment_from(due_until, "due_until"),
        terms=parse_query(q or "", JOB_FIELDS),
    )


def check_search(wanted: JobFilter | ExecutionFilter, caller: Caller) -> None:
    """Searching payloads needs the role editor: it would tell a viewer what is hidden from them."""
    by_words = any(term.field == "payload" for term in wanted.terms)
    if by_words or (isinstance(wanted, JobFilter) and wanted.payload is not None):
        caller.needs(Role.EDITOR, "searching payloads")


async def searched_executions(
    wanted: Annotated[ExecutionFilter, Depends(execution_filter)], caller: TheCaller
) -> ExecutionFilter:
    """Which executions are asked for, if the caller may ask so."""
    check_search(wanted, caller)
    return wanted


async def searched_jobs(wanted: Annotated[JobFilter, Depends(job_filter)], caller: TheCaller) -> JobFilter:
    """Which jobs are asked for, if the caller may ask so."""
    check_search(wanted, caller)
    return wanted


def of_job(wanted: ExecutionFilter, job_id: JobId) -> ExecutionFilter:
    """The same filter, within one job."""
    return replace(wanted, job_id=job_id)


def _words(given: list[str] | None) -> list[str]:
    return [word for text in given or () for word in text.split(",") if word]
