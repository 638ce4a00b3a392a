"""Metrics: the present, a window, a series, and the Prometheus endpoint.

For Prometheus, the numbers from the database are the same in every process, so one API is enough to scrape; the numbers that a
process counts are its own. No label names a job or an execution. At most a thousand pairs of queue and handler and a hundred
queues have labels of their own: those with the longest wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import Role, require_role
from timeball.api.models import ShortText
from timeball.api.models.metrics import MetricsOut, SeriesOut, StatsOut
from timeball.api.openapi import INSTANT_EXAMPLE, route_options
from timeball.api.params import ApiContext, Context
from timeball.api.responses import Document, json_response
from timeball.application.queries.metrics import MAX_WINDOW, MetricsQueries, MetricsScope, Overview, Series
from timeball.domain.node import BrokerState, NodeKind
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.rollup import COUNTED_FIELDS, DurationSketch, Rollup, sum_occurrences
from timeball.telemetry.metrics import MetricsSource

router = APIRouter()


# Outside the API prefix: the path that Prometheus expects.
prometheus_router = APIRouter()

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


@prometheus_router.api_route(
    "/metrics",
    methods=["GET", "HEAD"],
    include_in_schema=False,
    dependencies=[Depends(require_role(Role.VIEWER))],
    openapi_extra={"x-role": Role.VIEWER.value},
)
async def prometheus(request: Request, context: Context) -> Response:
    """The numbers for Prometheus: OpenMetrics if `Accept` names it, the older text format otherwise."""
    text, media_type = await exposition(context.queries.metrics, context.process, request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


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


_OPEN_METRICS = "application/openmetrics-text"
_PAIR = ("queue", "handler")


# The label of all queues without a label of their own.
OTHER_QUEUES = "(other)"
_OUTCOMES = ("succeeded", "cancelled", "dead", "skipped", "expected")
_ATTEMPTS = {"failed": "failed", "timed_out": "timed_out", "lost": "lost", "expected": "expected_tries"}
_LATENESS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


async def exposition(meters: MetricsQueries, process: MetricsSource, accept: str = "") -> tuple[bytes, str]:
    """All metrics in the format that *accept* names, and the media type of that format."""
    ever, overview, database = await meters.ever(), await meters.overview(), await meters.database()
    own = list(process.collect())
    # In a thread: a thousand pairs are some ten thousand lines.
    return await asyncio.to_thread(_encode, accept, ever, overview, database, own)


def _encode(
    accept: str, ever: Sequence[Rollup], overview: Overview, database: dict[str, object], own: Sequence[Metric]
) -> tuple[bytes, str]:
    families = [*_of_all_time(ever), *_of_this_moment(overview), *_of_the_database(database), *own]
    registry = CollectorRegistry()
    registry.register(_Families(families))
    # Only the name: the version in the header is the caller's own text, and would be repeated in the response.
    encode, media_type = choose_encoder(f"{_OPEN_METRICS}; version=1.0.0" if _OPEN_METRICS in accept else "")
    return encode(registry), media_type


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_all_time(rollups: Sequence[Rollup]) -> Iterator[Metric]:
    ended = CounterMetricFamily("timeball_executions", "Executions that ended, by outcome.", labels=(*_PAIR, "outcome"))
    tries = CounterMetricFamily(
        "timeball_unsuccessful_tries", "Attempts that did not succeed, by outcome.", labels=(*_PAIR, "outcome")
    )
    starts = CounterMetricFamily("timeball_starts", "Attempts that were started.", labels=_PAIR)
    lateness = HistogramMetricFamily(
        "timeball_start_lateness_seconds",
        "How long after its scheduled instant an execution first started.",
        labels=_PAIR,
    )
    duration = HistogramMetricFamily(
        "timeball_execution_duration_seconds", "How long the last attempt of an execution took.", labels=_PAIR
    )
    for rollup in rollups:
        pair = (rollup.queue, rollup.handler)
        for outcome in _OUTCOMES:
            ended.add_metric((*pair, outcome), getattr(rollup.counts, outcome))
        for outcome, count in _ATTEMPTS.items():
            tries.add_metric((*pair, outcome), getattr(rollup.counts, count))
        starts.add_metric(pair, rollup.counts.starts)
        lateness.add_metric(pair, _buckets(rollup.lateness, _LATENESS_BOUNDS), rollup.lateness_seconds)
        duration.add_metric(pair, _buckets(rollup.duration, _DURATION_BOUNDS), rollup.duration_seconds)
    yield from (ended, tries, starts, lateness, duration, _of_occurrences(rollups))


def _of_occurrences(rollups: Sequence[Rollup]) -> Metric:
    """One line for each reason, whether or not anything was ever skipped for it: an alert on a rate needs the zero before."""
    total = sum_occurrences(rollup.occurrences for rollup in rollups)
    occurrences = CounterMetricFamily(
        "timeball_occurrences",
        "Occurrences of schedules that ran or were skipped, by reason; a skip range counts as many as it holds.",
        labels=("verdict", "reason"),
    )
    occurrences.add_metric((Verdict.RAN.value, ""), total.ran)
    # What a schedule leaves out is not recorded: a zero would say that there was none.
    recorded = (reason for reason in SkipReason if not reason.is_left_out)
    for reason in dict.fromkeys((*recorded, *total.skipped)):
        occurrences.add_metric((Verdict.SKIPPED.value, str(reason)), total.skipped.get(reason, 0))
    return occurrences


def _buckets(sketch: DurationSketch, bounds: Sequence[float]) -> list[tuple[str, float]]:
    buckets = [(str(bound), float(sketch.at_most(bound))) for bound in bounds]
    return [*buckets, ("+Inf", float(sketch.total))]


def _of_this_moment(overview: Overview) -> Iterator[Metric]:
    now = overview.now
    states = GaugeMetricFamily(
        "timeball_executions_waiting", "Waiting and running executions by state; stops at 10,001.", labels=("state",)
    )
    for state in ("scheduled", "retrying", "queued", "running"):
        states.add_metric((state,), getattr(now, state))
    yield states
    yield GaugeMetricFamily("timeball_late", "Ready for more than two seconds; stops at 10,001.", now.late)
    yield GaugeMetricFamily("timeball_overdue", "Due for more than two seconds, and not promoted.", now.overdue)
    yield GaugeMetricFamily("timeball_dead", "Dead, neither retried nor discarded; stops at 10,001.", now.dead)
    yield from _of_queues(overview)
    yield from _of_nodes(overview)


def _of_queues(overview: Overview) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "timeball_queue_depth", "Ready executions of a queue; stops at 10,001.", labels=("queue",)
    )
    oldest = GaugeMetricFamily(
        "timeball_queue_oldest_age_seconds", "How long the oldest ready execution has been due.", labels=("queue",)
    )
    paused = GaugeMetricFamily("timeball_queue_paused", "Whether a queue is paused.", labels=("queue",))
    for row in overview.queues:
        name = (row["name"],)
        depth.add_metric(name, row["depth"])
        oldest.add_metric(name, _age(row["oldest_at"], overview.now.at))
        paused.add_metric(name, float(row["paused_at"] is not None))
    total = overview.number_of_queues
    if total > len(overview.queues):
        # The parentheses keep the label apart from the name of a real queue.
        shown = sum(row["depth"] for row in overview.queues)
        depth.add_metric((OTHER_QUEUES,), max(overview.now.queued - shown, 0))
    yield from (depth, oldest, paused)
    yield GaugeMetricFamily("timeball_queues", "Queues in use; at most 100 have a label of their own.", total)


def _of_nodes(overview: Overview) -> Iterator[Metric]:
    alive = GaugeMetricFamily("timeball_nodes", "Nodes that are alive.", labels=("kind",))
    renewal = GaugeMetricFamily(
        "timeball_renewal_age_seconds", "The longest time since a live node renewed its lease.", labels=("kind",)
    )
    for kind in NodeKind:
        nodes = [node for node in overview.nodes if node.kind is kind]
        alive.add_metric((kind.value,), len(nodes))
        ages = [_age(node.renewed_at, overview.now.at) for node in nodes]
        renewal.add_metric((kind.value,), max(ages, default=0.0))
    slots = GaugeMetricFamily("timeball_worker_slots", "Slots of all live workers.", labels=("state",))
    total = sum(node.slots for node in overview.nodes)
    busy = sum(node.busy for node in overview.nodes)
    slots.add_metric(("busy",), busy)
    slots.add_metric(("free",), max(total - busy, 0))
    yield from (alive, renewal, slots, _of_brokers(overview))


def _of_brokers(overview: Overview) -> Metric:
    nodes = GaugeMetricFamily(
        "timeball_broker_nodes", "Live nodes by broker and its state.", labels=("broker", "state")
    )
    used = {node.broker for node in overview.nodes}
    for broker, state in product(sorted(used), BrokerState):
        matching = [node for node in overview.nodes if (node.broker, node.broker_status.state) == (broker, state)]
        nodes.add_metric((broker, state.value), len(matching))
    return nodes


def _of_the_database(database: dict[str, object]) -> Iterator[Metric]:
    oldest = database["oldest_transaction_seconds"]
    assert isinstance(oldest, float)
    yield GaugeMetricFamily(
        "timeball_database_oldest_transaction_seconds", "How long the oldest transaction has been open.", oldest
    )
    dead = GaugeMetricFamily("timeball_database_dead_rows", "Dead rows of a state table.", labels=("table",))
    tables, rows = database["state_tables"], database["dead_rows"]
    assert isinstance(tables, list)
    assert isinstance(rows, list)
    for table, number in zip(tables, rows, strict=True):
        dead.add_metric((table,), number)
    yield dead


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max((now - since).total_seconds(), 0.0)
