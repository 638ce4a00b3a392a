"""What comes in and goes out, as Pydantic models. An unknown field is an error; nothing is converted in silence."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from timeball.domain.job import DEFAULT_TIMEOUT_MS

T = TypeVar("T")

Label = Annotated[str, Field(min_length=1, max_length=200)]
Moment = Annotated[str, Field(max_length=64, description="ISO 8601; without an offset, on the clock of `timezone`.")]
Milliseconds = Annotated[int, Field(ge=0, le=366 * 24 * 3600 * 1000)]
_LARGEST = 2**31 - 1


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which cannot be stored")
    return text


Words = Annotated[str, Field(max_length=200), AfterValidator(_storable)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobFields(_In):
    """The fields of a job that people post."""

    payload: Any = Field(default_factory=dict, description="What the handler is given: any JSON, up to 256 KB.")
    description: Annotated[str, Field(max_length=10_000)] | None = None
    schedule: Annotated[str, Field(max_length=1_000)] | None = Field(None, description="A cron expression.")
    interval_seconds: int | float | None = Field(None, description="Runs every so many whole seconds.", ge=1)
    scheduled_at: Moment | None = Field(None, description="The instant of a one-off, or the first of an interval.")
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    max_executions: Annotated[int, Field(ge=1, le=2**62)] | None = None
    jitter_seconds: int = Field(0, ge=0, le=86_400)
    misfire: Literal["latest", "skip", "all"] = "latest"
    misfire_grace_seconds: int = Field(30, ge=0, le=366 * 86_400)
    misfire_cap: int = Field(100, ge=1, le=10_000)
    misfire_max_age_seconds: Annotated[int, Field(ge=0, le=2**40)] | None = None
    overlap: Literal["skip", "allow", "queue", "cancel_running"] = "skip"
    queue: Label = "default"
    priority: int = Field(50, ge=0, le=100, description="Higher first; low 25, normal 50, high 75, critical 100.")
    max_retries: int = Field(3, ge=0, le=_LARGEST)
    max_lost: int = Field(3, ge=1, le=_LARGEST)
    initial_backoff_ms: Milliseconds = 1_000
    max_backoff_ms: Milliseconds = 3_600_000
    timeout_ms: Annotated[int, Field(ge=1, le=366 * 24 * 3600 * 1000)] | None = DEFAULT_TIMEOUT_MS
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    max_running: Annotated[int, Field(ge=1, le=_LARGEST)] | None = None
    limit_key: Label | None = None
    unique_key: Label | None = None
    tags: list[Label] = Field(default_factory=list, max_length=50)


class JobIn(JobFields):
    """A job to create. Without a schedule and without a name it runs at once; with a name, when it is triggered."""

    handler: Label
    name: Label | None = None


class JobPatch(JobFields):
    """What to change of a job: only the fields that are given."""

    handler: Label = Field("test.echo")
    name: Label = Field("a-name")


class BulkJobs(_In):
    """Many jobs at once."""

    jobs: list[JobIn] = Field(min_length=1, max_length=10_000)
    mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"


class Reason(_In):
    """Why something is done; goes into the audit."""

    reason: Annotated[str, Field(max_length=1_000), AfterValidator(_storable)] | None = None


class PauseIn(Reason):
    """A pause, for ever or until an instant."""

    until: Moment | None = None


class RunIn(Reason):
    """A run, with another payload if one is given (that needs the role editor)."""

    payload: Any = None


class BackfillIn(Reason):
    """The span whose occurrences are to be run: after `start`, up to and with `end`."""

    start: Moment
    end: Moment


class JobRefs(Reason):
    """Jobs, by id or name."""

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=500)


class ExecutionChoice(_In):
    """Which executions: a filter like the one of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: Words | None = None
    queue: Words | None = None
    start_date: Moment | None = None
    end_date: Moment | None = None


class ExecutionBulkIn(Reason):
    """Something to do to many executions, named or found by a filter."""

    action: Literal["cancel", "retry"]
    ids: list[Label] | None = Field(None, min_length=1, max_length=500)
    filter: ExecutionChoice | None = None
    dry_run: bool = False
    expected_count: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Refuse with 409 if another number would be touched."
    )


