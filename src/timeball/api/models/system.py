"""Bodies about queues, nodes, handlers, schedules, health, audit, doctor and explanations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.models import (
    MAX_INT32,
    FieldErrorOut,
    InstantText,
    Interval,
    Label,
    ReasonIn,
    RequestModel,
    ShortText,
)

# Queues, workers and schedulers.


class QueueLimitIn(ReasonIn):
    """How many of a queue may run together; null takes the limit away."""

    max_running: Annotated[int, Field(ge=1, le=MAX_INT32)] | None


class PurgeIn(ReasonIn):
    """A queue to be emptied; `confirm` is its name, typed once more."""

    confirm: Annotated[str, Field(max_length=200)]


class PurgeOut(BaseModel):
    """What was emptied."""

    queue: str
    cancelled: int


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
    broker: Literal["postgresql", "redis", "rabbitmq"]
    broker_state: Literal["works", "silent", "down"]
    broker_error: str | None
    trouble: str | None = Field(description="What went wrong with it last, though it lives on.")
    trouble_at: datetime | None


class HandlerVersionOut(BaseModel):
    """A contract that workers have published: equal code has equal fingerprints."""

    fingerprint: str
    is_newest: bool = Field(description="Whether it is the one that a worker process started with last.")
    published_at: datetime
    started_at: datetime = Field(description="When a worker process last started with it.")
    workers: list[str] = Field(description="The living workers that have it.")


class HandlerOut(BaseModel):
    """A handler, by the newest contract that workers have published; what is not known is null."""

    name: str
    description: str | None
    doc: str | None = Field(description="Its docstring.")
    run_style: Literal["coroutine", "thread", "process"] | None
    payload_schema: dict[str, Any] | None = Field(description="JSON Schema of the payload.")
    options: dict[str, Any] | None = Field(description="The fields its jobs have when they do not say otherwise.")
    example: Any = Field(description="A payload it would take.")
    is_enabled_here: bool | None = Field(description="Whether a worker with this process's settings would run it.")
    workers: int = Field(description="How many workers that are alive know it.")
    needs_role: Literal["editor", "admin"] = Field(description="Which role may write its payload.")
    versions: list[HandlerVersionOut] = Field(description="What was published of it, the newest first.")


class HandlerToCheck(RequestModel):
    """A handler, and the schema that its stored payloads are to fit."""

    name: Label
    payload_schema: dict[str, Any]


class HandlerCheckIn(RequestModel):
    """Handlers of another version of a program."""

    handlers: list[HandlerToCheck] = Field(min_length=1, max_length=1_000)
    cursor: Annotated[str, Field(max_length=1_000)] | None = None


class IncompatiblePayloadOut(BaseModel):
    """Something stored whose payload does not fit."""

    kind: Literal["job", "template", "execution"]
    id: str
    name: str | None = Field(description="Of the job or the template.")
    handler: str
    errors: list[FieldErrorOut]


class HandlerCheckOut(BaseModel):
    """What does not fit among the payloads that were looked at; `next_cursor` goes on from there."""

    checked: int
    misfits: list[IncompatiblePayloadOut]
    next_cursor: str | None


# Schedules to look at, health, numbers, and who did what.


class PreviewIn(RequestModel):
    """A schedule to look at."""

    schedule: Annotated[str, Field(max_length=1_000)] | None = None
    interval_seconds: Interval | None = None
    scheduled_at: InstantText | None = None
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    after: InstantText | None = None
    count: int = Field(10, ge=1, le=100)
    queue: ShortText | None = Field(
        None, description="Tell also what else runs there at the next instant, and the slots."
    )
    job: ShortText | None = Field(None, description="The job whose schedule this is to be: it does not meet itself.")


class FireTimeOut(BaseModel):
    """An instant of a schedule; `note` says what a change of the clock does to it."""

    at: datetime
    local: str
    is_due: bool
    note: Literal["moved_by_gap", "skipped_by_gap", "first_of_repeat", "second_of_repeat"] | None


class ConcurrentJobOut(BaseModel):
    """A job that runs at the same instant."""

    id: str
    label: str
    p95_seconds: float | None


class InstantLoadOut(BaseModel):
    """What runs at the next instant in the queues that share the slots; `need` counts the new run too."""

    at: datetime
    jobs: list[ConcurrentJobOut]
    one_offs: int
    need: int
    slots: int
    left_out: bool = Field(description="There are more jobs than were looked at.")


class NextOut(BaseModel):
    """When a job runs next."""

    description: str
    next: list[FireTimeOut]
    landing: InstantLoadOut | None = None


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


class ReadyCheckOut(BaseModel):
    """One thing that was looked at, without its details."""

    name: str
    status: Literal["ok", "warn", "fail"]


class ReadyOut(BaseModel):
    """Whether this process can do its work."""

    status: Literal["ok", "warn", "fail"]
    checks: list[ReadyCheckOut]


class LiveOut(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class AuditOut(BaseModel):
    """Who changed what."""

    id: str
    at: datetime
    actor: str
    place: str | None
    action: str
    subject: str
    reason: str | None
    before: Any
    after: Any


# Whether everything is in order, and what needs a human.


class TargetOut(BaseModel):
    """Where to look: what kind of thing, and which."""

    kind: str
    id: str


class DiagnosisOut(BaseModel):
    """One line of the doctor; every code is explained in docs/reference/doctor.md."""

    code: str
    status: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    advice: str | None = Field(description="What to do.")
    command: str | None = Field(description="What of the advice can be typed in a terminal.")
    target: TargetOut | None


class DoctorOut(BaseModel):
    """All lines; the status is that of the gravest."""

    status: Literal["ok", "warn", "fail"]
    version: str
    lines: list[DiagnosisOut]


class AttentionItemOut(BaseModel):
    """What needs a human."""

    code: str
    status: Literal["warn", "fail"]
    sentence: str
    advice: str | None
    command: str | None
    target: TargetOut | None
    why: str | None = Field(description="The explanation of what waits, in one sentence.")


# Why something does not run.


class GateOut(BaseModel):
    """A gate on the way of an execution, and what it says."""

    name: str
    title: str
    verdict: Literal["passed", "stopped", "not_asked"]
    sentence: str
    advice: str | None = Field(description="What to do, where somebody can do something.")
    command: str | None = Field(description="What of the advice can be typed in a terminal.")
    links: list[str] = Field(description="The ids of what stands in the way.")


class LikelyStartOut(BaseModel):
    """When it should start, give or take."""

    at: datetime
    give_or_take_seconds: float


class ExplanationOut(BaseModel):
    """One sentence first, then every gate in the order in which an execution meets them."""

    checked_at: datetime
    job_id: str | None
    job_name: str | None
    execution_id: str | None
    state: str | None
    headline: str
    stopped_by: str | None
    likely_start: LikelyStartOut | None
    gates: list[GateOut]
