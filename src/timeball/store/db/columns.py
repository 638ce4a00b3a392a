"""Domain values as parameters of statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never

import orjson

from timeball.domain.execution import (
    Cancelled,
    Failed,
    FinishedAttempt,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from timeball.domain.lifecycle import Decision, Finish, Postpone, Requeue
from timeball.domain.policies import Delivery
from timeball.domain.scheduling.schedule import Cron, Every, Once, Schedule
from timeball.domain.values.ids import shard_of

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.domain.scheduling.occurrences import Promotion
    from timeball.domain.wakeup import Lane, LanePosition
    from timeball.store.types import ExecutionRequest, FirstExecution


def job_columns(job: Job) -> dict[str, Any]:
    """A job as the columns of its table; the rules of recurrence stay empty where they mean nothing."""
    rule, recurs = job.rule, job.rule.is_recurring
    return {
        "id": str(job.id),
        "name": job.name,
        "description": job.description,
        "handler": job.handler,
        "payload": orjson.Fragment(job.payload),
        "kind": rule.kind.value,
        "schedule": rule.expression if isinstance(rule, Cron) else None,
        "interval_seconds": rule.interval_seconds if isinstance(rule, Every) else None,
        "scheduled_at": _anchor(rule),
        "timezone": job.timezone if recurs or job.timezone != "UTC" else None,
        "on_gap": rule.on_gap.value if isinstance(rule, Cron) else None,
        "on_repeat": rule.on_repeat.value if isinstance(rule, Cron) else None,
        "starts_at": rule.starts_at,
        "ends_at": rule.ends_at,
        "max_executions": job.max_executions,
        "jitter_seconds": job.jitter_seconds or None,
        "misfire": job.misfire.policy.value if recurs else None,
        "misfire_grace_seconds": int(job.misfire.grace.total_seconds()) if recurs else None,
        "misfire_cap": job.misfire.cap if recurs else None,
        "misfire_max_age_seconds": _seconds(job.misfire.max_age) if recurs else None,
        "overlap": job.overlap.value if recurs else None,
        "queue": job.queue,
        "priority": job.priority,
        "max_retries": job.retry.max_retries,
        "max_lost": job.retry.max_lost,
        "initial_backoff_ms": job.retry.initial_backoff_ms,
        "max_backoff_ms": job.retry.max_backoff_ms,
        "timeout_ms": job.timeout_ms,
        "at_most_once": job.delivery is Delivery.AT_MOST_ONCE,
        "max_running": job.max_running,
        "limit_key": job.limit_key,
        "unique_key": job.unique_key,
        "tags": list(job.tags) or None,
        "shard": job.shard,
        "version": job.version,
        "declared_by": job.declared_by,
        "created_by": job.created_by,
        "bound_secrets_only": job.bound_secrets_only or None,
        "paused_at": job.paused_at,
        "paused_until": job.paused_until,
        "paused_from": job.paused_from,
        "paused_left": job.paused_left,
        "pause_reason": job.pause_reason,
        "deleted_at": job.deleted_at,
    }


def _anchor(rule: Schedule) -> datetime | None:
    if isinstance(rule, Every):
        return rule.anchor
    return rule.scheduled_at if isinstance(rule, Once) else None


def _seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())


def promotion_arrays(promotions: Sequence[Promotion], new_id: Any) -> dict[str, Any]:
    """The arrays the promotion statement takes: a column each of rows, runs, skips and ranges."""
    following = [promotion.following for promotion in promotions]
    runs = [(promotion.row.id, run) for promotion in promotions for run in promotion.runs]
    skips = [(promotion.row.id, skip) for promotion in promotions for skip in promotion.skips]
    ranges = [(promotion.row.id, skipped) for promotion in promotions for skipped in promotion.ranges]
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
    """Whether what the history knows of a claim is this outcome, and not one that somebody else gave it."""
    match outcome:
        case Succeeded():
            return state == "succeeded"
        case Cancelled():
            return state == "cancelled"
        case NotStarted():
            # A retry that was called off waits, and leaves no trace.
            return state == "skipped" or (state is None and tried is None)
        case Failed() | TimedOut() | Lost():
            return tried == outcome_word(outcome)
        case Released() | Snoozed():
            # They leave no trace; whoever took the claim away would have left one.
            return tried is None
        case _:
            assert_never(outcome)


def outcome_word(outcome: Outcome) -> str:
    return "timed_out" if isinstance(outcome, TimedOut) else type(outcome).__name__.lower()


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
    }
