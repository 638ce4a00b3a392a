"""Queues, workers and schedulers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import LARGEST, Reason


class QueueLimit(Reason):
    """How many of a queue may run together; null takes the limit away."""

    max_running: Annotated[int, Field(ge=1, le=LARGEST)] | None


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
