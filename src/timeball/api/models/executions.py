"""Bodies about executions, dead letters, bulk operations and events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.models import InstantText, Label, ReasonIn, RequestModel, ShortText
from timeball.api.models.jobs import JobIn

# Executions.


class ExecutionOut(BaseModel):
    """An execution as lists show it."""

    id: str
    job_id: str
    state: Literal["scheduled", "queued", "running", "retrying", "succeeded", "cancelled", "dead", "skipped"]
    origin: Literal["schedule", "enqueue", "trigger", "backfill", "retry"]
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
        description="Who asked for it: a key, a person or a program. `null` if its schedule did."
    )


class AttemptOut(BaseModel):
    """One unsuccessful try."""

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


class AnyAttemptOut(BaseModel):
    """One try, however it went; without `finished_at` it is still under way."""

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


class TimelinePointOut(BaseModel):
    """A point on the time line of an execution."""

    at: datetime
    what: str


class ExecutionFull(ExecutionOut):
    """An execution with all that is known of it."""

    payload: Any
    result: Any
    fingerprint: str | None
    stop_requested: str | None
    attempt_list: list[AttemptOut]
    timeline: list[TimelinePointOut]


class LogLineOut(BaseModel):
    """A line that a handler said."""

    at: datetime
    attempt_fence: int
    number: int
    level: str
    message: str


class DeathCountsOut(BaseModel):
    """How many died in each of equal parts of a time, which is the same for all groups."""

    since: datetime
    until: datetime
    counts: list[int]


class DeadGroupOut(BaseModel):
    """Dead executions with one cause, one handler or one queue: the field of these three that is set."""

    fingerprint: str | None = Field(description="`none`: those whose error bears no fingerprint.")
    handler: str | None
    queue: str | None
    executions: int
    error_type: str | None = Field(description="Of the latest, as are `latest_error` and `top_frame`.")
    latest_error: str | None
    latest_id: str
    top_frame: str | None
    handlers: list[str]
    queues: list[str]
    first_at: datetime
    last_at: datetime
    deaths: DeathCountsOut


# Many at once.

ExpectedCount = Annotated[
    Annotated[int, Field(ge=0)] | None, Field(description="Refuse with 409 if another number would be touched.")
]


class BulkJobsIn(RequestModel):
    """Many jobs at once."""

    jobs: list[JobIn] = Field(min_length=1, max_length=10_000)
    mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"


class JobFilterIn(RequestModel):
    """Which jobs: a filter like the one of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: ShortText | None = None
    queue: ShortText | None = None
    tag: ShortText | None = None
    named: bool = Field(False, description="Only those with a name: no one-offs that were enqueued without one.")
    q: Annotated[str, Field(max_length=1_000)] | None = None


class JobBulkIn(ReasonIn):
    """Many jobs, by id or name, or found by a filter."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=500)
    filter: JobFilterIn | None = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class ExecutionFilterIn(RequestModel):
    """Which executions: a filter like the one of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: ShortText | None = None
    queue: ShortText | None = None
    q: Annotated[str, Field(max_length=1_000)] | None = None
    start_date: InstantText | None = None
    end_date: InstantText | None = None


class ExecutionBulkIn(ReasonIn):
    """Something to do to many executions, named or found by a filter."""

    action: Literal["cancel", "retry"]
    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    filter: ExecutionFilterIn | None = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class DeadLettersIn(ReasonIn):
    """Dead executions: named, all of one fingerprint (`none`: those without), of one handler or one queue, or all."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    fingerprint: ShortText | None = None
    handler: ShortText | None = None
    queue: ShortText | None = None
    all: bool = False


class ExecutionIds(BaseModel):
    """Executions that were created."""

    count: int
    execution_ids: list[str]


class BulkCreatedItem(BaseModel):
    """What came of one of many."""

    index: int
    status: Literal["created", "existing", "failed"]
    job_id: str | None
    execution_id: str | None
    error: str | None


class BulkCreated(BaseModel):
    """What came of many jobs."""

    created: int
    failed: int
    results: list[BulkCreatedItem]
    warnings: list[str] = Field(
        description="What may be wrong with them, such as a handler that no worker has published."
    )


class BulkResultOut(BaseModel):
    """What came of one of many."""

    id: str
    status: Literal["done", "failed", "would_be_done"]
    execution_id: str | None = None
    error: str | None = None


class BulkOut(BaseModel):
    """What came of each; `has_more` says that a dry run would touch more than are shown."""

    done: int
    failed: int
    has_more: bool
    results: list[BulkResultOut]


# Operations.


class OperationOut(BaseModel):
    """Something that is done to many executions or jobs, and how far it has come."""

    id: str
    action: Literal["cancel", "retry", "discard", "pause", "resume", "trigger", "delete"]
    subject: Literal["execution", "job"]
    state: Literal["pending", "running", "succeeded", "cancelled", "failed"] = Field(
        description="`succeeded`: every item was tried; `failed` counts those that could not be done."
    )
    total: int
    done: int
    failed: int
    progress: float = Field(description="From 0 to 1.")
    actor: str
    reason: str | None
    cancel_requested: bool
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class OperationItemOut(BaseModel):
    """What came of one; `waiting` until it has been tried."""

    number: int
    id: str
    status: Literal["done", "failed", "waiting"]
    execution_id: str | None
    error: str | None


# What happened.


class EventOut(BaseModel):
    """Something that happened; the same event always has the same id."""

    id: str
    type: str
    at: datetime
    subject: str
    job_id: str | None
    queue: str | None
    handler: str | None
    data: dict[str, Any]


class EventsOut(BaseModel):
    """What happened since a cursor; `has_gap` says that there was too much to tell, or that the cursor was too old."""

    data: list[EventOut]
    next_cursor: str
    has_gap: bool
