"""Queues, workers and schedulers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import LARGEST, Reason


class QueueLimit(Reason):
    """How many of a queue may run together; null takes the limit away."""

    max_running: Annotated[int, Field(ge=1, le=LARGEST)] | None


class PurgeIn(Reason):
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


class HandlerOut(BaseModel):
    """A handler; what is not known here, because only a worker has it, is null."""

    name: str
    description: str | None
    run_style: Literal["coroutine", "thread", "process"] | None
    payload_schema: dict[str, Any] | None = Field(description="JSON Schema of the payload.")
    example: Any = Field(description="A payload it would take.")
    is_enabled_here: bool | None = Field(description="Whether a worker with this process's settings would run it.")
    workers: int = Field(description="How many workers that are alive know it.")
    needs_role: Literal["editor", "admin"] = Field(description="Which role may write its payload.")
