"""Rows of the database as domain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

import orjson

from timeball.domain.execution import (
    Attempt,
    ClaimedExecution,
    DueKind,
    ErrorInfo,
    Execution,
    ExecutionState,
    Origin,
    Progress,
)
from timeball.domain.job import JOB_ATTRIBUTES, RETRY_FIELDS, Job
from timeball.domain.job_fields import SPEC_FIELDS, Choice, JobField, JsonObject, Labels, Spans
from timeball.domain.node import BrokerState, BrokerStatus, NodeKind, NodeStatus
from timeball.domain.policies import Delivery, Misfire, MisfireRule, OnGap, OnRepeat, RetryPolicy, Shift
from timeball.domain.scheduling.calendars import CalendarRule, CalendarVersion, calendar_rule, parse_days
from timeball.domain.scheduling.cron import has_hash
from timeball.domain.scheduling.occurrences import DueRow, JobTiming, NextOccurrence
from timeball.domain.scheduling.schedule import After, Cron, Every, Manual, Once, Rrule, Schedule
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId

if TYPE_CHECKING:
    from timeball.store.db.database import Database, WithinConnection

Record = Any


class CalendarKey(NamedTuple):
    """A version of a calendar as a row cites it."""

    name: str
    version: int
    fingerprint: str


# The days of the calendars that some rows cite.
CitedCalendars: TypeAlias = Mapping[CalendarKey, CalendarVersion]


def job_from(row: Record, calendars: CitedCalendars) -> Job:
    """A job from its row (with its payload once more as text), and the calendars that it cites."""
    return Job(
        id=JobId(row["id"]),
        payload=row["payload_text"],
        rule=rule_from(row, calendars),
        misfire=_misfire(row),
        retry=retry_policy_from(row),
        expires_at=row["expires_at"],
        shard=row["shard"],
        version=row["version"],
        declared_by=row["declared_by"],
        created_by=row["created_by"],
        bound_secrets_only=row["bound_secrets_only"],
        is_followed=bool(row["is_followed"]),
        paused_at=row["paused_at"],
        paused_until=row["paused_until"],
        paused_from=row["paused_from"],
        paused_left=row["paused_left"],
        pause_reason=row["pause_reason"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        deleted_at=row["deleted_at"],
        **{name: read(row[column]) for name, column, read in _JOB_READERS},
    )


def timetable_from(job_id: JobId, row: Record, calendars: CitedCalendars) -> JobTiming:
    """When a job runs, from the columns that say so."""
    return JobTiming(
        id=job_id,
        version=row["version"],
        rule=rule_from(row, calendars),
        misfire=_misfire(row),
        is_enqueued=row["is_enqueued"],
        **{name: read(row[column]) for name, column, read in _TIMING_READERS},
    )


def _column_reader(line: JobField) -> Callable[[Any], Any]:
    """What makes the value of a field of that of its column."""
    match line.rule:
        case Choice(words=words, flag=None):
            return lambda value: line.default if value is None else words(value)
        case Choice(flag=flag):
            return lambda value: flag if value else line.default
        case Labels() | Spans():
            return lambda value: tuple(value or ())
        case JsonObject():
            return _json_from
        case _ if line.is_sparse:
            return lambda value: line.default if value is None else value
        case _:
            return lambda value: value


def _json_from(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


_JOB_READERS = tuple((name, SPEC_FIELDS[name].column, _column_reader(SPEC_FIELDS[name])) for name in JOB_ATTRIBUTES)
_RETRY_READERS = tuple((name, SPEC_FIELDS[name].column, _column_reader(SPEC_FIELDS[name])) for name in RETRY_FIELDS)
_TIMING_READERS = tuple(reader for reader in _JOB_READERS if reader[0] in JobTiming.__dataclass_fields__)


def rule_from(row: Record, calendars: CitedCalendars) -> Schedule:
    """The schedule in a job's row, with the calendars that it cites."""
    bounds: dict[str, Any] = {"starts_at": row["starts_at"], "ends_at": row["ends_at"]}
    if row["calendars"] is not None:
        bounds["calendar"] = _calendar_rule(row, calendars)
    match row["kind"]:
        case "rrule":
            return _rrule(row["schedule"], row["timezone"], row["on_gap"], row["on_repeat"], **bounds)
        case "cron":
            expression = row["schedule"]
            # Only `H` asks for the name: without it, jobs share one rule.
            name = row["name"] if has_hash(expression) else None
            return _cron(expression, name, row["timezone"], row["on_gap"], row["on_repeat"], **bounds)
        case "every":
            return Every(interval_seconds=row["interval_seconds"], anchor=row["scheduled_at"], **bounds)
        case "once":
            return Once(scheduled_at=row["scheduled_at"], **bounds)
        case "after":
            return After(cause=row["after"], cause_id=row.get("after_id"), since=row.get("after_since"), **bounds)
        case _:
            return Manual(**bounds)


