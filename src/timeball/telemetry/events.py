"""Telemetry events: the engine emits them; logs, metrics and live pages are made from them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from timeball.domain.values.ids import ExecutionId, Incarnation


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node began a life."""

    incarnation: Incarnation
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """A node ended its life in good order."""

    incarnation: Incarnation
    kind: str
    given_back: int = 0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """This node's life ended without its wish: lease run out, or the database is another one now."""

    incarnation: Incarnation
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeExpired:
    """Another node's lease has passed; what it held will be reaped."""

    incarnation: Incarnation
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ShardsChanged:
    """This scheduler's share of the schedule is another one now."""

    gained: int
    released: int
    owned: int


@dataclass(frozen=True, slots=True)
class ExecutionsPromoted:
    """Executions were moved to `ready`, and occurrences skipped."""

    runs: int
    skipped: int
    refused: int


@dataclass(frozen=True, slots=True)
class OccurrencesRecorded:
    """Occurrences were recorded, as executions or as skipped; *late* has the seconds of those whose exact instant had passed."""

    count: int
    late: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OccurrencesSkipped:
    """Occurrences of one job were recorded as skipped."""

    job_id: UUID
    count: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutionsSucceeded:
    """Executions succeeded, since the last such event."""

    count: int
    worst_lateness: timedelta


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt did not succeed; *becomes* says what follows."""

    execution_id: ExecutionId
    handler: str
    attempt: int
    outcome: str
    becomes: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RetriesHeldBack:
    """Retries that a target's budget had no room for; they wait a little longer, uncounted."""

    target: str
    count: int


@dataclass(frozen=True, slots=True)
class HandlerYielded:
    """A payload did not fit this worker's version of a handler; it leaves the handler to the living workers with a newer one."""

    handler: str
    version: str
    newest: str


@dataclass(frozen=True, slots=True)
class HandlerResumed:
    """No living worker has a newer version of a handler any more: this worker claims it again."""

    handler: str
    version: str


@dataclass(frozen=True, slots=True)
class OutcomeRefused:
    """A stale outcome: the row no longer named its claim. Nothing was changed."""

    execution_id: ExecutionId
    handler: str
    fence: int


@dataclass(frozen=True, slots=True)
class OutcomeUnwritable:
    """The database could not hold an outcome: another one was written in its place, which says why (*is_replaced*), or none yet."""

    execution_id: ExecutionId
    handler: str
    error: str
    is_replaced: bool


@dataclass(frozen=True, slots=True)
class ExecutionsRescued:
    """Attempts that nobody alive held, or that ran past their deadline, got an outcome."""

    lost: int
    timed_out: int


@dataclass(frozen=True, slots=True)
class OrphanedClaimsAdopted:
    """Executions stood in this worker's name without its knowledge: a claim arrived long after it was given up."""

    count: int


@dataclass(frozen=True, slots=True)
class ServiceFailed:
    """A loop met an error, so many times in a row by now; it goes on after a pause."""

    service: str
    error: str
    pause: timedelta
    traceback: str | None = None
    failures: int = 1


@dataclass(frozen=True, slots=True)
class ServiceRecovered:
    """A loop works again after failures."""

    service: str
    failures: int


@dataclass(frozen=True, slots=True)
class ListenerChanged:
    """Hints reach this node again, or no longer; polling goes on either way."""

    is_listening: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The database's clock was set, or another one answers; forward if *by* is more than nothing."""

    by: timedelta


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """Something kept the event loop from turning for a while: a handler that blocks, most likely."""

    blocked_for: timedelta
    stack: str | None


@dataclass(frozen=True, slots=True)
class HistoryTrimmed:
    """A day of history was dropped."""

    day: str
    executions: int


@dataclass(frozen=True, slots=True)
class RecordsTrimmed:
    """What stands beside the history was trimmed."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class ScheduleUndeclared:
    """A program once declared this job, and does so no more; it goes on running until somebody pauses or deletes it."""

    job_id: UUID
    name: str
    declared_by: str


@dataclass(frozen=True, slots=True)
class UnknownSetting:
    """A variable of the environment looks like a setting, and nothing reads it."""

    name: str
    advice: str


@dataclass(frozen=True, slots=True)
class ProcessRestarted:
    """This process stands for one that died, so many times lately."""

    process: str
    reason: str
    deaths: int


@dataclass(frozen=True, slots=True)
class OutputLost:
    """Lines of this process could not be written to its standard output or standard error; now they can again."""

    stream: str
    lines: int
    reason: str


@dataclass(frozen=True, slots=True)
class TelemetryFailed:
    """A log or a counter could not take an event, so many times by now; the engine went on."""

    event_name: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """A worker takes no more work, and finishes what it has."""

    running: int
    grace: timedelta


@dataclass(frozen=True, slots=True)
class BrokerLost:
    """The broker carries no tickets for this node; work goes on through PostgreSQL."""

    broker: str
    error: str


@dataclass(frozen=True, slots=True)
class BrokerSilent:
    """The broker answers, but tickets for what is ready do not come: does a scheduler use the same broker?"""

    broker: str


@dataclass(frozen=True, slots=True)
class BrokerRecovered:
    """The broker carries tickets for this node, for the first time or again."""

    broker: str


@dataclass(frozen=True, slots=True)
class TicketsPublished:
    """Tickets for ready executions went to the broker, some of them *again*."""

    count: int
    again: int


@dataclass(frozen=True, slots=True)
class TicketsUsed:
    """A worker received tickets, and claimed some of their executions; others were gone already, or had no room."""

    received: int
    claimed: int


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A browser began a session of the dashboard with a key."""

    actor: str
    place: str


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """A request or a login bore no valid key.

    *count* is how many did from this place since the last line that told of them; 0 if no line is to tell of this one.
    """

    place: str
    count: int


Event = (
    NodeStarted
    | NodeStopped
    | NodeLost
    | NodeExpired
    | ShardsChanged
    | ExecutionsPromoted
    | OccurrencesRecorded
    | OccurrencesSkipped
    | ExecutionsSucceeded
    | AttemptFailed
    | RetriesHeldBack
    | HandlerYielded
    | HandlerResumed
    | OutcomeRefused
    | OutcomeUnwritable
    | ExecutionsRescued
    | OrphanedClaimsAdopted
    | ServiceFailed
    | ServiceRecovered
    | ListenerChanged
    | ClockStepped
    | LoopBlocked
    | HistoryTrimmed
    | RecordsTrimmed
    | ScheduleUndeclared
    | UnknownSetting
    | ProcessRestarted
    | OutputLost
    | TelemetryFailed
    | WorkerDraining
    | BrokerLost
    | BrokerSilent
    | BrokerRecovered
    | TicketsPublished
    | TicketsUsed
    | LoggedIn
    | KeyRefused
)

Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """An `emit` for those who do not want to know."""
