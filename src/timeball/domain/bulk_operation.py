"""Operations: one thing that is done to many executions or jobs, in the background if they are very many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

from timeball.domain.values.ids import ExecutionId, JobId

OperationId = NewType("OperationId", UUID)

# More than this is not done in one go: whoever means it can say so in parts.
MAX_OPERATION_ITEMS = 100_000


class OperationSubject(StrEnum):
    """What an operation is done to."""

    EXECUTION = "execution"
    JOB = "job"


class OperationAction(StrEnum):
    """What is done to each; `discard` takes the dead off the dead-letter list.

    Of a job, `cancel` gives up what runs or waits, and `retry` runs what ended last. What follows here is for jobs only.
    """

    CANCEL = "cancel"
    RETRY = "retry"
    DISCARD = "discard"
    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    DELETE = "delete"

    @property
    def makes_executions(self) -> bool:
        return self in (OperationAction.RETRY, OperationAction.TRIGGER)


class OperationState(StrEnum):
    """How an operation stands. `succeeded` means that every item was tried; some may have failed."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation and how far it has come."""

    id: OperationId
    action: OperationAction
    subject: OperationSubject
    state: OperationState
    actor: str
    place: str | None
    reason: str | None
    # Whether what is retried leaves the dead-letter list.
    settles: bool
    total: int
    done: int
    failed: int
    cancel_requested: bool
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationItem:
    """One of the executions or jobs: what came of it, once it was tried.

    *made* is the id of the execution that a retry or a trigger makes: it is chosen beforehand, so that a second try
    finds the first. Of a job whose execution was cancelled, it is that one.
    """

    number: int
    execution_id: ExecutionId | None = None
    job_id: JobId | None = None
    status: str | None = None
    result_id: ExecutionId | None = None
    error: str | None = None

    @property
    def new_execution_id(self) -> ExecutionId:
        """The id that was chosen for what is made."""
        assert self.result_id is not None
        return self.result_id
