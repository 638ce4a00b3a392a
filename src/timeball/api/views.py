"""Domain values as the documents of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import orjson
from starlette.responses import Response

from timeball.domain.dead_letters import DeadGroup, DeadGrouping
from timeball.domain.execution import Attempt, Execution
from timeball.domain.ids import show, show_execution, show_job
from timeball.domain.job import JobSpec, spec_of
from timeball.domain.redaction import redacted, redacted_fields_in_list, redacted_in_list
from timeball.domain.search import Page, PageRequest
from timeball.insights import ExecutionView, FireTime, JobView, Landing

Item = TypeVar("Item")
Document = dict[str, Any]

_WISHED = tuple(field.name for field in fields(JobSpec))
# To walk through as many takes some milliseconds.
_MANY_CHARACTERS = 32 * 1024
_JSON = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def to_bytes(document: Any) -> bytes:
    """A document as JSON."""
    return orjson.dumps(document, default=str, option=_JSON)


def answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as an answer."""
    return Response(to_bytes(document), status, dict(headers or {}), "application/json")


def page_document(page: Page[Item], request: PageRequest, show_item: Callable[[Item], Document]) -> Document:
    """A page of a list: by cursor, and with numbers where a page was asked for by its number."""
    document: Document = {
        "data": [show_item(item) for item in page.items],
        "next_cursor": page.next_cursor,
        "has_more": page.next_cursor is not None,
    }
    if page.looked_at is not None:
        document |= {"searched_to": page.searched_to, "looked_at": page.looked_at}
    if page.total is not None:
        document |= {"total": page.total.count, "total_is_exact": page.total.is_exact}
    if request.page is not None and page.total is not None:
        pages = -(-page.total.count // request.limit)
        document |= {"page": request.page, "limit": request.limit, "total_pages": pages}
    return document


def job_document(view: JobView, *, in_list: bool = False, with_payload: bool = True) -> Document:
    """A job with how it stands; secrets hidden. A list leaves large payloads out."""
    job, standing = view.job, view.standing
    spec = spec_of(job)
    wish = {name: getattr(spec, name) for name in _WISHED}
    last = None
    if standing.last_id is not None:
        last = {
            "id": show_execution(standing.last_id),
            "state": standing.last_state,
            "finished_at": standing.last_finished_at,
        }
    # The order is for people who read it with curl: what it is, what was wished for, how it stands.
    return (
        {"id": show_job(job.id)}
        | wish
        | {
            "payload": _payload(job.payload, in_list=in_list) if with_payload else None,
            "tags": list(job.tags),
            "kind": job.kind,
            "status": view.status,
            "next_run_at": standing.next_run_at,
            "last_execution": last,
            "paused_at": job.paused_at,
            "paused_until": job.paused_until,
            "pause_reason": job.pause_reason,
            "version": job.version,
            "declared_by": job.declared_by,
            "created_by": job.created_by,
            "created_at": job.created_at,
            "updated_at": job.updated_at,
        }
    )


def _payload(text: str, *, in_list: bool) -> Any:
    return redacted_in_list(text) if in_list else redacted(orjson.loads(text))


async def off_loop(work: Callable[[], Item], characters: int) -> Item:
    """What *work* makes of so many characters of JSON; in a thread if they are many, so that others are answered meanwhile."""
    return await asyncio.to_thread(work) if characters > _MANY_CHARACTERS else work()


def execution_document(execution: Execution) -> Document:
    """An execution as lists show it."""
    return {
        "id": show_execution(execution.id),
        "job_id": show_job(execution.job_id),
        "state": execution.state,
        "origin": execution.origin,
        "job_version": execution.version,
        "handler": execution.handler,
        "queue": execution.queue,
        "priority": execution.priority,
        "scheduled_for": execution.scheduled_for,
        "run_at": execution.run_at,
        "queued_at": execution.queued_at,
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
        "lateness_ms": _milliseconds(execution.scheduled_for, execution.started_at),
        "duration_ms": _milliseconds(execution.started_at, execution.finished_at),
        "attempts": execution.attempts,
        "lost": execution.lost,
        "worker": show_worker(execution.worker),
        "error_type": execution.error_type,
        "error": execution.error,
        "reason": execution.reason,
        "retry_of": None if execution.retry_of is None else show_execution(execution.retry_of),
        "created_by": execution.created_by,
    }


def full_execution_document(view: ExecutionView) -> Document:
    """An execution with all that is known of it; secrets hidden."""
    return execution_document(view.execution) | {
        "payload": redacted(orjson.loads(view.payload)),
        "result": redacted(view.execution.result),
        "fingerprint": view.fingerprint,
        "stop_requested": view.stop,
        "attempt_list": [attempt_document(attempt) for attempt in view.attempts],
        "timeline": _timeline(view),
    }


def attempt_document(attempt: Attempt) -> Document:
    """One unsuccessful try."""
    error = attempt.error
    return {
        "number": attempt.number,
        "worker": show_worker(attempt.worker),
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "outcome": attempt.outcome,
        "error_type": error and error.type,
        "error": error and error.message,
        "traceback": error and error.traceback,
        "top_frame": error and error.top_frame,
        "fingerprint": error and error.fingerprint,
    }


def _timeline(view: ExecutionView) -> list[Document]:
    execution = view.execution
    points: list[tuple[datetime | None, str]] = [
        (execution.scheduled_for, "scheduled"),
        (execution.queued_at, "queued"),
        (execution.started_at, "started"),
        (execution.finished_at, execution.state.value),
    ]
    for attempt in view.attempts:
        points.append((attempt.started_at, f"attempt {attempt.number} started"))
        points.append((attempt.finished_at, f"attempt {attempt.number} {attempt.outcome}"))
    known = [(at, what) for at, what in points if at is not None]
    return [{"at": at, "what": what} for at, what in sorted(known)]


def fire_time_document(time: FireTime) -> Document:
    """An instant of a schedule."""
    note = time.occurrence.note
    return {
        "at": time.occurrence.at,
        "local": time.local.isoformat(),
        "is_due": time.occurrence.is_due,
        "note": None if note is None else note.kind,
    }


def node_document(node: Any) -> Document:
    """A worker or scheduler."""
    document = asdict(node)
    status = document.pop("broker_status")
    return document | {
        "id": show(_NODE_PREFIXES[node.kind], node.incarnation),
        "incarnation": None,
        "broker_state": status["state"],
        "broker_error": status["error"],
    }


_NODE_PREFIXES = {"worker": "wrk", "scheduler": "sch"}


def queue_document(row: Mapping[str, Any]) -> Document:
    """A queue with its depth and its oldest wait."""
    oldest = row["oldest_at"]
    wait = None if oldest is None else max((row["moment"] - oldest).total_seconds(), 0.0)
    return {
        "name": row["name"],
        "is_paused": row["paused_at"] is not None,
        "paused_at": row["paused_at"],
        "pause_reason": row["pause_reason"],
        "max_running": row["max_running"],
        "depth": row["depth"],
        "running": row["running"],
        "oldest_at": oldest,
        "oldest_wait_seconds": wait,
    }


def audit_document(row: Mapping[str, Any]) -> Document:
    """Who changed what; secrets hidden, large fields left out."""
    before, after = (None if row[side] is None else redacted_fields_in_list(row[side]) for side in ("before", "after"))
    return dict(row) | {"id": show("aud", row["id"]), "before": before, "after": after}


def dead_group_document(group: DeadGroup) -> Document:
    """Dead executions with something in common; the field that names it is what they are retried or discarded by."""
    return {
        **{by.field: group.key if by is group.by else None for by in DeadGrouping},
        "executions": group.executions,
        "error_type": group.error_type,
        "latest_error": group.latest_error,
        "latest_id": show_execution(group.latest_id),
        "top_frame": group.top_frame,
        "handlers": group.handlers,
        "queues": group.queues,
        "first_at": group.first_at,
        "last_at": group.last_at,
        "deaths": {"since": group.since, "until": group.until, "counts": group.deaths},
    }


def landing_document(landing: Landing) -> Document:
    """What a run would meet."""
    return {
        "at": landing.at,
        "jobs": [
            {
                "id": show_job(line.job_id),
                "label": line.label,
                "p95_seconds": None if line.usual is None else line.usual.p95.total_seconds(),
            }
            for line in landing.jobs
        ],
        "one_offs": landing.one_offs,
        "need": landing.need,
        "slots": landing.slots,
        "left_out": landing.left_out,
    }


def show_worker(incarnation: UUID | None) -> str | None:
    """A worker's id as people see it."""
    return None if incarnation is None else show("wrk", incarnation)


def _percentiles(values: Sequence[float | None] | None) -> Document:
    p50, p95, p99 = values or (None, None, None)
    return {"p50": p50, "p95": p95, "p99": p99}


def _milliseconds(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start) / timedelta(milliseconds=1)