class DeadChoice(Reason):
    """Dead executions: named, all of one fingerprint, or all."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=500)
    fingerprint: Words | None = None
    all: bool = False


class QueueLimit(Reason):
    """How many of a queue may run together; null takes the limit away."""

    max_running: Annotated[int, Field(ge=1, le=_LARGEST)] | None


class PreviewIn(_In):
    """A schedule to look at."""

    schedule: Annotated[str, Field(max_length=1_000)] | None = None
    interval_seconds: int | float | None = Field(None, ge=1)
    scheduled_at: Moment | None = None
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    after: Moment | None = None
    count: int = Field(10, ge=1, le=100)


class LastExecution(BaseModel):
    """How a job last ended."""

    id: str
    state: str
    finished_at: datetime


class JobOut(BaseModel):
    """A job, its values under secret-looking keys hidden."""

    id: str
    name: str | None
    description: str | None
    handler: str
    payload: Any
    kind: Literal["once", "every", "cron", "manual"]
    schedule: str | None
    interval_seconds: int | None
    scheduled_at: datetime | None
    timezone: str
    on_gap: str
    on_repeat: str
    starts_at: datetime | None
    ends_at: datetime | None
    max_executions: int | None
    jitter_seconds: int
    misfire: str
    misfire_grace_seconds: int
    misfire_cap: int
    misfire_max_age_seconds: int | None
    overlap: str
    queue: str
    priority: int
    max_retries: int
    max_lost: int
    initial_backoff_ms: int
    max_backoff_ms: int
    timeout_ms: int | None
    delivery: str
    max_running: int | None
    limit_key: str | None
    unique_key: str | None
    tags: list[str]
    status: Literal["active", "paused", "finished"]
    next_run_at: datetime | None
    last_execution: LastExecution | None
    paused_at: datetime | None
    paused_until: datetime | None
    pause_reason: str | None
    version: int
    declared_by: str | None
    created_at: datetime | None
    updated_at: datetime | None


class JobCreated(JobOut):
    """A job that was created, and its first execution if it has one already."""

    execution_id: str | None


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


class MomentOut(BaseModel):
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
    timeline: list[MomentOut]


class LogLineOut(BaseModel):
    """A line that a handler said."""

    at: datetime
    attempt_fence: int
    number: int
    level: str
    message: str


class FireTimeOut(BaseModel):
    """An instant of a schedule; `note` says what a change of the clock does to it."""

    at: datetime
    local: str
    is_due: bool
    note: Literal["moved_by_gap", "skipped_by_gap", "first_of_repeat", "second_of_repeat"] | None


class NextOut(BaseModel):
    """When a job runs next."""

    description: str
    next: list[FireTimeOut]


class ListOut(BaseModel, Generic[T]):
    """A part of a list; totals and page numbers are there when they were asked for."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None
    page: int | None = None
    limit: int | None = None
    total_pages: int | None = None


class Many(BaseModel, Generic[T]):
    """A whole list."""

    data: list[T]


class ExecutionIds(BaseModel):
    """Executions that were created."""

    count: int
    execution_ids: list[str]


class BulkItem(BaseModel):
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
    results: list[BulkItem]


class ItemOut(BaseModel):
    """What came of one of many."""

    id: str
    status: Literal["done", "failed", "would_be_done"]
    execution_id: str | None = None
    error: str | None = None


class BulkOut(BaseModel):
    """What came of each; `has_more` says that the filter matches more than were touched: repeat the call."""

    done: int
    failed: int
    has_more: bool
    results: list[ItemOut]


class DeadGroup(BaseModel):
    """Dead executions with one cause."""

    fingerprint: str
    executions: int
    error_type: str | None
    latest_error: str | None
    latest_id: str
    handlers: list[str]
    first_at: datetime
    last_at: datetime


class QueueOut(BaseModel):
    """A queue; a depth above 10,000 is shown as 10,001."""

    name: str
    is_paused: bool
    paused_at: datetime | None
    pause_reason: str | None
    max_running: int | None
    depth: int
    running: int
    oldest_at: datetime | None
    oldest_wait_seconds: float | None


class NodeOut(BaseModel):
    """A worker or a scheduler."""

    id: str
    kind: Literal["worker", "scheduler"]
    name: str
    started_at: datetime
    renewed_at: datetime
    lease_until: datetime
    slots: int
    busy: int
    queues: list[str] | None
    handlers: list[str]
    shards: list[int]
    version: str
    draining: bool


class CheckOut(BaseModel):
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str


class HealthOut(BaseModel):
    """Whether work can be done."""

    status: Literal["ok", "warn", "fail"]
    version: str
    checks: list[CheckOut]


class LiveOut(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class Percentiles(BaseModel):
    """Seconds: half, 95 and 99 of a hundred stay below."""

    p50: float | None
    p95: float | None
    p99: float | None


class StatsRow(BaseModel):
    """How some executions ended."""

    handler: str | None
    state: str | None
    executions: int
    duration_seconds: Percentiles
    lateness_seconds: Percentiles


class StatsOut(BaseModel):
    """What waits and runs now, each counted up to 10,001; and how the latest executions ended."""

    waiting: dict[str, int]
    hours: float
    is_sample: bool = Field(description="Whether only the latest 10,000 executions were looked at.")
    finished: list[StatsRow]


class AuditOut(BaseModel):
    """Who changed what."""

    id: str
    at: datetime
    actor: str
    action: str
    subject: str
    reason: str | None
    before: Any
    after: Any


class ProblemError(BaseModel):
    """What is wrong with one field."""

    pointer: str
    detail: str


class Problem(BaseModel):
    """Why a request failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemError]
    hint: str | None
    request_id: str | None
