"""Declared jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import Label, Reason
from timeball.api.schemas.jobs import JobIn


class SyncIn(Reason):
    """The jobs that are to be there, each with a name."""

    jobs: list[JobIn] = Field(max_length=1_000)
    declared_by: Label = Field("api", description="Whose declaration this is; only its own jobs are ever pruned.")
    prune: bool = Field(False, description="Delete jobs of this declaration that are no longer declared.")
    dry_run: bool = Field(False, description="Show what would be done, and do nothing.")


class FieldChange(BaseModel):
    """A field that differs."""

    before: Any
    after: Any


class SyncStep(BaseModel):
    """One job: what is done to it, what differs, and when it runs next, before and after."""

    name: str
    action: Literal["create", "change", "leave", "delete"]
    id: str | None
    version: int | None
    changes: dict[str, FieldChange]
    next_before: list[datetime]
    next_after: list[datetime]


class SyncOut(BaseModel):
    """What was done, or would be."""

    dry_run: bool
    created: int
    changed: int
    left: int
    deleted: int
    jobs: list[SyncStep]
    warnings: list[str] = Field(
        description="What may be wrong with them, such as a handler that no worker has published."
    )
