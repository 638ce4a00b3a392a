"""Bodies about jobs, templates and declared jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.models import MAX_INT32, InstantText, Interval, Label, Milliseconds, ReasonIn, RequestModel
from timeball.domain.policies import DEFAULT_TIMEOUT_MS

# Jobs.

Unchecked = Annotated[bool, Field(description="Take a payload that the handler's published schema refuses.")]


class JobBody(RequestModel):
    """The fields of a job that people post.

    What is left out of `queue`, `priority`, the retries, `timeout_ms`, `delivery`, `max_running` and `tags` is what the handler declares;
    the defaults below are those of a handler that declares nothing.
    """

    payload: Any = Field(default_factory=dict, description="What the handler is given: any JSON, up to 256 KB.")
    description: Annotated[str, Field(max_length=10_000)] | None = None
    schedule: Annotated[str, Field(max_length=1_000)] | None = Field(None, description="A cron expression.")
    interval_seconds: Interval | None = Field(None, description="Runs every so many whole seconds.")
    scheduled_at: InstantText | None = Field(None, description="The instant of a one-off, or the first of an interval.")
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    starts_at: InstantText | None = None
    ends_at: InstantText | None = None
    max_executions: Annotated[int, Field(ge=1, le=2**62)] | None = None
    jitter_seconds: int = Field(0, ge=0, le=86_400)
    misfire: Literal["latest", "skip", "all"] = "latest"
    misfire_grace_seconds: int = Field(30, ge=0, le=366 * 86_400)
    misfire_cap: int = Field(100, ge=1, le=10_000)
    misfire_max_age_seconds: Annotated[int, Field(ge=0, le=2**40)] | None = None
    overlap: Literal["skip", "allow", "queue", "cancel_running"] = "skip"
    queue: Label = "default"
    priority: int = Field(50, ge=0, le=100, description="Higher first; low 25, normal 50, high 75, critical 100.")
    max_retries: int = Field(3, ge=0, le=MAX_INT32)
    max_lost: int = Field(3, ge=1, le=MAX_INT32)
    initial_backoff_ms: Milliseconds = 1_000
    max_backoff_ms: Milliseconds = 3_600_000
    timeout_ms: Annotated[int, Field(ge=1, le=366 * 24 * 3600 * 1000)] | None = DEFAULT_TIMEOUT_MS
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    max_running: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    limit_key: Label | None = None
    unique_key: Label | None = None
    tags: list[Label] = Field(default_factory=list, max_length=50)
    unchecked: Unchecked = False


class JobIn(JobBody):
    """A job to create. Without a schedule and without a name it runs at once; with a name, when it is triggered."""

    handler: Label
    name: Label | None = None


class JobPatch(JobBody):
    """What to change of a job: only the fields that are given."""

    handler: Label = Field("test.echo")
    name: Label = Field("a-name")


class PauseIn(ReasonIn):
    """A pause, for ever or until an instant."""

    until: InstantText | None = None


class RunIn(ReasonIn):
    """A run, with another payload if one is given (that needs the role editor)."""

    payload: Any = None
    unchecked: Unchecked = False


class BackfillIn(ReasonIn):
    """The span whose occurrences are to be run: after `start`, up to and with `end`."""

    start: InstantText
    end: InstantText


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
    created_by: str | None = Field(description="Who made it: a key, a person or a program.")
    created_at: datetime | None
    updated_at: datetime | None


class JobCreated(JobOut):
    """A job that was created, and its first execution if it has one already."""

    execution_id: str | None
    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


class JobChanged(JobOut):
    """A job that was changed."""

    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


class FieldChangeOut(BaseModel):
    """One field, before and after; secrets hidden."""

    field: str
    before: Any
    after: Any


class RevisionOut(BaseModel):
    """One change of a job, and for which occurrences its version answers, where that is kept."""

    at: datetime | None
    actor: str | None
    action: str
    reason: str | None
    version: int | None
    changes: list[FieldChangeOut]
    effective_from: datetime | None
    effective_until: datetime | None


# Templates.

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class TemplateIn(RequestModel):
    """A template: the job that it makes, under a name of its own."""

    name: Label
    description: Annotated[str, Field(max_length=10_000)] | None = None
    job: JobIn


class TemplatePatch(RequestModel):
    """What to change of a template: only what is given. `job` is replaced as a whole."""

    name: Label = Field("a-name")
    description: Annotated[str, Field(max_length=10_000)] | None = None
    job: JobIn = Field(default_factory=lambda: JobIn.model_validate({"handler": "test.echo"}))


class TemplateUse(JobPatch):
    """A job of a template: other values for some of its fields, and values for the `{{name}}`s in its payload.

    Without `variables` the payload is taken as it is.
    """

    variables: dict[VariableName, str | int | float | bool] | None = Field(None, max_length=100)


class TemplateOut(BaseModel):
    """A template; values under secret-looking keys are hidden."""

    id: str
    name: str
    description: str | None
    job: dict[str, Any]
    variables: list[str] = Field(description="The names that the payload leaves open.")
    version: int
    created_at: datetime
    updated_at: datetime


class TemplateWritten(TemplateOut):
    """A template that was made or changed."""

    warnings: list[str] = Field(
        description="What may be wrong with it, such as a handler that no worker has published."
    )


# Declared jobs.


class SyncIn(ReasonIn):
    """The jobs that are to be there, each with a name."""

    jobs: list[JobIn] = Field(max_length=1_000)
    declared_by: Label = Field("api", description="Whose declaration this is; only its own jobs are ever pruned.")
    prune: bool = Field(False, description="Delete jobs of this declaration that are no longer declared.")
    dry_run: bool = Field(False, description="Show what would be done, and do nothing.")


class SyncFieldChange(BaseModel):
    """A field that differs."""

    before: Any
    after: Any


class SyncStepOut(BaseModel):
    """One job: what is done to it, what differs, and when it runs next, before and after."""

    name: str
    action: Literal["create", "change", "leave", "delete"]
    id: str | None
    version: int | None
    changes: dict[str, SyncFieldChange]
    next_before: list[datetime]
    next_after: list[datetime]


class SyncOut(BaseModel):
    """What was done, or would be."""

    dry_run: bool
    created: int
    changed: int
    left: int
    deleted: int
    jobs: list[SyncStepOut]
    warnings: list[str] = Field(
        description="What may be wrong with them, such as a handler that no worker has published."
    )
