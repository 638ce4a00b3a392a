"""Telemetry events: the engine emits them; logs, metrics and live pages are made from them alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from timeball.domain.values.ids import ExecutionId, Incarnation


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """Something that happened in a process: the name and the level of its log line, and the fields of that line."""

    log_name: ClassVar[str]
    log_level: ClassVar[int] = logging.INFO


@dataclass(frozen=True, slots=True)
class NodeStarted(TelemetryEvent):
    """A node has registered and started its services."""

    log_name = "node.started"

    incarnation: Incarnation
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class NodeStopped(TelemetryEvent):
    """A node has left in good order."""

    log_name = "node.stopped"

    incarnation: Incarnation
    kind: str
    given_back: int = 0


@dataclass(frozen=True, slots=True)
class NodeLost(TelemetryEvent):
    """This node has lost its lease, or runs on another database now. Another node starts in its place."""

    log_name = "node.lost"
    log_level = logging.ERROR

    incarnation: Incarnation
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeExpired(TelemetryEvent):
    """The lease of another node has passed; what it held is rescued."""

    log_name = "node.expired"
    log_level = logging.WARNING

    incarnation: Incarnation
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ApiStarted(TelemetryEvent):
    """API and dashboard take requests. *embedded_database* is the URL of the embedded PostgreSQL for other programs."""

    log_name = "api.started"

    address: str
    embedded_database: str | None = None


@dataclass(frozen=True, slots=True)
class ApiStopped(TelemetryEvent):
    """API and dashboard have left in good order."""

    log_name = "api.stopped"

    address: str


@dataclass(frozen=True, slots=True)
class ShardsChanged(TelemetryEvent):
    """This scheduler owns other shards of the schedule now."""

    log_name = "shards.changed"

    gained: int
    released: int
    owned: int


@dataclass(frozen=True, slots=True)
class ExecutionsPromoted(TelemetryEvent):
    """Executions were moved to `ready`, and occurrences skipped."""

    log_name = "executions.promoted"
    log_level = logging.DEBUG

    runs: int
    skipped: int
    refused: int


@dataclass(frozen=True, slots=True)
class OccurrencesRecorded(TelemetryEvent):
    """Occurrences were recorded, as executions or as skipped; *late* has the seconds of those whose exact instant had passed."""

    log_name = "occurrences.recorded"
    log_level = logging.DEBUG

    count: int
    late: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OccurrencesSkipped(TelemetryEvent):
    """Occurrences of one job were recorded as skipped."""

    log_name = "occurrences.skipped"

    job_id: UUID
    count: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutionsSucceeded(TelemetryEvent):
    """Executions succeeded, since the last such event."""

    log_name = "executions.succeeded"

    count: int
    worst_lateness: timedelta


@dataclass(frozen=True, slots=True)
class AttemptFailed(TelemetryEvent):
    """An attempt did not succeed; *becomes* says what follows."""

    log_name = "attempt.failed"
    log_level = logging.WARNING

    execution_id: ExecutionId
    handler: str
    attempt: int
    outcome: str
    becomes: str
    error: str | None


@dataclass(frozen=True, slots=True)
class AttemptFailedAsExpected(AttemptFailed):
    """The same, for an error that the handler has declared as expected: no news, so its log line is no warning."""

    log_name = "attempt.failed_as_expected"
    log_level = logging.INFO


@dataclass(frozen=True, slots=True)
class RetriesHeldBack(TelemetryEvent):
    """The budget of a target had no room for these retries; they wait a little longer, uncounted."""

    log_name = "retries.held_back"
    log_level = logging.WARNING

    target: str
    count: int


@dataclass(frozen=True, slots=True)
class HandlerYielded(TelemetryEvent):
    """A payload did not fit this worker's version of a handler; the worker leaves the handler to living workers with a newer one."""

    log_name = "handler.yielded"
    log_level = logging.WARNING

    handler: str
    version: str
    newest: str


@dataclass(frozen=True, slots=True)
class HandlerResumed(TelemetryEvent):
    """No living worker has a newer version of a handler: this worker claims it again."""

    log_name = "handler.resumed"

    handler: str
    version: str


@dataclass(frozen=True, slots=True)
class TimeoutsNotEnforced(TelemetryEvent):
    """Plain functions of this worker declare a timeout, and nothing ends them or tells their code."""

    log_name = "handlers.timeouts_not_enforced"
    log_level = logging.WARNING

    handlers: str
    hint: str = "they learn of it by current.cancelled alone: add interrupt=True or isolate=True, or make them coroutine functions"


