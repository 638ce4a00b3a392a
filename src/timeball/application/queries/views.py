"""What queries take and return: request and result values, without the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import Any

from timeball.domain.execution import Attempt, Execution
from timeball.domain.explain.diagnosis import DiagnosisStatus
from timeball.domain.forecast.demand import Collision, ForecastJob
from timeball.domain.forecast.suggestions import ScheduleShift, ShiftPlan
from timeball.domain.forecast.timeline import MarkRow
from timeball.domain.handler_contract import ContractVersion
from timeball.domain.job import Job, JobStatus
from timeball.domain.node import NodeStatus
from timeball.domain.rollup import HOURS_KEPT, Rollup, sum_rollups
from timeball.domain.scheduling.schedule import Manual, Occurrence
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.errors import InvalidInput
from timeball.store.search.listing import JobSituation
from timeball.store.types import LogRecord


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and how it stands."""

    job: Job
    situation: JobSituation

    @property
    def status(self) -> JobStatus:
        if self.job.is_paused:
            return JobStatus.PAUSED
        is_open = self.situation.is_live or isinstance(self.job.rule, Manual)
        return JobStatus.ACTIVE if is_open else JobStatus.FINISHED


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """An execution in full: its attempts, the payload it was given, why it is being stopped."""

    execution: Execution
    attempts: Sequence[Attempt]
    payload: str
    fingerprint: str | None
    stop: str | None


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of a log. The cursor goes on behind the last line, also while more lines are being written."""

    lines: Sequence[LogRecord]
    next_cursor: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class FireTime:
    """An instant of a schedule, as the clock of its zone shows it."""

    occurrence: Occurrence
    local: datetime


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One thing that was looked at: `ok`, `warn` or `fail`, and what was found."""

    name: str
    status: str
    detail: str


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, before and after."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One change of a job. The instants say for which occurrences its version answers, where that is kept."""

    at: datetime | None
    actor: str | None
    action: str
    reason: str | None
    version: int | None
    changes: tuple[FieldChange, ...] = ()
    effective_from: datetime | None = None
    effective_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    """What needs a human: one sentence, what to do, where to look as (kind, id), why, and what to type."""

    code: str
    status: DiagnosisStatus
    sentence: str
    advice: str | None
    target: tuple[str, str] | None
    why: str | None = None
    command: str | None = None