@lru_cache(maxsize=10_000)
def _cron(
    expression: str,
    name: str | None,
    timezone: str,
    on_gap: str,
    on_repeat: str,
    starts_at: datetime | None,
    ends_at: datetime | None,
    calendar: CalendarRule | None = None,
) -> Cron:
    """Kept, because many jobs share an expression: it is parsed once, and held in memory once."""
    return Cron(
        expression=expression,
        name=name,
        timezone=timezone,
        on_gap=OnGap(on_gap),
        on_repeat=OnRepeat(on_repeat),
        starts_at=starts_at,
        ends_at=ends_at,
        calendar=calendar,
    )


@lru_cache(maxsize=10_000)
def _rrule(
    expression: str,
    timezone: str,
    on_gap: str,
    on_repeat: str,
    starts_at: datetime | None,
    ends_at: datetime | None,
    calendar: CalendarRule | None = None,
) -> Rrule:
    """Kept, as cron schedules are."""
    return Rrule(
        expression=expression,
        timezone=timezone,
        on_gap=OnGap(on_gap),
        on_repeat=OnRepeat(on_repeat),
        starts_at=starts_at,
        ends_at=ends_at,
        calendar=calendar,
    )


def cited_calendars(row: Record) -> list[CalendarKey]:
    """The calendars that a row cites, each with its version and the fingerprint of its days."""
    if row["calendars"] is None:
        return []
    return [
        CalendarKey(name, cited["version"], cited["days"]) for name, cited in orjson.loads(row["calendars"]).items()
    ]


def _calendar_rule(row: Record, calendars: CitedCalendars) -> CalendarRule | None:
    known = {key.name: calendars[key] for key in cited_calendars(row)}
    shift = Shift.NONE if row["shift"] is None else Shift(row["shift"])
    return calendar_rule(row["skip_on"] or (), row["only_on"] or (), shift, row["timezone"], known)


def _misfire(row: Record) -> MisfireRule:
    if row["misfire"] is None:
        return MisfireRule()
    return _misfire_rule(
        row["misfire"], row["misfire_grace_seconds"], row["misfire_cap"], row["misfire_max_age_seconds"]
    )


@lru_cache(maxsize=1_000)
def _misfire_rule(policy: str, grace_seconds: int, cap: int, max_age_seconds: int | None) -> MisfireRule:
    """Kept, because nearly all jobs have the same."""
    return MisfireRule(
        policy=Misfire(policy),
        grace=timedelta(seconds=grace_seconds),
        cap=cap,
        max_age=None if max_age_seconds is None else timedelta(seconds=max_age_seconds),
    )


def retry_policy_from(row: Record) -> RetryPolicy:
    """The retry columns of a job, or of a row joined with one."""
    return RetryPolicy(**{name: read(row[column]) for name, column, read in _RETRY_READERS})


def delivery_from(at_most_once: bool | None) -> Delivery:
    """How the flag of the table is called in the domain."""
    return Delivery.AT_MOST_ONCE if at_most_once else Delivery.AT_LEAST_ONCE


def claims_from(rows: Sequence[Record], claim_id: ClaimId) -> list[ClaimedExecution]:
    """The executions of a claim, from its columns after the first. A claim without executions has no row, or one without an id."""
    if not rows or rows[0]["id"] is None:
        return []
    of_this_claim = (claim_id, None)
    return [ClaimedExecution._make(row[1:] + of_this_claim) for row in rows]


def due_row_from(row: Record) -> DueRow:
    """A row of `due`; what is the same in many rows is held in memory once."""
    run_at, scheduled_for = row["run_at"], row["scheduled_for"]
    return DueRow(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        kind=DueKind(row["kind"]),
        origin=Origin(row["origin"]),
        shard=row["shard"],
        run_at=run_at,
        scheduled_for=run_at if run_at == scheduled_for else scheduled_for,
        watermark=row["watermark"],
        tzdata=_shared(row["tzdata"]),
        version=row["version"],
        executions_left=row["executions_left"],
        limit_key=row["limit_key"],
        queue=_shared(row["queue"]),
        priority=row["priority"],
        expires_at=row["expires_at"],
        is_paused=row["is_paused"],
        is_frozen=row["is_frozen"],
    )


@lru_cache(maxsize=10_000)
def _shared(text: Any) -> Any:
    """The first text that was equal to this one, so that the others can be forgotten."""
    return text


def pending_from(row: Record) -> NextOccurrence:
    """The pending occurrence of a job."""
    return NextOccurrence(
        id=ExecutionId(row["id"]),
        run_at=row["run_at"],
        scheduled_for=row["scheduled_for"],
        watermark=row["watermark"] or row["scheduled_for"] - timedelta(microseconds=1),
        executions_left=row["executions_left"],
        tzdata=row["tzdata"] or "",
    )


