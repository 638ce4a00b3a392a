"""Schedules to look at, health, numbers, and who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import In, Interval, Moment, Words


class PreviewIn(In):
    """A schedule to look at."""

    schedule: Annotated[str, Field(max_length=1_000)] | None = None
    interval_seconds: Interval | None = None
    scheduled_at: Moment | None = None
    timezone: Annotated[str, Field(max_length=200)] = "UTC"
    on_gap: Literal["next_valid", "skip"] = "next_valid"
    on_repeat: Literal["first", "second", "both"] = "first"
    after: Moment | None = None
    count: int = Field(10, ge=1, le=100)
    queue: Words | None = Field(None, description="Tell also what else runs there at the next instant, and the slots.")
    job: Words | None = Field(None, description="The job whose schedule this is to be: it does not meet itself.")


class FireTimeOut(BaseModel):
    """An instant of a schedule; `note` says what a change of the clock does to it."""

    at: datetime
    local: str
    is_due: bool
    note: Literal["moved_by_gap", "skipped_by_gap", "first_of_repeat", "second_of_repeat"] | None


class LandedOnOut(BaseModel):
    """A job that runs at the same instant."""

    id: str
    label: str
    p95_seconds: float | None


class LandingOut(BaseModel):
    """What runs at the next instant in the queues that share the slots; `need` counts the new run too."""

    at: datetime
    jobs: list[LandedOnOut]
    one_offs: int
    need: int
    slots: int
    left_out: bool = Field(description="There are more jobs than were looked at.")


class NextOut(BaseModel):
    """When a job runs next."""

    description: str
    next: list[FireTimeOut]
    landing: LandingOut | None = None


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
