"""Numbers: of this moment, of a window, minute by minute; and for Prometheus."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import Role, needs
from timeball.api.described import MOMENT, described
from timeball.api.desk import Desk, TheDesk
from timeball.api.prometheus import exposition
from timeball.api.schemas.common import Words
from timeball.api.schemas.meters import MetricsOut, SeriesOut, StatsOut
from timeball.api.views import Document, answer
from timeball.domain.node import NodeKind
from timeball.domain.rollup import TALLIED, Rollup
from timeball.domain.sketch import Sketch
from timeball.insights.meters import LONGEST_WINDOW, Overview, Series, Whose

router = APIRouter()
# Outside of the API: where Prometheus looks by itself.
plain_router = APIRouter()

Hours = Annotated[float, Query(gt=0, le=LONGEST_WINDOW.days * 24, description="How far back.")]
OfQueue = Annotated[Words | None, Query(description="Only of this queue.")]
OfHandler = Annotated[Words | None, Query(description="Only of this handler.")]
OfJob = Annotated[Words | None, Query(description="Only of this job, by id or name: one that recurs or is triggered.")]

_PERCENTILES = {"p50": 0.001, "p95": 0.002, "p99": 0.004}
_COUNTS: dict[str, Any] = dict.fromkeys(TALLIED, 0) | {
    "starts": 1441,
    "succeeded": 1440,
    "failed": 1,
    "duration_seconds": _PERCENTILES,
    "lateness_seconds": _PERCENTILES,
}
_WAITING = {"scheduled": 120, "retrying": 2, "queued": 0, "running": 3}
_STATS_EXAMPLE = {
    "waiting": _WAITING,
    "hours": 24,
    "since": "2026-11-15T06:01:00Z",
    "until": "2026-11-16T06:01:00Z",
    "total": _COUNTS,
    "by_handler": [{"handler": "http.webhook"} | _COUNTS],
}
_SERIES_EXAMPLE = {
    "since": "2026-11-15T06:01:00Z",
    "until": "2026-11-16T06:01:00Z",
    "step_seconds": 60,
    "points": [{"at": MOMENT} | _COUNTS],
}
_METRICS_EXAMPLE = {
    "at": MOMENT,
    "now": _WAITING | {"late": 0, "overdue": 0, "dead": 17, "oldest_seconds": 0.0},
    "last_hour": _COUNTS | {"failure_share": 0.001},
    "queues": [{"name": "default", "depth": 0, "running": 3, "oldest_seconds": None, "is_paused": False}],
    "queues_total": 1,
    "nodes": {"workers": 2, "schedulers": 1, "slots": 40, "busy": 3, "draining": 0},
}


@router.get("/stats", tags=["system"], response_model=StatsOut, **described(Role.VIEWER, _STATS_EXAMPLE, fails=[404]))
async def stats(
    desk: TheDesk, hours: Hours = 24, queue: OfQueue = None, handler: OfHandler = None, job: OfJob = None
) -> Response:
    """What waits and runs, and what happened in the last hours: by outcome and handler, with durations and lateness.

    From rollups, a few seconds behind; to the minute within eight days, to the hour beyond.
    """
    found = await desk.insights.meters.stats(timedelta(hours=hours), await _whose(desk, queue, handler, job))
    document = {
        "waiting": await desk.insights.waiting_counts(),
        "hours": hours,
        "since": found.since,
        "until": found.until,
        "total": counts_document(found.total),
        "by_handler": [{"handler": one.handler} | counts_document(one) for one in found.by_handler],
    }
    return answer(document)


@router.get("/metrics", tags=["system"], response_model=MetricsOut, **described(Role.VIEWER, _METRICS_EXAMPLE))
async def metrics(desk: TheDesk) -> Response:
    """The numbers of this moment and of the last hour: what waits, what is late, queues, workers."""
    return answer(metrics_document(await desk.insights.meters.overview()))


@router.get(
    "/metrics/executions",
    tags=["system"],
    response_model=SeriesOut,
    **described(Role.VIEWER, _SERIES_EXAMPLE, fails=[404]),
)
async def metrics_of_executions(
    desk: TheDesk, hours: Hours = 24, queue: OfQueue = None, handler: OfHandler = None, job: OfJob = None
) -> Response:
    """What happened minute by minute; beyond a day in steps of ten minutes, beyond eight by the hour. Quiet steps are zeros."""
    found = await desk.insights.meters.series(timedelta(hours=hours), await _whose(desk, queue, handler, job))
    return answer(series_document(found))


@plain_router.api_route(
    "/metrics",
    methods=["GET", "HEAD"],
    include_in_schema=False,
    dependencies=[Depends(needs(Role.VIEWER))],
    openapi_extra={"x-role": Role.VIEWER.value},
)
async def prometheus(request: Request, desk: TheDesk) -> Response:
    """The numbers as Prometheus reads them: OpenMetrics where `Accept` asks for it, the older text otherwise."""
    text, media_type = await exposition(desk.insights.meters, desk.process, request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


async def _whose(desk: Desk, queue: str | None, handler: str | None, job: str | None) -> Whose:
    job_id = None if job is None else (await desk.insights.find_job(job)).id
    return Whose(job_id, queue, handler)


def metrics_document(found: Overview) -> Document:
    """This moment and the last hour as the API tells them."""
    now, last_hour = found.now, found.last_hour
    workers = [node for node in found.nodes if node.kind is NodeKind.WORKER]
    return {
        "at": now.at,
        "now": {
            "scheduled": now.scheduled,
            "retrying": now.retrying,
            "queued": now.queued,
            "running": now.running,
            "late": now.late,
            "overdue": now.overdue,
            "dead": now.dead,
            "oldest_seconds": round(now.oldest_seconds, 3),
        },
        "last_hour": counts_document(last_hour) | {"failure_share": last_hour.tally.failure_share},
        "queues": [_queue_document(one) for one in found.queues],
        "queues_total": found.number_of_queues,
        "nodes": {
            "workers": len(workers),
            "schedulers": len(found.nodes) - len(workers),
            "slots": sum(node.slots for node in workers),
            "busy": sum(node.busy for node in workers),
            "draining": sum(node.draining for node in workers),
        },
    }


def series_document(found: Series) -> Document:
    """A window, step by step, as the API tells it."""
    return {
        "since": found.since,
        "until": found.until,
        "step_seconds": int(found.step.total_seconds()),
        "points": [{"at": point.at} | counts_document(point) for point in found.points],
    }


def counts_document(rollup: Rollup) -> dict[str, Any]:
    """A rollup as the API tells it."""
    counts: dict[str, Any] = {name: getattr(rollup.tally, name) for name in TALLIED}
    return counts | {
        "duration_seconds": _percentiles(rollup.duration),
        "lateness_seconds": _percentiles(rollup.lateness),
    }


def _percentiles(sketch: Sketch) -> dict[str, float | None]:
    found = zip(("p50", "p95", "p99"), sketch.percentiles((0.5, 0.95, 0.99)), strict=True)
    return {name: None if value is None else float(f"{value:.3g}") for name, value in found}


def _queue_document(row: dict[str, Any]) -> dict[str, Any]:
    oldest = row["oldest_at"]
    waited = None if oldest is None else round(max((row["moment"] - oldest).total_seconds(), 0.0), 3)
    return {
        "name": row["name"],
        "depth": row["depth"],
        "running": row["running"],
        "oldest_seconds": waited,
        "is_paused": row["paused_at"] is not None,
    }