@dataclass(frozen=True, slots=True)
class WorkerOverMemory(TelemetryEvent):
    """A worker process keeps more memory than it may: it drains and ends, and its supervisor starts another."""

    log_name = "worker.over_memory"
    log_level = logging.WARNING

    used: str
    allowed: str


@dataclass(frozen=True, slots=True)
class OutcomeRefused(TelemetryEvent):
    """A stale outcome was refused, because the row no longer named its claim. Nothing was changed."""

    log_name = "stale_outcome"
    log_level = logging.WARNING

    execution_id: ExecutionId
    handler: str
    fence: int


@dataclass(frozen=True, slots=True)
class OutcomeUnwritable(TelemetryEvent):
    """The database could not store an outcome. One that says why was written in its place (*is_replaced*), or none yet."""

    log_name = "outcome.unwritable"
    log_level = logging.ERROR

    execution_id: ExecutionId
    handler: str
    error: str
    is_replaced: bool


@dataclass(frozen=True, slots=True)
class ExecutionsRescued(TelemetryEvent):
    """Attempts whose worker is gone, or that ran past their deadline, got an outcome."""

    log_name = "executions.rescued"
    log_level = logging.WARNING

    lost: int
    timed_out: int


@dataclass(frozen=True, slots=True)
class ExecutionsExpired(TelemetryEvent):
    """Executions had not begun in time, and were recorded as skipped."""

    log_name = "executions.expired"

    count: int


@dataclass(frozen=True, slots=True)
class AlertOpened(TelemetryEvent):
    """A fact that a person should act upon has opened an alert."""

    log_name = "alert.opened"
    log_level = logging.WARNING

    alert: str
    kind: str
    severity: str
    sentence: str


@dataclass(frozen=True, slots=True)
class AlertResolved(TelemetryEvent):
    """The fact of an alert is gone."""

    log_name = "alert.resolved"

    alert: str
    kind: str


@dataclass(frozen=True, slots=True)
class WatchStarted(TelemetryEvent):
    """A watcher has started: what it looks at, and how it tells what it sees."""

    log_name = "watch.started"

    database: str
    every: timedelta
    tells: str


@dataclass(frozen=True, slots=True)
class WatchStopped(TelemetryEvent):
    """A watcher has stopped."""

    log_name = "watch.stopped"


@dataclass(frozen=True, slots=True)
class FactSeen(TelemetryEvent):
    """A watcher sees a fact for the first time. It opens an alert if it lasts."""

    log_name = "watch.seen"
    log_level = logging.WARNING

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class AlertDelivered(TelemetryEvent):
    """A watcher has sent a message of an alert to a channel."""

    log_name = "alert.delivered"

    alert: str
    channel: str
    message: str


@dataclass(frozen=True, slots=True)
class AlertNotDelivered(TelemetryEvent):
    """A watcher could not send a message of an alert to a channel. Without *retry_after* it is given up."""

    log_name = "alert.not_delivered"
    log_level = logging.ERROR

    alert: str
    channel: str
    message: str
    error: str
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class PingFailed(TelemetryEvent):
    """The address that a watcher pings did not take it. It tries again with the next look."""

    log_name = "watch.ping_failed"
    log_level = logging.WARNING

    error: str


@dataclass(frozen=True, slots=True)
class OrphanedClaimsAdopted(TelemetryEvent):
    """This worker held executions that it did not know of: a claim arrived long after it was given up."""

    log_name = "claims.adopted"
    log_level = logging.WARNING

    count: int


@dataclass(frozen=True, slots=True)
class ServiceFailed(TelemetryEvent):
    """A service met an error, so many times in a row by now; it goes on after a pause."""

    log_name = "service.failed"
    log_level = logging.ERROR

    service: str
    error: str
    pause: timedelta
    traceback: str | None = None
    failures: int = 1


@dataclass(frozen=True, slots=True)
class ServiceRecovered(TelemetryEvent):
    """A service works again after failures."""

    log_name = "service.recovered"

    service: str
    failures: int


@dataclass(frozen=True, slots=True)
class ListenerChanged(TelemetryEvent):
    """Wake-ups reach this node again, or no longer; polling goes on either way."""

    log_name = "listener.changed"

    is_listening: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClockStepped(TelemetryEvent):
    """The database's clock was set, or another database answers; forward if *by* is positive."""

    log_name = "clock.stepped"
    log_level = logging.WARNING

    by: timedelta


