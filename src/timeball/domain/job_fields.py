"""The fields of a job as a caller asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from timeball.domain.policies import (
    DEFAULT_MISFIRE_CAP,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    DEFAULT_TIMEOUT_MS,
    Delivery,
    Misfire,
    OnGap,
    OnRepeat,
    Overlap,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as somebody asks for it: the fields people post, nothing checked yet."""

    handler: str
    payload: Any = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    schedule: str | None = None
    interval_seconds: int | float | None = None
    scheduled_at: datetime | str | None = None
    timezone: str = "UTC"
    on_gap: OnGap | str = OnGap.NEXT_VALID
    on_repeat: OnRepeat | str = OnRepeat.FIRST
    starts_at: datetime | str | None = None
    ends_at: datetime | str | None = None
    max_executions: int | None = None
    jitter_seconds: int = 0
    misfire: Misfire | str = Misfire.LATEST
    misfire_grace_seconds: int = 30
    misfire_cap: int = DEFAULT_MISFIRE_CAP
    misfire_max_age_seconds: int | None = None
    overlap: Overlap | str = Overlap.SKIP
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_retries: int = 3
    max_lost: int = 3
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 3_600_000
    timeout_ms: int | None = DEFAULT_TIMEOUT_MS
    delivery: Delivery | str = Delivery.AT_LEAST_ONCE
    max_running: int | None = None
    limit_key: str | None = None
    unique_key: str | None = None
    tags: tuple[str, ...] = ()


SPEC_FIELDS = frozenset(f.name for f in fields(JobSpec))
