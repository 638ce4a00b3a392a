"""Schedules to look at, health, numbers, and who did what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.described import JOB_ID, MOMENT, described, described_probe
from timeball.api.desk import Desk, TheDesk
from timeball.api.routes.jobs import IdempotencyKey, ThePage
from timeball.api.schemas.common import ListOut, Words
from timeball.api.schemas.system import AuditOut, HealthOut, LiveOut, NextOut, PreviewIn, ReadyOut
from timeball.api.views import (
    Document,
    answer,
    audit_document,
    fire_time_document,
    landing_document,
    off_loop,
    page_document,
)
from timeball.api.wishes import moment_from
from timeball.domain.schedule import parse_schedule
from timeball.insights import Check, FireTime, LandingWish
from timeball.version import __version__

router = APIRouter()

_CHECK_EXAMPLE = {"name": "database", "status": "ok", "detail": "it answers"}
_HEALTH_EXAMPLE = {"status": "ok", "version": "1.2.3", "checks": [_CHECK_EXAMPLE]}
_READY_EXAMPLE = {"status": "ok", "checks": [{"name": "database", "status": "ok"}]}
_PREVIEW_EXAMPLE = {
    "description": "At 02:30 (Europe/Berlin)",
    "next": [
        {"at": "2027-03-28T01:00:00Z", "local": "2027-03-28T03:00:00+02:00", "is_due": True, "note": "moved_by_gap"}
    ],
    "landing": {
        "at": "2027-03-28T01:00:00Z",
        "jobs": [{"id": JOB_ID, "label": "reindex", "p95_seconds": 540.0}],
        "one_offs": 0,
        "need": 6,
        "slots": 8,
        "left_out": False,
    },
}
_AUDIT_EXAMPLE = {
    "id": "aud_01JCV3V1KC8M2T4QZ5R7N9X0AB",
    "at": MOMENT,
    "actor": "key:4c1a9d02b7e1 deploy",
    "place": "http 10.0.0.7",
    "action": "job.pause",
    "subject": "job:01937b1d-8607-7000-8000-000000000000",
    "reason": "maintenance",
    "before": {"paused_at": None},
    "after": {"paused_at": MOMENT},
}


@router.post(
    "/schedules/preview",
    tags=["time"],
    response_model=NextOut,
    **described(
        Role.VIEWER,
        _PREVIEW_EXAMPLE,
        request={"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "queue": "batch"},
        has_body=True,
        fails=[409],
    ),
)
async def preview_schedule(body: PreviewIn, desk: TheDesk, idempotency_key: IdempotencyKey = None) -> Response:
    """When a schedule would fire, in words and in instants, with the changes of the clock marked.

    With a `queue`, also what else runs there at the next instant, and how many of the slots that needs.
    """
    now = desk.insights.now()
    after = moment_from(body.after, "after", body.timezone) or now
    rule = parse_schedule(**body.model_dump(exclude={"after", "count", "queue", "job"}), now=now)
    times = desk.insights.next_times(rule, body.timezone, after, body.count)
    told = {"description": rule.describe(), "next": [fire_time_document(time) for time in times]}
    return answer(told | {"landing": await _landing(desk, body, times)})


async def _landing(desk: Desk, body: PreviewIn, times: Sequence[FireTime]) -> Document | None:
    first = next((time.occurrence.at for time in times if time.occurrence.is_due), None)
    if body.queue is None or first is None:
        return None
    job_id = None if body.job is None else (await desk.insights.find_job(body.job)).id
    return landing_document(await desk.insights.landing(LandingWish(at=first, queue=body.queue, job_id=job_id)))


_LIVE = described(None, {"status": "ok"})


# HEAD too for what load balancers ask.
@router.head("/health/live", **described_probe(_LIVE))
@router.get("/health/live", tags=["system"], response_model=LiveOut, **_LIVE)
async def live() -> Response:
    """Whether this process answers at all. Needs no key."""
    return answer({"status": "ok"})


def _failing(described: dict[str, Any], model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    described["responses"][503] = {
        "description": "The database or its schema is not as it must be",
        "model": model,
        "content": {"application/json": {"example": example | {"status": "fail"}}},
    }
    return described


_READY = _failing(described(None, _READY_EXAMPLE), ReadyOut, _READY_EXAMPLE)


@router.head("/health/ready", **described_probe(_READY))
@router.get("/health/ready", tags=["system"], response_model=ReadyOut, **_READY)
async def ready(desk: TheDesk) -> Response:
    """Whether this process can do its work: it asks the database, and looks at its schema. Needs no key.

    It says which of the two fails, and nothing more: `GET /health` tells the details to those with a key.
    """
    checks = [check for check in await desk.insights.health() if check.name in ("database", "schema")]
    status = _worst(checks)
    shown = [{"name": check.name, "status": check.status} for check in checks]
    return answer({"status": status, "checks": shown}, 503 if status == "fail" else 200)


_HEALTH = _failing(described(Role.VIEWER, _HEALTH_EXAMPLE), HealthOut, _HEALTH_EXAMPLE)


@router.head("/health", **described_probe(_HEALTH))
@router.get("/health", tags=["system"], response_model=HealthOut, **_HEALTH)
async def health(desk: TheDesk) -> Response:
    """The database, its schema, and whether schedulers and workers are alive and every shard is looked after."""
    return _health(await desk.insights.health())


def _worst(checks: Sequence[Check]) -> str:
    words = [check.status for check in checks]
    return "fail" if "fail" in words else "warn" if "warn" in words else "ok"


def _health(checks: Sequence[Check]) -> Response:
    status = _worst(checks)
    shown = [{"name": check.name, "status": check.status, "detail": check.detail} for check in checks]
    return answer({"status": status, "version": __version__, "checks": shown}, 503 if status == "fail" else 200)


@router.get(
    "/audit",
    tags=["system"],
    response_model=ListOut[AuditOut],
    **described(Role.ADMIN, {"data": [_AUDIT_EXAMPLE], "next_cursor": None, "has_more": False}),
)
async def audit(
    desk: TheDesk,
    page: ThePage,
    subject: Annotated[Words | None, Query(description="Only about this.")] = None,
    actor: Annotated[Words | None, Query(description="Only by this one.")] = None,
) -> Response:
    """Who changed what, when and why, the latest first. In the place of a field of more than 8 KB stands a note."""
    found = await desk.insights.audit(subject, actor, page)
    characters = sum(len(row["before"] or "") + len(row["after"] or "") for row in found.items)
    return answer(await off_loop(lambda: page_document(found, page, audit_document), characters))
