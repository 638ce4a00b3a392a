"""Executions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel


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
