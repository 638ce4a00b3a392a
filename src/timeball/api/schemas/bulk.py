"""Many at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from timeball.api.schemas.common import In, Label, Moment, Reason, Words
from timeball.api.schemas.jobs import JobIn

ExpectedCount = Annotated[
    Annotated[int, Field(ge=0)] | None, Field(description="Refuse with 409 if another number would be touched.")
]


class BulkJobs(In):
    """Many jobs at once."""

    jobs: list[JobIn] = Field(min_length=1, max_length=10_000)
    mode: Literal["all_or_nothing", "per_item"] = "all_or_nothing"


class JobChoice(In):
    """Which jobs: a filter like the one of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: Words | None = None
    queue: Words | None = None
    tag: Words | None = None
    named: bool = Field(False, description="Only those with a name: no one-offs that were enqueued without one.")
    q: Annotated[str, Field(max_length=1_000)] | None = None


class JobBulkIn(Reason):
    """Many jobs, by id or name, or found by a filter."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=500)
    filter: JobChoice | None = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class ExecutionChoice(In):
    """Which executions: a filter like the one of the list."""

    status: list[Label] = Field(default_factory=list, max_length=12)
    handler: Words | None = None
    queue: Words | None = None
    q: Annotated[str, Field(max_length=1_000)] | None = None
    start_date: Moment | None = None
    end_date: Moment | None = None


class ExecutionBulkIn(Reason):
    """Something to do to many executions, named or found by a filter."""

    action: Literal["cancel", "retry"]
    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    filter: ExecutionChoice | None = None
    dry_run: bool = False
    expected_count: ExpectedCount = None


class DeadChoice(Reason):
    """Dead executions: named, all of one fingerprint (`none`: those without), of one handler or one queue, or all."""

    ids: list[Label] | None = Field(None, min_length=1, max_length=10_000)
    fingerprint: Words | None = None
    handler: Words | None = None
    queue: Words | None = None
    all: bool = False


class ExecutionIds(BaseModel):
    """Executions that were created."""

    count: int
    execution_ids: list[str]


class BulkItem(BaseModel):
    """What came of one of many."""

    index: int
    status: Literal["created", "existing", "failed"]
    job_id: str | None
    execution_id: str | None
    error: str | None


class BulkCreated(BaseModel):
    """What came of many jobs."""

    created: int
    failed: int
    results: list[BulkItem]
    warnings: list[str] = Field(
        description="What may be wrong with them, such as a handler that no worker has published."
    )


class ItemOut(BaseModel):
    """What came of one of many."""

    id: str
    status: Literal["done", "failed", "would_be_done"]
    execution_id: str | None = None
    error: str | None = None


class BulkOut(BaseModel):
    """What came of each; `has_more` says that a dry run would touch more than are shown."""

    done: int
    failed: int
    has_more: bool
    results: list[ItemOut]
