"""Metrics: the present, a window, a series."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models import ShortText
from timeball.api.models.metrics import MetricsOut, SeriesOut, StatsOut
from timeball.api.openapi import INSTANT_EXAMPLE, route_options
from timeball.api.params import ApiContext, Context
from timeball.api.responses import Document, json_response
from timeball.application.queries.metrics import MAX_WINDOW, MetricsScope, Overview, Series
from timeball.domain.node import NodeKind
from timeball.domain.rollup import COUNTED_FIELDS, DurationSketch, Rollup

router = APIRouter()

Hours = Annotated[float, Query(gt=0, le=MAX_WINDOW.days * 24, description="The length of the window, in hours.")]
OfQueue = Annotated[ShortText | None, Query(description="Only this queue.")]
OfHandler = Annotated[ShortText | None, Query(description="Only this handler.")]
OfJob = Annotated[ShortText | None, Query(description="Only this job, by id or name: a recurring or a manual one.")]

_PERCENTILES = {"p50": 0.001, "p95": 0.002, "p99": 0.004}
_COUNTS: dict[str, Any] = dict.fromkeys(COUNTED_FIELDS, 0) | {
    "starts": 1441,
    "succeeded": 1440,
    "failed": 1,
    "occurrences": {"ran": 1435, "skipped": {"misfire": 5}},
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
    "points": [{"at": INSTANT_EXAMPLE} | _COUNTS],
}
_METRICS_EXAMPLE = {
    "at": INSTANT_EXAMPLE,
    "now": _WAITING | {"late": 0, "overdue": 0, "dead": 17, "oldest_seconds": 0.0},
    "last_hour": _COUNTS | {"failure_share": 0.001},
    "queues": [{"name": "default", "depth": 0, "running": 3, "oldest_seconds": None, "is_paused": False}],
    "queues_total": 1,
    "nodes": {"workers": 2, "schedulers": 1, "slots": 40, "busy": 3, "draining": 0},
}


@router.get(
    "/stats", tags=["system"], response_model=StatsOut, **route_options(Role.VIEWER, _STATS_EXAMPLE, fails=[404])
)
async def stats(
    context: Context, hours: Hours = 24, queue: OfQueue = None, handler: OfHandler = None, job: OfJob = None
) -> Response:
    """Waiting and running executions, and the outcomes of the last hours by handler, with durations and lateness.

    Read from rollups that are a few seconds behind; exact to the minute for eight days, to the hour before that.
    """
    window = await context.queries.metrics.stats(
        timedelta(hours=hours), await _metrics_scope(context, queue, handler, job)
    )
    document = {
        "waiting": await context.queries.executions.waiting_counts(),
        "hours": hours,
        "since": window.since,
        "until": window.until,
        "total": counts_document(window.total),
        "by_handler": [{"handler": rollup.handler} | counts_document(rollup) for rollup in window.by_handler],
    }
    return json_response(document)


@router.get("/metrics", tags=["system"], response_model=MetricsOut, **route_options(Role.VIEWER, _METRICS_EXAMPLE))
async def metrics(context: Context) -> Response:
    """The present and the last hour: waiting and late executions, queues, workers."""
    return json_response(metrics_document(await context.queries.metrics.overview()))


@router.get(
    "/metrics/executions",
    tags=["system"],
    response_model=SeriesOut,
    **route_options(Role.VIEWER, _SERIES_EXAMPLE, fails=[404]),
)
async def metrics_of_executions(
    context: Context, hours: Hours = 24, queue: OfQueue = None, handler: OfHandler = None, job: OfJob = None
) -> Response:
    """Counts by the minute; for more than a day by ten minutes, for more than eight days by the hour. Empty steps are zeros."""
    series = await context.queries.metrics.series(
        timedelta(hours=hours), await _metrics_scope(context, queue, handler, job)
    )
    return json_response(series_document(series))


async def _metrics_scope(context: ApiContext, queue: str | None, handler: str | None, job: str | None) -> MetricsScope:
    job_id = None if job is None else (await context.queries.jobs.find(job)).id
    return MetricsScope(job_id, queue, handler)


def metrics_document(overview: Overview) -> Document:
    """The present and the last hour as the API shows them."""
    now, last_hour = overview.now, overview.last_hour
    workers = [node for node in overview.nodes if node.kind is NodeKind.WORKER]
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
        "last_hour": counts_document(last_hour) | {"failure_share": last_hour.counts.failure_share},
        "queues": [_queue_document(row) for row in overview.queues],
        "queues_total": overview.number_of_queues,
        "nodes": {
            "workers": len(workers),
            "schedulers": len(overview.nodes) - len(workers),
            "slots": sum(node.slots for node in workers),
            "busy": sum(node.busy for node in workers),
            "draining": sum(node.draining for node in workers),
        },
    }


def series_document(series: Series) -> Document:
    """A series as the API shows it."""
    return {
        "since": series.since,
        "until": series.until,
        "step_seconds": int(series.step.total_seconds()),
        "points": [{"at": point.at} | counts_document(point) for point in series.points],
    }


def counts_document(rollup: Rollup) -> dict[str, Any]:
    """A rollup as the API shows it."""
    counts: dict[str, Any] = {name: getattr(rollup.counts, name) for name in COUNTED_FIELDS}
    return counts | {
        "occurrences": {"ran": rollup.occurrences.ran, "skipped": dict(rollup.occurrences.skipped)},
        "duration_seconds": _percentiles(rollup.duration),
        "lateness_seconds": _percentiles(rollup.lateness),
    }


def _percentiles(sketch: DurationSketch) -> dict[str, float | None]:
    pairs = zip(("p50", "p95", "p99"), sketch.percentiles((0.5, 0.95, 0.99)), strict=True)
    return {name: None if value is None else float(f"{value:.3g}") for name, value in pairs}


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
