"""Arguments and results of the store's methods that are not domain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.expiry import NEVER, Expiry

if TYPE_CHECKING:
    from timeball.domain.change_event import ChangeEvent
    from timeball.domain.execution import ClaimedExecution, Origin
    from timeball.domain.job import Job, JobView
    from timeball.domain.job_changes import JobChange, JobSnapshot
    from timeball.domain.values.ids import ExecutionId, Incarnation, JobId
    from timeball.domain.wakeup import PeerWorker
    from timeball.env import ClockReading

# The time of parked rows, which wait until their job is resumed: the scheduler never looks that far ahead.
PARKED_AT = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ShardOwnership:
    """The shards a scheduler owns, each with the epoch of its acquisition."""

    incarnation: Incarnation
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker can take: for which handlers, how many due executions, and how many to hold until their instant.

    *unclaimed_for*: of the due ones, only those that have been due for so long. *has_competitors*: other workers are likely to claim
    from the same lanes at this moment, so of several lanes more rows are read than are taken.
    """

    incarnation: Incarnation
    handlers: Sequence[str]
    slots: int
    holds: int
    unclaimed_for: timedelta = timedelta(0)
    has_competitors: bool = True


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The executions of a claim. *is_contended*: other workers are taking more. *is_at_limit*: the limit of the queue is reached."""

    executions: list[ClaimedExecution]
    is_contended: bool
    is_at_limit: bool = False


@dataclass(frozen=True, slots=True)
class OrphanedClaim:
    """A running execution whose holder is dead, or whose deadline has passed."""

    claimed: ClaimedExecution
    holder: Incarnation
    claimed_at: datetime
    is_orphan: bool


@dataclass(frozen=True, slots=True)
class ReadyExecution:
    """The columns of a ready execution that a ticket needs; *fence* grows with every claim."""

    id: ExecutionId
    queue: str
    rank: datetime
    handler: str
    fence: int


@dataclass(frozen=True, slots=True)
class TicketClaimResult:
    """The executions of a claim, and the ids of those that the worker could have taken with more slots."""

    executions: list[ClaimedExecution]
    left: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The actor of a change, the reason, and where it came from."""

    actor: str
    reason: str | None = None
    place: str | None = None


# The id, the shard and the payload of a one-off.
EnqueueRow = tuple[UUID, int, str]


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """The columns that plain one-offs share. The id, the shard and the payload of *job* mean nothing."""

    job: Job
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstExecution:
    """The first execution of a new job. Without *run_at* it is due now, by the database's clock."""

    id: ExecutionId
    job_id: JobId
    origin: Origin
    run_at: datetime | None = None
    scheduled_for: datetime | None = None
    watermark: datetime | None = None
    tzdata: str | None = None
    executions_left: int | None = None


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """The result of creating a job: its execution, or the one that has its unique key already."""

    job_id: JobId
    execution_id: ExecutionId | None
    is_new: bool
    # The job as it was written, if the caller wants to show it and this call has written it.
    view: JobView | None = None


@dataclass(frozen=True, slots=True)
class JobDecision:
    """What decides about a job once it is locked, and the names of the calendars that the change may give to it."""

    decide: Callable[[JobSnapshot], JobChange]
    calendars: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class OwnWords:
    """What an execution was given in place of the words of its job; None where it uses those of the job.

    *payload* is JSON text; with *bound_secrets_only* it may use bound secrets only.
    """

    payload: str | None = None
    meta: Mapping[str, Any] | None = None
    bound_secrets_only: bool = False
    # The calls that follow it.
    calls: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """A requested execution of an existing job: a trigger, a retry, a backfill."""

    id: ExecutionId
    job_id: JobId
    origin: Origin
    run_at: datetime | None = None
    scheduled_for: datetime | None = None
    payload: str | None = None
    retry_of: ExecutionId | None = None
    created_by: str | None = None
    # In place of the priority of its job.
    priority: int | None = None
    # How long it has to begin; without a word about it, as long as its job says.
    expiry: Expiry = NEVER
    bound_secrets_only: bool = False
    # In place of the meta of its job.
    meta: Mapping[str, Any] | None = None
    # The calls that follow it, by their fields, in place of those that follow the executions of its job.
    calls: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log of a handler."""

    execution_id: ExecutionId
    fence: int
    number: int
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """An accepted renewal: whether the node is to drain, the clock of the database, and the peers of the node."""

    is_draining: bool
    reading: ClockReading
    peers: Sequence[PeerWorker]


@dataclass(frozen=True, slots=True)
class ShardHolding:
    """The shards of an owner, with their epochs. *takes_shards*: it is one of the schedulers among which all shards are distributed.

    Shards without an owner are a holding of None.
    """

    owner: Incarnation | None
    is_alive: bool
    takes_shards: bool
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Events, and the present position of the stream.

    *is_complete* is False if events were left out, because there were too many, or because the position was that of another database.
    """

    position: str
    events: Sequence[ChangeEvent]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class HousekeepingWork:
    """What there is to do for the housekeeper that is rarely there: operations without a process, and webhooks."""

    has_operations: bool
    has_webhooks: bool


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """An event, and the number of the transaction that recorded it."""

    event: ChangeEvent
    recorded: int


@dataclass(frozen=True, slots=True)
class ChangePage:
    """All events of some transactions, and the position behind them. *is_from_elsewhere*: the position was that of another database."""

    position: str
    changes: Sequence[RecordedChange]
    has_more: bool
    is_from_elsewhere: bool


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The number of records of a fold, and whether there are more at once."""

    records: int
    has_more: bool


class OccurrenceRaceError(Exception):
    """A scheduler has inserted the next occurrence of the job in between: the transaction is repeated."""
