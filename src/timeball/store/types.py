"""What the store's methods take and return, where it is not a domain value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from timeball.clock import ClockReading
    from timeball.domain.change_event import ChangeEvent
    from timeball.domain.execution import ClaimedExecution, Origin
    from timeball.domain.job import Job
    from timeball.domain.values.ids import ExecutionId, Incarnation, JobId
    from timeball.domain.wakeup import PeerWorker

# Rows that wait for a person, not for a time: the scheduler never looks that far.
PARKED_AT = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ShardOwnership:
    """The shards a scheduler owns, each with the epoch of its acquisition."""

    incarnation: Incarnation
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker can take: whose handlers, how many due now, how many to hold; of what is due, only what has waited so long.

    *has_competitors*: others are likely to be taking the same rows just now, so of several lanes it looks at more than it wants.
    """

    incarnation: Incarnation
    handlers: Sequence[str]
    slots: int
    holds: int
    unclaimed_for: timedelta = timedelta(0)
    has_competitors: bool = True


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What a worker was given. *is_contended*: others were just taking more. *is_at_limit*: the queue has no place left."""

    executions: list[ClaimedExecution]
    is_contended: bool
    is_at_limit: bool = False


@dataclass(frozen=True, slots=True)
class OrphanedClaim:
    """A running row whose holder is dead, or whose deadline has passed."""

    claimed: ClaimedExecution
    holder: Incarnation
    claimed_at: datetime
    is_orphan: bool


@dataclass(frozen=True, slots=True)
class ReadyExecution:
    """A ready execution, as far as a ticket has to know; its *fence* grows with every claim."""

    id: ExecutionId
    queue: str
    rank: datetime
    handler: str
    fence: int


@dataclass(frozen=True, slots=True)
class TicketClaimResult:
    """What a worker was given, and the ids of what it could have been given, had there been room."""

    executions: list[ClaimedExecution]
    left: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who does something, why, and from where."""

    actor: str
    reason: str | None = None
    place: str | None = None


# The id, the shard and the payload of a one-off.
EnqueueRow = tuple[UUID, int, str]


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """What plain one-offs have in common. The id, the shard and the payload of *job* mean nothing."""

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
    """What came of creating a job: its execution, or the one that held its unique key already."""

    job_id: JobId
    execution_id: ExecutionId | None
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """An execution somebody asks for of a job that is there: a trigger, a retry, a backfill."""

    id: ExecutionId
    job_id: JobId
    origin: Origin
    run_at: datetime | None = None
    scheduled_for: datetime | None = None
    payload: str | None = None
    retry_of: ExecutionId | None = None
    created_by: str | None = None
    bound_secrets_only: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line that a handler said."""

    execution_id: ExecutionId
    fence: int
    number: int
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """An accepted renewal: whether the node is to drain, what the database's clock said, and who can stand in for the node."""

    is_draining: bool
    reading: ClockReading
    peers: Sequence[PeerWorker]


@dataclass(frozen=True, slots=True)
class ShardHolding:
    """What a scheduler owns: shards with their epochs. Whether it is alive, and one of those among which all shards are shared.

    What nobody owns is a holding without an owner.
    """

    owner: Incarnation | None
    is_alive: bool
    takes_shards: bool
    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """What happened, and where the stream is now.

    *is_complete* is False if some was left out because there was too much, or because the position was another database's.
    """

    position: str
    events: Sequence[ChangeEvent]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What a fold did: how many records it took, and whether there is more to take at once."""

    records: int
    has_more: bool
