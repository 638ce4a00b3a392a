"""Bodies about executions, dead letters, bulk operations and events."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from timeball.api.models import InstantText, Label, ReasonIn, RequestModel, ShortText
from timeball.api.models.jobs import JobIn
from timeball.domain.bulk_operation import Operation
from timeball.domain.execution import Execution
from timeball.domain.trace import trace_id, without_trace
from timeball.domain.values.ids import format_execution_id, format_id, format_job_id
from timeball.domain.values.redaction import redact


class ProgressOut(BaseModel):
    """How far a running attempt is."""

    fraction: float = Field(description="From 0 to 1.")
    note: str | None


class ExecutionOut(BaseModel):
    """An execution as lists show it."""

    id: str
    job_id: str
    state: Literal["scheduled", "queued", "running", "retrying", "succeeded", "cancelled", "dead", "skipped"]
    origin: Literal["schedule", "enqueue", "trigger", "backfill", "retry", "after"]
    job_version: int
    handler: str
    queue: str
    priority: int
    scheduled_for: datetime
    run_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    duration_ms: float | None
    attempts: int
    lost: int
    worker: str | None
    error_type: str | None
    error: str | None
    reason: str | None
    retry_of: str | None
    created_by: str | None = Field(
        description="The key, person or program that requested it; `null` if its schedule did."
    )
    expires_at: datetime | None = Field(
        description="It is skipped if it has not begun by then; `null` if it may begin at any time, or has begun."
    )
    meta: dict[str, Any] | None = Field(description="Its own meta, or that of its job; secrets hidden.")
    trace_id: str | None = Field(description="The trace that it belongs to, in hexadecimal; `null` if it has none.")
    progress: ProgressOut | None = Field(description="What its handler has told while it runs; `null` otherwise.")


class AttemptOut(BaseModel):
    """One unsuccessful attempt."""

    number: int
    worker: str | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str
    error_type: str | None
    error: str | None
    traceback: str | None
    top_frame: str | None
    fingerprint: str | None
    is_expected: bool = Field(description="Whether its handler has declared that this error is to be expected.")


class AnyAttemptOut(BaseModel):
    """One attempt, whatever its outcome; without `finished_at` it is still running."""

    number: int
    worker: str | None
    started_at: datetime | None
    finished_at: datetime | None
    outcome: str
    error_type: str | None
    error: str | None
    traceback: str | None
    top_frame: str | None
    fingerprint: str | None
    is_expected: bool = Field(description="Whether its handler has declared that this error is to be expected.")


class TimelinePointOut(BaseModel):
    """A point on the timeline of an execution."""

    at: datetime
    what: str


class ResolvedPayloadOut(BaseModel):
    """A payload with the values of its references."""

    payload: Any
    attempt: int = Field(description="The last attempt that got it, or the next one that will.")
    changes_by_attempt: list[Literal["attempt", "fence"]] = Field(
        description="The references that have another value in each attempt."
    )


class GroupPlaceOut(BaseModel):
    """A part of a group."""

    id: str
    part: int


class ExecutionFull(ExecutionOut):
    """An execution with its payload, result, attempts and timeline."""

    payload: Any
    resolved: ResolvedPayloadOut | None = Field(
        description="The payload as its handler gets it; null if it has no references, or was given to no handler."
    )
    result: Any
    fingerprint: str | None
    stop_requested: str | None
    follows: str | None = Field(description="The execution or the group whose end has caused this one.")
    followed_by: list[str] = Field(description="The executions that its end has caused.")
    group: GroupPlaceOut | None = Field(description="The innermost group that it belongs to, and its part there.")
    attempt_list: list[AttemptOut]
    timeline: list[TimelinePointOut]


class LogLineOut(BaseModel):
    """A log line of a handler."""

    at: datetime
    attempt_fence: int
    number: int
    level: str
    message: str


class DeathCountsOut(BaseModel):
    """How many executions died in each of several equal spans; the spans are the same for all groups."""

    since: datetime
    until: datetime
    counts: list[int]


class DeadGroupOut(BaseModel):
    """Dead executions with the same error, handler or queue: the one of these three fields that is set."""

    fingerprint: str | None = Field(description="`none`: executions whose error has no fingerprint.")
    handler: str | None
    queue: str | None
    executions: int
    error_type: str | None = Field(description="The latest execution's, like `latest_error` and `top_frame`.")
    latest_error: str | None
    latest_id: str
    top_frame: str | None
    handlers: list[str]
    queues: list[str]
    first_at: datetime
    last_at: datetime
    deaths: DeathCountsOut


ExpectedCount = Annotated[
    Annotated[int, Field(ge=0)] | None,
    Field(description="Respond with 409 if the request would affect another number of items."),
]


class BulkJobsIn(RequestModel):
    """Many jobs at once."""

    jobs: list[JobIn] = Field(min_length=1, max_length=10_000)
    mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"


class JobFilterIn(RequestModel):
    """A filter of jobs, like that of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: ShortText | None = None
    queue: ShortText | None = None
    tag: ShortText | None = None
    named: bool = Field(False, description="Only jobs with a name: no one-offs that were enqueued without one.")
    q: Annotated[str, Field(max_length=1_000)] | None = None


