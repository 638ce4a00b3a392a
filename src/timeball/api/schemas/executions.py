"""Executions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


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


class TryOut(BaseModel):
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


class Deaths(BaseModel):
    """How many died in each of equal parts of a time, which is the same for all groups."""

    since: datetime
    until: datetime
    counts: list[int]


class DeadGroup(BaseModel):
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
    deaths: Deaths
