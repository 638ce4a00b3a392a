"""Domain values as parameters of statements, and the audit, whose values are redacted where they look like secrets.

An audit row is written in the transaction of the change that it tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, assert_never
from uuid import UUID

import orjson

from timeball.domain.execution import (
    CancelOutcome,
    Failed,
    FinishedAttempt,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimeoutOutcome,
    outcome_word,
)
from timeball.domain.job import calendar_of, spec_values
from timeball.domain.job_fields import SPEC_FIELDS, Choice, Labels, Spans, ValueRule
from timeball.domain.lifecycle import Decision, Finish, Postpone, Requeue
from timeball.domain.scheduling.schedule import After, Cron
from timeball.domain.values.ids import shard_of
from timeball.domain.values.redaction import redact

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.domain.scheduling.occurrences import Promotion
    from timeball.domain.wakeup import Lane, LanePosition
    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.types import AuditEntry, ExecutionRequest, FirstExecution

# The columns that the statements of the plain enqueue take as parameters: see `Mark.PLAIN`.
PLAIN_FIELD_COLUMNS = tuple(line.column for line in SPEC_FIELDS.values() if line.is_plain)


def job_columns(job: Job) -> dict[str, Any]:
    """A job as the columns of its table; fields that mean nothing to this job stay empty."""
    values, recurs = spec_values(job), job.rule.is_recurring
    columns = {
        column: None if value is None or (needs_recurrence and not recurs) or value == null else convert(value)
        for name, column, needs_recurrence, null, convert in _WRITERS
        for value in (values[name],)
    }
    if not isinstance(job.rule, Cron):
        columns["schedule"] = columns["on_gap"] = columns["on_repeat"] = None
    if recurs:
        columns["timezone"] = job.timezone
    return columns | {
        "id": str(job.id),
        "calendars": calendar_citations(job),
        "payload": orjson.Fragment(job.payload),
        "kind": job.kind.value,
        "shard": job.shard,
        "version": job.version,
        "declared_by": job.declared_by,
        "created_by": job.created_by,
        "bound_secrets_only": job.bound_secrets_only or None,
        "has_follow_ups": job.has_follow_ups or None,
        "is_followed": job.is_followed or None,
        "after_id": job.rule.cause_id if isinstance(job.rule, After) else None,
        "after_since": job.rule.since if isinstance(job.rule, After) else None,
        "paused_at": job.paused_at,
        "paused_until": job.paused_until,
        "paused_from": job.paused_from,
        "paused_left": job.paused_left,
        "pause_reason": job.pause_reason,
        "deleted_at": job.deleted_at,
    }


def calendar_citations(job: Job) -> dict[str, Any] | None:
    """The calendars of a job, each with its version and the fingerprint of its days, as its row cites them; None if it has none."""
    calendar = calendar_of(job.rule)
    if calendar is None:
        return None
    assert calendar.is_resolved, "a job is stored with the calendars that were looked up"
    return {
        one.name: {"version": one.version, "days": one.fingerprint} for one in (*calendar.skip_on, *calendar.only_on)
    }


def _column_writer(rule: ValueRule) -> Callable[[Any], Any]:
    """What makes the value of a column of that of a field."""
    match rule:
        case Choice(flag=None):
            return attrgetter("value")
        case Choice(flag=flag):
            return partial(is_, flag)
        case Labels() | Spans():
            return list
        case _:
            return _same


def _same(value: Any) -> Any:
    return value


# Each field and its column, whether only recurring jobs have it, the value that is stored as NULL, and what makes the value of the column.
_WRITERS = tuple(
    (name, line.column, line.is_of_recurrence, line.default if line.is_sparse else None, _column_writer(line.rule))
    for name, line in SPEC_FIELDS.items()
)


def promotion_arrays(promotions: Sequence[Promotion], new_id: Any) -> dict[str, Any]:
    """The arrays the promotion statement takes: a column each of rows, runs, skips and ranges."""
    following = [promotion.following for promotion in promotions]
    runs = [(promotion.row.id, run) for promotion in promotions for run in promotion.runs]
    skips = [(promotion.row.id, skip) for promotion in promotions for skip in promotion.skips]
    ranges = [(promotion.row.id, skipped) for promotion in promotions for skipped in promotion.ranges]
    replacing = [promotion.row for promotion in promotions if promotion.replaces_waiting]
    return {
        "ids": [promotion.row.id for promotion in promotions],
        "run_ats": [promotion.row.run_at for promotion in promotions],
        "versions": [promotion.row.version for promotion in promotions],
        "next_ids": [n and n.id for n in following],
        "next_run_ats": [n and n.run_at for n in following],
        "next_fors": [n and n.scheduled_for for n in following],
        "watermarks": [n and n.watermark for n in following],
        "lefts": [n and n.executions_left for n in following],
        "run_due_ids": [due_id for due_id, _ in runs],
        "run_ids": [run.id for _, run in runs],
        "run_fors": [run.scheduled_for for _, run in runs],
        "run_run_ats": [run.run_at for _, run in runs],
        "run_targets": [run.target.value for _, run in runs],
        "skip_due_ids": [due_id for due_id, _ in skips],
        "skip_ids": [skip.id for _, skip in skips],
        "skip_fors": [skip.scheduled_for for _, skip in skips],
        "skip_reasons": [skip.reason.value for _, skip in skips],
        "range_due_ids": [due_id for due_id, _ in ranges],
        "range_ids": [new_id() for _ in ranges],
        "range_firsts": [skipped.first for _, skipped in ranges],
        "range_lasts": [skipped.last for _, skipped in ranges],
        "range_counts": [skipped.count for _, skipped in ranges],
        "range_reasons": [skipped.reason.value for _, skipped in ranges],
        "replacing_due_ids": [row.id for row in replacing],
        "replacing_job_ids": [row.job_id for row in replacing],
    }


def json_text(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as the JSON text that `json_to_recordset` reads."""
    # asyncpg has a UUID of its own, which only `default` can write.
    return orjson.dumps(list(rows), default=str, option=orjson.OPT_UTC_Z).decode()