class JobBulkIn(ReasonIn):
    """Many jobs, by id or name, or by a filter."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=500)
    filter: JobFilterIn | None = None
    until: (
        Annotated[
            str, Field(max_length=64, description="The end of a pause: ISO 8601; without an offset, it is in UTC.")
        ]
        | None
    ) = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class ExecutionFilterIn(RequestModel):
    """A filter of executions, like that of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: ShortText | None = None
    queue: ShortText | None = None
    q: Annotated[str, Field(max_length=1_000)] | None = None
    start_date: InstantText | None = None
    end_date: InstantText | None = None


class ExecutionBulkIn(ReasonIn):
    """An action on many executions, by id or by a filter."""

    action: Literal["cancel", "retry"]
    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    filter: ExecutionFilterIn | None = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class DeadLettersIn(ReasonIn):
    """Dead executions: by id, all with one fingerprint (`none`: without one), of one handler or queue, or all."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    fingerprint: ShortText | None = None
    handler: ShortText | None = None
    queue: ShortText | None = None
    all: bool = False


class BulkCreatedItem(BaseModel):
    """The result of one item."""

    index: int
    status: Literal["created", "existing", "failed"]
    job_id: str | None
    execution_id: str | None
    error: str | None


class BulkCreated(BaseModel):
    """The results of creating many jobs."""

    created: int
    failed: int
    results: list[BulkCreatedItem]
    warnings: list[str] = Field(description="Possible mistakes, such as a handler that no worker has published.")


class BulkResultOut(BaseModel):
    """The result of one item."""

    id: str
    status: Literal["done", "failed", "would_be_done"]
    execution_id: str | None = None
    error: str | None = None


class BulkOut(BaseModel):
    """The result of each item; `has_more`: a dry run would affect more items than are listed."""

    done: int
    failed: int
    has_more: bool
    results: list[BulkResultOut]


class OperationOut(BaseModel):
    """An action on many executions or jobs, and its progress."""

    id: str
    action: Literal["cancel", "retry", "discard", "pause", "resume", "trigger", "delete", "backfill"]
    subject: Literal["execution", "job"]
    state: Literal["pending", "running", "paused", "succeeded", "cancelled", "failed"] = Field(
        description="`succeeded`: every item was tried; the field `failed` counts those that could not be done."
    )
    total: int = Field(description="Of a backfill: the executions that it has created so far.")
    done: int
    failed: int
    progress: float = Field(description="From 0 to 1. Of a backfill: how much of its span it has looked at.")
    actor: str
    reason: str | None
    until: datetime | None = Field(description="The end of the pauses that it makes.")
    cancel_requested: bool
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


def operation_document(operation: Operation) -> dict[str, Any]:
    """An operation and its progress."""
    return {
        "id": format_id("op", operation.id),
        "action": operation.action,
        "subject": operation.subject,
        "state": operation.state,
        "total": operation.total,
        "done": operation.done,
        "failed": operation.failed,
        "progress": round(operation.progress, 4),
        "actor": operation.actor,
        "reason": operation.reason,
        "until": operation.until,
        "cancel_requested": operation.cancel_requested,
        "error": operation.error,
        "created_at": operation.created_at,
        "started_at": operation.started_at,
        "finished_at": operation.finished_at,
    }


class OperationItemOut(BaseModel):
    """The result of one item; `waiting` until it has been tried."""

    number: int
    id: str
    status: Literal["done", "failed", "waiting"]
    execution_id: str | None
    error: str | None


class EventOut(BaseModel):
    """A change event; the same change always has the same id."""

    id: str
    type: str
    at: datetime
    subject: str
    job_id: str | None
    queue: str | None
    handler: str | None
    data: dict[str, Any]


class EventsOut(BaseModel):
    """The events since a cursor; `has_gap`: there were too many events, or the cursor was too old."""

    data: list[EventOut]
    next_cursor: str
    has_gap: bool


def execution_document(execution: Execution) -> dict[str, Any]:
    """An execution as lists show it."""
    return {
        "id": format_execution_id(execution.id),
        "job_id": format_job_id(execution.job_id),
        "state": execution.state,
        "origin": execution.origin,
        "job_version": execution.version,
        "handler": execution.handler,
        "queue": execution.queue,
        "priority": execution.priority,
        "scheduled_for": execution.scheduled_for,
        "run_at": execution.run_at,
        "queued_at": execution.queued_at,
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
        "lateness_ms": milliseconds_between(execution.scheduled_for, execution.started_at),
        "duration_ms": milliseconds_between(execution.started_at, execution.finished_at),
        "attempts": execution.attempts,
        "lost": execution.lost,
        "worker": show_worker(execution.worker),
        "error_type": execution.error_type,
        "error": execution.error,
        "reason": execution.reason,
        "retry_of": None if execution.retry_of is None else format_execution_id(execution.retry_of),
        "created_by": execution.created_by,
        "expires_at": execution.expires_at,
        "meta": redact(without_trace(execution.meta)),
        "trace_id": trace_id(execution.meta),
        "progress": None if execution.progress is None else execution.progress._asdict(),
    }


def show_worker(incarnation: UUID | None) -> str | None:
    """A worker's id as the API shows it."""
    return None if incarnation is None else format_id("wrk", incarnation)


def milliseconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start) / timedelta(milliseconds=1)
