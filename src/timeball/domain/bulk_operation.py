"""Bulk operations: one action on many executions or jobs, in the background if there are very many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NewType
from uuid import UUID

from timeball.domain.values.ids import ExecutionId, JobId

if TYPE_CHECKING:
    from timeball.domain.backfill import Backfill

OperationId = NewType("OperationId", UUID)

# A larger operation must be split by the caller.
MAX_OPERATION_ITEMS = 100_000


class OperationSubject(StrEnum):
    """What an operation acts on."""

    EXECUTION = "execution"
    JOB = "job"


class OperationAction(StrEnum):
    """The action on each item; `discard` removes dead executions from the dead-letter list.

    `backfill` feeds executions of one job (domain/backfill.py).

    For a job, `cancel` cancels its running or waiting execution and `retry` retries the one that ended last. The actions
    from `pause` on are for jobs only.
    """

    CANCEL = "cancel"
    RETRY = "retry"
    DISCARD = "discard"
    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    DELETE = "delete"
    BACKFILL = "backfill"

    @property
    def makes_executions(self) -> bool:
        return self in (OperationAction.RETRY, OperationAction.TRIGGER)


class OperationState(StrEnum):
    """The state of an operation. `succeeded` means that every item was tried; some may have failed. Only backfills are paused."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation and its progress."""

    id: OperationId
    action: OperationAction
    subject: OperationSubject
    state: OperationState
    actor: str
    place: str | None
    reason: str | None
    # Whether a retry removes the execution from the dead-letter list.
    settles: bool
    # The end of the pauses that it makes.
    until: datetime | None
    total: int
    done: int
    failed: int
    cancel_requested: bool
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    backfill: Backfill | None = None
    # The last occurrence that a backfill has looked at.
    cursor: datetime | None = None

    @property
    def progress(self) -> float:
        """How much of it is done, from 0 to 1; of a backfill, how much of its span it has looked at."""
        if self.backfill is not None:
            return self.backfill.share_before(self.cursor)
        return (self.done + self.failed) / self.total if self.total else 1.0

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationItem:
    """One of the executions or jobs, and its result once it was tried.

    *result_id* is the id of the execution that a retry or a trigger creates. It is chosen beforehand, so that a second
    try finds the execution of the first. For a cancelled job, it is the execution that was cancelled.
    """

    number: int
    execution_id: ExecutionId | None = None
    job_id: JobId | None = None
    status: str | None = None
    result_id: ExecutionId | None = None
    error: str | None = None

    @property
    def new_execution_id(self) -> ExecutionId:
        """The id that was chosen for the execution to create."""
        assert self.result_id is not None
        return self.result_id