def lane_arrays(lanes: Mapping[Lane, LanePosition]) -> dict[str, list[Any]]:
    return {
        "queues": [queue for queue, _ in lanes],
        "priorities": [priority for _, priority in lanes],
        "bounds": [mark.run_at for mark in lanes.values()],
        "first_ids": [mark.id for mark in lanes.values()],
    }


def result_column(findings: Sequence[FinishedAttempt]) -> list[str | None] | None:
    """What the handlers returned; None if none of them returned anything, as most do: an array of nothing costs as much as any."""
    results = [f.outcome.result if isinstance(f.outcome, Succeeded) else None for f in findings]
    return None if results.count(None) == len(results) else results


def is_recorded(outcome: Outcome, state: str | None, tried: str | None) -> bool:
    """Whether what the history knows of a claim is this outcome, and not one from another claim."""
    match outcome:
        case Succeeded():
            return state == "succeeded"
        case CancelOutcome():
            return state == "cancelled"
        case NotStarted():
            # A retry that was called off waits, and leaves no trace.
            return state == "skipped" or (state is None and tried is None)
        case Failed() | TimeoutOutcome() | Lost():
            return tried == outcome_word(outcome)
        case Released() | Snoozed():
            # They leave no trace; the loss of the claim would leave one.
            return tried is None
        case _:
            assert_never(outcome)