def execution_from(row: Record) -> Execution:
    """An execution from the view over all state tables."""
    return Execution(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        state=ExecutionState(row["state"]),
        origin=Origin(row["origin"]),
        version=row["version"],
        queue=row["queue"],
        priority=row["priority"],
        handler=row["handler"],
        scheduled_for=row["scheduled_for"],
        run_at=row["run_at"],
        queued_at=row["queued_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        attempts=row["attempts"],
        lost=row["lost"],
        fence=row["fence"],
        worker=_optional_incarnation(row["worker"]),
        result=None if row["result_text"] is None else orjson.loads(row["result_text"]),
        error_type=row["error_type"],
        error=row["error"],
        reason=row["reason"],
        retry_of=None if row["retry_of"] is None else ExecutionId(row["retry_of"]),
        limit_key=row["limit_key"],
        unique_key=row["unique_key"],
        created_by=row["created_by"] or row["enqueued_by"],
        expires_at=row["expires_at"],
        meta=_json_from(row["meta_text"]),
        progress=progress_from(row),
    )


def progress_from(row: Record) -> Progress | None:
    """What the running attempt has told of its progress."""
    # A `real` has seven digits: 0.42 comes back as 0.41999998688697815.
    return None if row["progress"] is None else Progress(round(row["progress"], 6), row["progress_note"])


def attempt_from(row: Record) -> Attempt:
    """One unsuccessful try."""
    return Attempt(
        execution_id=ExecutionId(row["execution_id"]),
        fence=row["fence"],
        number=row["number"],
        worker=_optional_incarnation(row["worker"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        outcome=row["outcome"],
        error=None if row["error_type"] is None else _error_from(row),
        is_expected=bool(row["is_expected"]),
    )


def _error_from(row: Record) -> ErrorInfo:
    return ErrorInfo(
        type=row["error_type"],
        message=row["error"] or "",
        traceback=row["traceback"],
        top_frame=row["top_frame"],
        fingerprint=row["fingerprint"],
    )


def node_from(row: Record) -> NodeStatus:
    """A node with the shards it owns."""
    return NodeStatus(
        incarnation=Incarnation(row["incarnation"]),
        kind=NodeKind(row["kind"]),
        name=row["name"],
        started_at=row["started_at"],
        renewed_at=row["renewed_at"],
        lease_until=row["lease_until"],
        slots=row["slots"],
        busy=row["busy"],
        queues=None if row["queues"] is None else tuple(row["queues"]),
        handlers=tuple(row["handlers"]),
        fingerprints=tuple(row["fingerprints"]),
        version=row["version"],
        draining=row["draining"],
        shards=tuple(row["shards"]),
        broker=row["broker"],
        broker_status=BrokerStatus(BrokerState(row["broker_state"]), row["broker_error"]),
        trouble=row["trouble"],
        trouble_at=row["trouble_at"],
    )


def _optional_incarnation(value: UUID | None) -> Incarnation | None:
    return None if value is None else Incarnation(value)


def claimed_from(row: Any) -> ClaimedExecution:
    return ClaimedExecution(
        id=ExecutionId(row["id"]),
        job_id=JobId(row["job_id"]),
        fence=row["fence"],
        attempt=row["attempts"],
        lost=row["lost"],
        handler=row["handler"],
        payload="",
        run_at=row["run_at"],
        scheduled_for=row["scheduled_for"],
        timeout_ms=None,
        queue=row["queue"],
        priority=row["priority"],
        origin=row["origin"],
        version=row["version"],
        job_name=None,
        expires_at=None,
        meta=None,
        claim_id=ClaimId(row["claim_id"]),
        stop=None,
    )


# The versions of calendars whose days are kept in memory.
_MOST_KEPT = 1_000
_NO_CALENDARS: CitedCalendars = {}


class CalendarCache:
    """The days of the calendar versions that rows cite: read once and kept, because a version never changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[CalendarKey, CalendarVersion] = {}

    async def of(self, rows: Iterable[Any], connection: WithinConnection | None = None) -> CitedCalendars:
        """The calendars that these rows of jobs cite. Rows without calendars cost no statement."""
        cited = {key for row in rows if row["calendars"] is not None for key in cited_calendars(row)}
        if not cited:
            return _NO_CALENDARS
        if missing := cited - self._kept.keys():
            if len(self._kept) > _MOST_KEPT:
                self._kept = {key: self._kept[key] for key in cited & self._kept.keys()}
            rows_of = await self._database.fetch(
                "calendar_versions",
                connection,
                names=[key.name for key in sorted(missing)],
                versions=[key.version for key in sorted(missing)],
            )
            versions = {(row["name"], row["version"]): version_from(row) for row in rows_of}
            self._kept |= {key: versions[key.name, key.version] for key in missing}
        return {key: self._kept[key] for key in cited}


def version_from(row: Any) -> CalendarVersion:
    """A version of a calendar from its row."""
    return CalendarVersion(row["name"], row["version"], parse_days(row["days"]))
