"""The fields that may be given by name, as type checkers see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

Moment = datetime | str


class JobChanges(TypedDict, total=False):
    """The fields of a job but its name and handler."""

    payload: Any
    description: str | None
    schedule: str | None
    interval_seconds: float | None
    scheduled_at: Moment | None
    timezone: str
    on_gap: str
    on_repeat: str
    starts_at: Moment | None
    ends_at: Moment | None
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
    tags: Sequence[str]
    unchecked: bool


class JobFields(JobChanges, total=False):
    """All fields of a job."""

    name: str
    handler: str


class JobSearch(TypedDict, total=False):
    """Which jobs are wanted."""

    status: str | Sequence[str]
    kind: str
    handler: str
    queue: str
    tag: str
    search: str
    q: str
    payload: str
    start_date: Moment
    end_date: Moment
    due_from: Moment
    due_until: Moment


class ExecutionSearch(TypedDict, total=False):
    """Which executions are wanted."""

    status: str | Sequence[str]
    handler: str
    queue: str
    origin: str
    q: str
    start_date: Moment
    end_date: Moment
