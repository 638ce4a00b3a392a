"""Operations."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class OperationOut(BaseModel):
    """Something that is done to many executions or jobs, and how far it has come."""

    id: str
    action: Literal["cancel", "retry", "discard", "pause", "resume", "trigger", "delete"]
    subject: Literal["execution", "job"]
    state: Literal["pending", "running", "succeeded", "cancelled", "failed"] = Field(
        description="`succeeded`: every item was tried; `failed` counts those that could not be done."
    )
    total: int
    done: int
    failed: int
    progress: float = Field(description="From 0 to 1.")
    actor: str
    reason: str | None
    cancel_requested: bool
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class OperationItemOut(BaseModel):
    """What came of one; `waiting` until it has been tried."""

    number: int
    id: str
    status: Literal["done", "failed", "waiting"]
    execution_id: str | None
    error: str | None
