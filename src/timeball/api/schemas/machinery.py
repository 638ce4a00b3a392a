"""Queues, workers and schedulers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import LARGEST, In, Label, ProblemError, Reason


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


class HandlerToCheck(In):
    """A handler, and the schema that its stored payloads are to fit."""

    name: Label
    payload_schema: dict[str, Any]


class HandlerCheckIn(In):
    """Handlers of another version of a program."""

    handlers: list[HandlerToCheck] = Field(min_length=1, max_length=1_000)
    cursor: Annotated[str, Field(max_length=1_000)] | None = None


class StoredMisfitOut(BaseModel):
    """Something stored whose payload does not fit."""

    kind: Literal["job", "template", "execution"]
    id: str
    name: str | None = Field(description="Of the job or the template.")
    handler: str
    errors: list[ProblemError]


class HandlerCheckOut(BaseModel):
    """What does not fit among the payloads that were looked at; `next_cursor` goes on from there."""

    checked: int
    misfits: list[StoredMisfitOut]
    next_cursor: str | None