def transition_columns(move: Decision, shards: int) -> dict[str, Any]:
    finding, standing, transition = move
    claimed = finding.claimed
    columns: dict[str, Any] = {
        "id": claimed.id,
        "job_id": claimed.job_id,
        "fence": claimed.fence,
        "claim_id": claimed.claim_id,
        "stop": standing.stop,
        "is_paused": standing.is_paused,
        "is_deleted": standing.is_deleted,
        "started_at": finding.started_at,
        "finished_at": finding.finished_at,
        "attempts": transition.attempts,
        "lost": transition.lost,
    }
    match transition:
        case Finish(state=state, result=result, reason=reason):
            columns |= {"target": "finished", "state": state.value, "result": result, "reason": reason}
        case Postpone(run_at=run_at, is_retry=is_retry):
            kind = "retry" if is_retry else "snooze"
            columns |= {"target": "due", "due_kind": kind, "run_at": run_at, "shard": shard_of(claimed.job_id, shards)}
        case Requeue():
            columns |= {"target": "ready"}
    if error := transition.error:
        columns |= {
            "outcome": outcome_word(finding.outcome),
            "error_type": error.type,
            "error": error.message,
            "traceback": error.traceback,
            "top_frame": error.top_frame,
            "fingerprint": error.fingerprint,
        }
    if isinstance(finding.outcome, Failed | TimeoutOutcome) and finding.outcome.is_expected:
        columns["is_expected"] = True
    return columns


def without_nulls(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value is not None}


def first_execution_columns(first: FirstExecution) -> dict[str, Any]:
    return {
        "id": first.id,
        "job_id": first.job_id,
        "origin": first.origin.value,
        "run_at": first.run_at,
        "scheduled_for": first.scheduled_for,
        "watermark": first.watermark,
        "tzdata": first.tzdata,
        "executions_left": first.executions_left,
    }


def execution_request_columns(request: ExecutionRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "job_id": request.job_id,
        "origin": request.origin.value,
        "run_at": request.run_at,
        "scheduled_for": request.scheduled_for,
        "payload": None if request.payload is None else orjson.Fragment(request.payload),
        "retry_of": request.retry_of,
        "created_by": request.created_by,
        "bound_secrets_only": request.bound_secrets_only or None,
        "start_within_seconds": request.expiry.start_within_seconds,
        "expires_at": request.expiry.expires_at,
        "priority": request.priority,
        "meta": request.meta,
        "has_follow_ups": request.calls is not None or None,
    }


async def write_audit(
    database: Database,
    connection: WithinConnection,
    audit_id: UUID,
    entry: AuditEntry,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Insert an audit row. By its id a repeated write sees whether the first one was committed (`Database.once`)."""
    columns = audit_columns(audit_id, entry, action, subject, before, after)
    await database.fetch("write_audit", connection, entries=json_text([columns]))


def creation_audit(job: Job, audit_id: UUID, entry: AuditEntry) -> dict[str, Any]:
    """The audit row of a new job."""
    fields = {name: value for name, value in job_columns(job).items() if value is not None}
    fields["payload"] = orjson.loads(job.payload)
    return audit_columns(audit_id, entry, "job.create", f"job:{job.id}", None, fields)


def changed_fields(old: Job, new: Job, columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that an edit changed, before and after it; *columns* are those of the new job."""
    before = job_columns(old) | {"payload": orjson.loads(old.payload)}
    after = {**columns, "payload": orjson.loads(new.payload)}
    changed = [name for name, value in before.items() if value != after.get(name)]
    return {name: before[name] for name in changed}, {name: after.get(name) for name in changed}


def audit_columns(
    audit_id: UUID,
    entry: AuditEntry,
    action: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """An audit row, which `write_audit` inserts."""
    return {
        "id": audit_id,
        "actor": entry.actor,
        "place": entry.place,
        "action": action,
        "subject": subject,
        "reason": entry.reason,
        "before": _redacted_json(before),
        "after": _redacted_json(after),
    }


def _redacted_json(fields: Mapping[str, Any] | None) -> orjson.Fragment | None:
    return None if fields is None else orjson.Fragment(orjson.dumps(redact(dict(fields)), default=str))