class RowsBy(StrEnum):
    """What a row of the drawing is."""

    JOBS = "jobs"
    QUEUES = "queues"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRequest:
    """What to draw, and how wide in pixels."""

    start: datetime
    end: datetime
    queue: str | None = None
    rows_by: RowsBy = RowsBy.JOBS
    limit: int = 50
    width: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BandStep:
    """The slots in one step of time: busy on average, the most at once, and what there is."""

    start: datetime
    end: datetime
    busy: float
    peak: int
    is_predicted: bool
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole drawing. *has_more* rows were left out; *left_out* jobs were too many to foresee.

    *durations_at* says when it was read how long the jobs ahead usually take; None if nothing lies ahead.
    """

    now: datetime
    request: TimelineRequest
    rows: Sequence[MarkRow]
    has_more: bool
    slots: int
    band: Sequence[BandStep]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """For how many days, of which queue, on whose clock."""

    days: int = 7
    queue: str | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a day as its clock shows it: `gap` is jumped over, `repeat` comes twice, `past` is over."""

    hour: int
    at: datetime | None
    busy: float | None
    starts: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the zone, with its 24 hours."""

    date: date
    hours: Sequence[Hour]

    @property
    def peak(self) -> Hour | None:
        """The busiest hour."""
        known = [hour for hour in self.hours if hour.busy]
        return max(known, key=lambda hour: hour.busy or 0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Yesterday, as it would have been foreseen and as it was."""

    date: date
    predicted_peak: float
    measured_peak: float
    predicted_hours: float
    measured_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next days. *left_out* jobs were too many to foresee; those *without_history* are guessed at.

    *durations_at* says when it was read how long the others usually take.
    """

    now: datetime
    request: ForecastRequest
    slots: int
    days: Sequence[Day]
    left_out: int
    without_history: Sequence[str]
    durations_at: datetime | None
    hindsight: Hindsight


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRequest:
    """A collision of these queues at an instant, as a forecast of so many days finds it; the worst if several are meant."""

    queues: Sequence[str] = ()
    at: datetime | None = None
    days: int = 7
    timezone: str = "UTC"

    def choose(self, collisions: Sequence[Collision]) -> Collision | None:
        """The one that is meant, of those that are there, the worst first; the fewest queues if they are not told apart."""
        meant = [one for one in collisions if self._means(one)]
        return (
            min(meant, key=lambda one: len(one.pool.queues), default=None) if self.queues else next(iter(meant), None)
        )

    def _means(self, one: Collision) -> bool:
        is_then = self.at is None or any(start <= self.at < end for start, end in one.spans)
        return is_then and set(self.queues) <= set(one.pool.queues)


@dataclass(frozen=True, slots=True)
class SpreadAdvice:
    """How a collision could be spread; *jobs* are those to be moved, as they are now."""

    spread: ShiftPlan
    jobs: Mapping[JobId, Job]

    @property
    def moves(self) -> list[ScheduleShift]:
        """The moves, up to the first whose job was changed meanwhile: those after it count on it."""
        return list(takewhile(self._holds, self.spread.moves))

    def _holds(self, move: ScheduleShift) -> bool:
        job = self.jobs.get(move.job.job_id)
        return job is not None and job.deleted_at is None and job.rule == move.job.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantLoadRequest:
    """An instant and a queue; the job whose schedule is looked at does not land on itself."""

    at: datetime
    queue: str
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantLoad:
    """What runs at an instant in the queues that share the slots, the longest first; *need* counts the new run too.

    *left_out* jobs were too many to foresee.
    """

    at: datetime
    jobs: Sequence[ForecastJob]
    one_offs: int
    need: int
    slots: int
    left_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarSource:
    """What is to run: a job; or, without a *job_id*, all that was enqueued for a handler in a queue."""

    label: str
    handler: str
    queue: str
    length: timedelta
    is_guess: bool
    job_id: JobId | None = None
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarEntry:
    """One run, with its id; or, with a *day*, so many *times* on it, from *start* on."""

    what: CalendarSource
    start: datetime
    execution_id: ExecutionId | None = None
    day: date | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """The entries, the soonest first. *left_out* jobs were too many to foresee; after *cut_after* there are more entries."""

    now: datetime
    entries: Sequence[CalendarEntry]
    left_out: int = 0
    cut_after: datetime | None = None


MAX_WINDOW = HOURS_KEPT


@dataclass(frozen=True, slots=True)
class CurrentCounts:
    """What waits and runs at this moment; the counts stop at 10,001."""

    at: datetime
    running: int
    queued: int
    scheduled: int
    retrying: int
    late: int
    overdue: int
    dead: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Series:
    """What happened in each step of a window, steps without anything included."""

    since: datetime
    until: datetime
    step: timedelta
    points: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class Overview:
    """This moment and the last hour, with queues and nodes."""

    now: CurrentCounts
    hour: Series
    queues: Sequence[dict[str, Any]]
    nodes: Sequence[NodeStatus]

    @property
    def number_of_queues(self) -> int:
        """How many queues are in use; *queues* may be fewer."""
        return self.queues[0]["total"] if self.queues else 0

    @property
    def last_hour(self) -> Rollup:
        """The last hour as one."""
        return sum_rollups(self.hour.points, self.hour.since)


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened in a window: in all, and by handler."""

    since: datetime
    until: datetime
    total: Rollup
    by_handler: Sequence[Rollup]


@dataclass(frozen=True, slots=True)
class MetricsScope:
    """Whose numbers: a job's, a queue's, a handler's, or all."""

    job_id: JobId | None = None
    queue: str | None = None
    handler: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedHandler:
    """A handler with all its published contracts, the newest first, and the schema of that one."""

    name: str
    versions: Sequence[ContractVersion] = ()
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayload:
    """What a job, a template or a waiting execution is given."""

    kind: str
    id: str
    name: str | None
    handler: str
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompatiblePayload:
    """A stored payload that does not fit, and why."""

    stored: StoredPayload
    refusal: InvalidInput


def find_incompatible(
    stored: Sequence[StoredPayload], checks: Mapping[str, Callable[[str], object]]
) -> list[IncompatiblePayload]:
    """Those payloads that the checks of their handlers refuse."""
    found: list[IncompatiblePayload] = []
    for one in stored:
        try:
            checks[one.handler](one.payload)
        except InvalidInput as refusal:
            found.append(IncompatiblePayload(stored=one, refusal=refusal))
    return found
