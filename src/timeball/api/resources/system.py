"""Health, doctor, explanations, the audit log, revisions of jobs, and the preview of a schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.documents import resolved_payload_document
from timeball.api.models import FullList, PageOut, ShortText
from timeball.api.models.jobs import RevisionOut
from timeball.api.models.system import (
    NO_INSTANT,
    AttentionItemOut,
    AuditOut,
    DoctorOut,
    ExplanationOut,
    HealthOut,
    LiveOut,
    NextOut,
    PreviewIn,
    ReadyOut,
    explanation_document,
    fire_time_document,
    instant_document,
)
from timeball.api.openapi import EXECUTION_ID, INSTANT_EXAMPLE, JOB_ID, page_example, probe_options, route_options
from timeball.api.params import ApiContext, Context, ExecutionRef, IdempotencyKey, JobRef, PageParams, optional_instant
from timeball.api.responses import Document, in_thread_if_large, json_bytes, json_response, page_document
from timeball.application.queries.alerts import AttentionItem
from timeball.application.queries.doctor import HealthCheck
from timeball.application.queries.forecast import InstantLoad, InstantLoadRequest
from timeball.application.queries.jobs import FieldChange, FireTime, Revision
from timeball.domain.explain.diagnosis import Diagnosis, worst_status
from timeball.domain.job_fields import JobSpec
from timeball.domain.payload_references import VersionSchedule, check_references
from timeball.domain.values.ids import JobId, format_id, format_job_id
from timeball.domain.values.json_text import to_json
from timeball.domain.values.redaction import redact_fields_in_list
from timeball.version import __version__


def audit_document(row: Mapping[str, Any]) -> Document:
    """A record of the audit; secrets hidden, large fields left out."""
    before, after = (None if row[side] is None else redact_fields_in_list(row[side]) for side in ("before", "after"))
    return dict(row) | {"id": format_id("aud", row["id"]), "before": before, "after": after}


def instant_load_document(load: InstantLoad) -> Document:
    """What else runs at an instant."""
    return {
        "at": load.at,
        "jobs": [
            {
                "id": format_job_id(line.job_id),
                "label": line.label,
                "p95_seconds": None if line.typical is None else line.typical.p95.total_seconds(),
            }
            for line in load.jobs
        ],
        "one_offs": load.one_offs,
        "need": load.need,
        "slots": load.slots,
        "left_out": load.left_out,
    }


revisions_router = APIRouter(tags=["jobs"])

_REVISION_EXAMPLE = {
    "at": INSTANT_EXAMPLE,
    "actor": "key:4c1a9d02b7e1 deploy",
    "action": "job.update",
    "reason": "less often",
    "version": 2,
    "changes": [{"field": "schedule", "before": "*/5 * * * *", "after": "0 * * * *"}],
    "effective_from": INSTANT_EXAMPLE,
    "effective_until": None,
}


@revisions_router.get(
    "/jobs/{job}/revisions",
    response_model=PageOut[RevisionOut],
    **route_options(Role.VIEWER, page_example(_REVISION_EXAMPLE), fails=[404]),
)
async def revisions(job: JobRef, context: Context, page: PageParams) -> Response:
    """The changes of a job field by field, with actor, time and reason, the latest first; the last one is its creation.

    A value of more than 8 KB is replaced by a note, `{"$timeball": "..."}`.
    """
    history = await context.queries.jobs.revisions(job, page)
    return json_response(await asyncio.to_thread(page_document, history, page, revision_document))


def revision_document(revision: Revision) -> Document:
    """One change of a job; secrets hidden, large values left out."""
    return asdict(revision) | {"changes": [_change_document(change) for change in revision.changes]}


def _change_document(change: FieldChange) -> Document:
    sides = (redact_fields_in_list(json_bytes({change.field: side}).decode()) for side in (change.before, change.after))
    before, after = (side[change.field] for side in sides)
    return {"field": change.field, "before": before, "after": after}


router = APIRouter()

_CHECK_EXAMPLE = {"name": "database", "status": "ok", "detail": "it answers"}
_HEALTH_EXAMPLE = {"status": "ok", "version": "1.2.3", "checks": [_CHECK_EXAMPLE]}
_READY_EXAMPLE = {"status": "ok", "checks": [{"name": "database", "status": "ok"}]}
_PREVIEW_EXAMPLE = {
    "description": "At 02:30 (Europe/Berlin)",
    "next": [
        {
            "at": "2027-03-28T01:00:00Z",
            "local": "2027-03-28T03:00:00+02:00",
            "is_due": True,
            "is_frozen": False,
            "note": "moved_by_gap",
        }
    ],
    "landing": {
        "at": "2027-03-28T01:00:00Z",
        "jobs": [{"id": JOB_ID, "label": "reindex", "p95_seconds": 540.0}],
        "one_offs": 0,
        "need": 6,
        "slots": 8,
        "left_out": False,
    },
    "payload": {"file": "report-2027-03-28.csv"},
}
_AUDIT_EXAMPLE = {
    "id": "aud_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "at": INSTANT_EXAMPLE,
    "actor": "key:4c1a9d02b7e1 deploy",
    "place": "http 10.0.0.7",
    "action": "job.pause",
    "subject": "job:01937b1d-8607-7000-8000-000000000000",
    "reason": "maintenance",
    "before": {"paused_at": None},
    "after": {"paused_at": INSTANT_EXAMPLE},
}


@router.post(
    "/schedules/preview",
    tags=["time"],
    response_model=NextOut,
    **route_options(
        Role.VIEWER,
        _PREVIEW_EXAMPLE,
        request={
            "schedule": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "queue": "batch",
            "payload": {"file": {"$text": "report-{scheduled_date}.csv"}},
        },
        has_body=True,
        fails=[409],
    ),
)
async def preview_schedule(body: PreviewIn, context: Context, idempotency_key: IdempotencyKey = None) -> Response:
    """When a schedule would fire, in words and as instants, with notes where the clock changes.

    With a `queue`, also what else runs there at the next instant, and how many slots that needs. With a `payload`, also what its
    references stand for then.
    """
    now = context.queries.now()
    since = optional_instant(body.since, "since", body.timezone) or now
    spec = JobSpec(handler="preview", **body.model_dump(exclude={"since", "count", "queue", "job", "payload"}))
    rule = await context.queries.jobs.rule_of(spec, now)
    times = context.queries.jobs.next_times(rule, body.timezone, since, body.count)
    document = {"description": rule.describe(), "next": [fire_time_document(time) for time in times]}
    job_id = None if body.job is None else (await context.queries.jobs.find(body.job)).id
    payload = to_json(body.payload)
    check_references(payload)
    resolved = context.queries.jobs.next_payload(payload, VersionSchedule(rule, body.timezone), times, job_id)
    landing = await _instant_load(context, body, times, job_id)
    return json_response(document | {"landing": landing, "payload": resolved_payload_document(resolved)})


async def _instant_load(
    context: ApiContext, body: PreviewIn, times: Sequence[FireTime], job_id: JobId | None
) -> Document | None:
    first = next((time.occurrence.at for time in times if time.occurrence.is_due), None)
    if body.queue is None or first is None:
        return None
    return instant_load_document(
        await context.queries.forecast.load_at(InstantLoadRequest(at=first, queue=body.queue, job_id=job_id))
    )


_LIVE = route_options(None, {"status": "ok"})


# HEAD too: some load balancers send it.
@router.head("/health/live", **probe_options(_LIVE))
@router.get("/health/live", tags=["system"], response_model=LiveOut, **_LIVE)
async def live() -> Response:
    """Whether this process responds. Needs no key."""
    return json_response({"status": "ok"})


def _with_failure(options: dict[str, Any], model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    options["responses"][503] = {
        "description": "The database is unavailable, or its schema does not fit",
        "model": model,
        "content": {"application/json": {"example": example | {"status": "fail"}}},
    }
    return options


_READY = _with_failure(route_options(None, _READY_EXAMPLE), ReadyOut, _READY_EXAMPLE)


@router.head("/health/ready", **probe_options(_READY))
@router.get("/health/ready", tags=["system"], response_model=ReadyOut, **_READY)
async def ready(context: Context) -> Response:
    """Whether this process can work: it checks the database and its schema. Needs no key.

    The response names the check that fails and no details; `GET /health` shows them to callers with a key.
    """
    checks = [check for check in await context.queries.doctor.health() if check.name in ("database", "schema")]
    status = _worst(checks)
    shown = [{"name": check.name, "status": check.status} for check in checks]
    return json_response({"status": status, "checks": shown}, 503 if status == "fail" else 200)


_HEALTH = _with_failure(route_options(Role.VIEWER, _HEALTH_EXAMPLE), HealthOut, _HEALTH_EXAMPLE)


@router.head("/health", **probe_options(_HEALTH))
@router.get("/health", tags=["system"], response_model=HealthOut, **_HEALTH)
async def health(context: Context) -> Response:
    """The database, its schema, whether schedulers and workers are alive, and whether every shard has a scheduler."""
    return _health(await context.queries.doctor.health())


def _worst(checks: Sequence[HealthCheck]) -> str:
    words = [check.status for check in checks]
    return "fail" if "fail" in words else "warn" if "warn" in words else "ok"


def _health(checks: Sequence[HealthCheck]) -> Response:
    status = _worst(checks)
    shown = [{"name": check.name, "status": check.status, "detail": check.detail} for check in checks]
    return json_response({"status": status, "version": __version__, "checks": shown}, 503 if status == "fail" else 200)


@router.get(
    "/audit",
    tags=["system"],
    response_model=PageOut[AuditOut],
    **route_options(Role.ADMIN, {"data": [_AUDIT_EXAMPLE], "next_cursor": None, "has_more": False}),
)
async def audit(
    context: Context,
    page: PageParams,
    subject: Annotated[ShortText | None, Query(description="Only this subject.")] = None,
    actor: Annotated[ShortText | None, Query(description="Only this actor.")] = None,
) -> Response:
    """Every change with actor, time and reason, the latest first. A field of more than 8 KB is replaced by a note."""
    records = await context.queries.audit(subject, actor, page)
    characters = sum(len(row["before"] or "") + len(row["after"] or "") for row in records.items)
    return json_response(await in_thread_if_large(lambda: page_document(records, page, audit_document), characters))


doctor_router = APIRouter(tags=["system"])

_LINE_EXAMPLE = {
    "code": "queue_unserved",
    "status": "fail",
    "subject": "queue reports",
    "found": "61 waiting, no worker serves it",
    "advice": "start one: timeball worker app:tb --queue reports",
    "command": "timeball worker app:tb --queue reports",
    "target": {"kind": "queue", "id": "reports"},
}
_CONCERN_EXAMPLE = {
    "code": "late",
    "status": "warn",
    "sentence": f"app.etl:nightly ({EXECUTION_ID}) in queue batch is 14 min late",
    "advice": f"timeball why {EXECUTION_ID}",
    "command": f"timeball why {EXECUTION_ID}",
    "target": {"kind": "execution", "id": EXECUTION_ID},
    "why": "NOT STARTED: all 8 slots of web-1 are taken.",
    "mark": None,
    "alert": "alr_01JCV3V1KC8M2T4QZ5R7N9X0AB",
}


@doctor_router.get(
    "/doctor",
    response_model=DoctorOut,
    **route_options(Role.VIEWER, {"status": "fail", "version": __version__, "lines": [_LINE_EXAMPLE]}),
)
async def doctor(context: Context) -> Response:
    """Check database, clock, schedulers, workers, queues, handlers, history and access: what was found, and what to type."""
    lines = await context.queries.doctor.diagnose()
    shown = [_diagnosis_document(line) for line in lines]
    return json_response({"status": worst_status(lines), "version": __version__, "lines": shown})


@doctor_router.get(
    "/attention", response_model=FullList[AttentionItemOut], **route_options(Role.VIEWER, {"data": [_CONCERN_EXAMPLE]})
)
async def attention(context: Context) -> Response:
    """What needs attention, the most severe first: each with a sentence, a command, where to look, and the reason."""
    return json_response({"data": [_attention_document(item) for item in await context.queries.alerts.attention()]})


def _diagnosis_document(line: Diagnosis) -> Document:
    document = asdict(line)
    return document | {"found": document.pop("detail"), "target": _target_document(line.target)}


def _attention_document(item: AttentionItem) -> Document:
    fact = item.fact
    return {
        "code": fact.kind,
        "status": item.status,
        "sentence": fact.sentence,
        "advice": fact.advice,
        "target": _target_document(fact.target),
        "why": fact.why,
        "command": fact.command,
        "mark": fact.mark,
        "alert": item.alert_id,
    }


def _target_document(target: tuple[str, str] | None) -> Document | None:
    return None if target is None else {"kind": target[0], "id": target[1]}


explain_router = APIRouter()

At = Annotated[
    str | None,
    Query(
        max_length=64,
        description="An instant (ISO 8601); without an offset it is on the clock of the job's zone.",
    ),
]

_HOLDER = "exe_01JCV3V1KC8M2T4QZ5R7N9X0CD"
_EXPLANATION_EXAMPLE = NO_INSTANT | {
    "checked_at": INSTANT_EXAMPLE,
    "job_id": JOB_ID,
    "job_name": "sync-crm",
    "execution_id": EXECUTION_ID,
    "state": "queued",
    "headline": "NOT STARTED: queue «crm» allows 1 at once and its one place is taken: "
    f"{_HOLDER} (12 min, usually 3 min). Likely start 06:01:00 UTC ± 20 s.",
    "stopped_by": "slots",
    "likely_start": {"at": "2026-11-16T06:01:00Z", "give_or_take_seconds": 20.0},
    "gates": [
        {
            "name": "slots",
            "title": "a slot is free",
            "verdict": "stopped",
            "sentence": f"queue «crm» allows 1 at once and its one place is taken: {_HOLDER} (12 min, usually 3 min)",
            "advice": "timeball queues limit crm 2",
            "command": "timeball queues limit crm 2",
            "links": [_HOLDER],
        }
    ],
}


_HELD = f"{_HOLDER} held it for 41 min (from 01:45:00 UTC to 02:26:00 UTC)"
_PAUSED = "queue «mail» was paused by ana from 01:50:00 UTC to 02:25:00 UTC"
_INSTANT_EXAMPLE = _EXPLANATION_EXAMPLE | {
    "state": "skipped",
    "headline": f"SKIPPED at 02:15:00 UTC: overlap; {_HELD}, because {_PAUSED}.",
    "stopped_by": None,
    "likely_start": None,
    "gates": [],
    "at": "2026-11-16T02:15:00Z",
    "verdict": "skipped",
    "reason": "overlap",
    "version": 3,
    "because": [
        {
            "depth": 0,
            "kind": "held_by",
            "sentence": _HELD,
            "ids": [_HOLDER],
            "from": "2026-11-16T01:45:00Z",
            "until": "2026-11-16T02:26:00Z",
            "actor": None,
        },
        {
            "depth": 1,
            "kind": "queue_paused",
            "sentence": _PAUSED,
            "ids": ["queue:mail"],
            "from": "2026-11-16T01:50:00Z",
            "until": "2026-11-16T02:25:00Z",
            "actor": "ana",
        },
    ],
}


@explain_router.get(
    "/executions/{execution}/explain",
    tags=["executions"],
    response_model=ExplanationOut,
    **route_options(Role.VIEWER, _EXPLANATION_EXAMPLE, fails=[404]),
)
async def explain_execution(execution: ExecutionRef, context: Context) -> Response:
    """Why an execution has not started, gate by gate; or since when it runs, or how it finished."""
    return json_response(explanation_document(await context.queries.explain.execution(execution)))


@explain_router.get(
    "/jobs/{job}/explain",
    tags=["jobs"],
    response_model=ExplanationOut,
    **route_options(Role.VIEWER, _INSTANT_EXAMPLE, fails=[404]),
)
async def explain_job(job: JobRef, context: Context, at: At = None) -> Response:
    """Why a job does not run: explains its running execution, or else the waiting one, or else the job itself.

    With `at`: what became of the occurrence at that instant, and why, step by step with names; for an instant that lies ahead, which
    gates will bind it if nothing is changed before.
    """
    if at is not None:
        return json_response(instant_document(await context.queries.instants.of_job(job, at)))
    return json_response(explanation_document(await context.queries.explain.job(job)))