@dataclass(frozen=True, slots=True)
class LoopBlocked(TelemetryEvent):
    """The event loop did not turn for a while; most likely a handler blocked it."""

    log_name = "loop.blocked"
    log_level = logging.WARNING

    blocked_for: timedelta
    stack: str | None


@dataclass(frozen=True, slots=True)
class HistoryTrimmed(TelemetryEvent):
    """A day of history was removed."""

    log_name = "history.trimmed"

    day: str
    executions: int


@dataclass(frozen=True, slots=True)
class RecordsTrimmed(TelemetryEvent):
    """Old records beside the history were removed."""

    log_name = "records.trimmed"

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class WebhookDisabled(TelemetryEvent):
    """A webhook gets no more events, because of what its address did."""

    log_name = "webhook.disabled"
    log_level = logging.WARNING

    webhook_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class ScheduleUndeclared(TelemetryEvent):
    """A program declared this job once and does so no more; the job goes on until it is paused or deleted."""

    log_name = "schedule.undeclared"
    log_level = logging.WARNING

    job_id: UUID
    name: str
    declared_by: str


@dataclass(frozen=True, slots=True)
class UnknownSetting(TelemetryEvent):
    """An environment variable looks like a setting, but there is no such setting."""

    log_name = "setting.unknown"
    log_level = logging.WARNING

    name: str
    advice: str


@dataclass(frozen=True, slots=True)
class ProcessRestarted(TelemetryEvent):
    """This process replaces one that died, so many times lately."""

    log_name = "process.restarted"
    log_level = logging.ERROR

    process: str
    reason: str
    deaths: int


@dataclass(frozen=True, slots=True)
class OutputLost(TelemetryEvent):
    """Lines of this process could not be written to its standard output or standard error; now they can again."""

    log_name = "output.lost"
    log_level = logging.ERROR

    stream: str
    lines: int
    reason: str


@dataclass(frozen=True, slots=True)
class TelemetryFailed(TelemetryEvent):
    """A log or a counter failed on an event, so many times by now; the engine went on."""

    log_name = "telemetry.failed"
    log_level = logging.ERROR

    event_name: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True)
class WorkerDraining(TelemetryEvent):
    """A worker claims no more, and finishes what it runs."""

    log_name = "worker.draining"

    running: int
    grace: timedelta


@dataclass(frozen=True, slots=True)
class BrokerLost(TelemetryEvent):
    """The broker cannot be reached from this node; work goes on through PostgreSQL."""

    log_name = "broker.lost"
    log_level = logging.WARNING

    broker: str
    error: str


@dataclass(frozen=True, slots=True)
class BrokerSilent(TelemetryEvent):
    """The broker answers, but no tickets arrive for ready executions: does a scheduler use the same broker?"""

    log_name = "broker.silent"
    log_level = logging.WARNING

    broker: str


@dataclass(frozen=True, slots=True)
class BrokerRecovered(TelemetryEvent):
    """The broker carries tickets for this node, for the first time or again."""

    log_name = "broker.recovered"

    broker: str


@dataclass(frozen=True, slots=True)
class TicketsPublished(TelemetryEvent):
    """Tickets for ready executions were published, some of them *again*."""

    log_name = "tickets.published"
    log_level = logging.DEBUG

    count: int
    again: int


@dataclass(frozen=True, slots=True)
class TicketsUsed(TelemetryEvent):
    """A worker received tickets and claimed some of their executions; the others were gone already, or had no slot."""

    log_name = "tickets.used"
    log_level = logging.DEBUG

    received: int
    claimed: int


@dataclass(frozen=True, slots=True)
class LoggedIn(TelemetryEvent):
    """A browser started a session of the dashboard with a key."""

    log_name = "session.started"

    actor: str
    place: str


@dataclass(frozen=True, slots=True)
class KeyRefused(TelemetryEvent):
    """A request or a login had no valid key.

    *count* is the number of such requests from this place since the last log line about them; 0 if this one gets no line.
    """

    log_name = "key.refused"
    log_level = logging.WARNING

    place: str
    count: int


Emit = Callable[[TelemetryEvent], None]


def ignore(_event: TelemetryEvent) -> None:
    """An `emit` that does nothing."""
