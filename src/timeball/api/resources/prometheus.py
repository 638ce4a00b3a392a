"""The metrics for Prometheus, outside the API prefix.

The numbers from the database are the same in every process, so one API is enough to scrape; the numbers that a process counts are
its own. At most a thousand pairs of queue and handler, a hundred queues (those with the longest wait) and as many recurring jobs as
a setting says (the first that were created) have labels of their own. No label names an execution: in OpenMetrics, exemplars do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import product
from types import MappingProxyType

from fastapi import APIRouter, Depends
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import Role, require_role
from timeball.api.params import Context
from timeball.application.queries.metrics import MetricsQueries, Overview
from timeball.domain.node import BrokerState, NodeKind
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.rollup import DurationSketch, EndedExample, JobSummary, Rollup, sum_occurrences
from timeball.domain.trace import trace_id_of
from timeball.domain.values.ids import format_execution_id
from timeball.telemetry.metrics import MetricsSource

router = APIRouter()

_OPEN_METRICS = "application/openmetrics-text"
_PAIR = ("queue", "handler")
# The label of all queues, and of all recurring jobs, without a label of their own. The parentheses keep it apart from a real name.
OTHERS = "(other)"
# Not `job`: Prometheus itself gives every series a label of that name.
_JOB = ("job_name",)
_OUTCOMES = ("succeeded", "cancelled", "dead", "skipped", "expected")
_ATTEMPTS = {"failed": "failed", "timed_out": "timed_out", "lost": "lost", "expected": "expected_tries"}
_LATENESS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


@router.api_route(
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


async def exposition(meters: MetricsQueries, process: MetricsSource, accept: str = "") -> tuple[bytes, str]:
    """All metrics in the format that *accept* names, and the media type of that format."""
    is_open_metrics = _OPEN_METRICS in accept
    # Only this format has a place for exemplars.
    examples = await meters.examples() if is_open_metrics else []
    ever, overview = await meters.ever(), await meters.overview()
    jobs, database = await meters.jobs(), await meters.database()
    own = list(process.collect())

    def encode() -> tuple[bytes, str]:
        families = [
            *_of_all_time(ever, Exemplars(examples)),
            *_of_this_moment(overview),
            *_of_jobs(jobs),
            *_of_the_database(database),
            *own,
        ]
        registry = CollectorRegistry()
        registry.register(_Families(families))
        # Only the name: the version in the header is the caller's own text, and would be repeated in the response.
        encode_all, media_type = choose_encoder(f"{_OPEN_METRICS}; version=1.0.0" if is_open_metrics else "")
        return encode_all(registry), media_type

    # In a thread: a thousand pairs are some ten thousand lines.
    return await asyncio.to_thread(encode)


class Exemplars:
    """For each counter and each bucket of a histogram, the latest execution that it counts: its id, and its trace if it has one."""

    def __init__(self, examples: Sequence[EndedExample]) -> None:
        self._of_outcome: dict[tuple[str, ...], Exemplar] = {}
        self._of_span: dict[tuple[str, str, str], list[Exemplar]] = {}
        for example in examples:
            pair = (example.queue, example.handler)
            self._of_outcome.setdefault((*pair, example.outcome), _exemplar(example, 1.0))
            for what, seconds in (("late", example.lateness_seconds), ("lasted", example.duration_seconds)):
                if seconds is not None:
                    self._of_span.setdefault((what, *pair), []).append(_exemplar(example, seconds))

    def of_outcome(self, queue: str, handler: str, outcome: str) -> Exemplar | None:
        """The latest execution that ended so."""
        return self._of_outcome.get((queue, handler, outcome))

    def by_bucket(self, what: str, queue: str, handler: str, bounds: Sequence[float]) -> Mapping[float, Exemplar]:
        """The latest execution of each bucket; a bucket without one has none."""
        latest: dict[float, Exemplar] = {}
        for exemplar in self._of_span.get((what, queue, handler), ()):
            latest.setdefault(next((bound for bound in bounds if exemplar.value <= bound), float("inf")), exemplar)
        return latest


def _exemplar(example: EndedExample, value: float) -> Exemplar:
    labels = {"execution_id": format_execution_id(example.id)}
    trace_id = trace_id_of(example.traceparent or "")
    if trace_id is not None:
        labels["trace_id"] = trace_id
    return Exemplar(labels, value, example.ended_at.timestamp())


class _Families(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_all_time(rollups: Sequence[Rollup], exemplars: Exemplars) -> Iterator[Metric]:
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
            count = getattr(rollup.counts, outcome)
            ended.add_metric((*pair, outcome), count, exemplar=exemplars.of_outcome(*pair, outcome) if count else None)
        for outcome, field in _ATTEMPTS.items():
            tries.add_metric((*pair, outcome), getattr(rollup.counts, field))
        starts.add_metric(pair, rollup.counts.starts)
        late = exemplars.by_bucket("late", *pair, _LATENESS_BOUNDS)
        lateness.add_metric(pair, _buckets(rollup.lateness, _LATENESS_BOUNDS, late), rollup.lateness_seconds)
        lasted = exemplars.by_bucket("lasted", *pair, _DURATION_BOUNDS)
        duration.add_metric(pair, _buckets(rollup.duration, _DURATION_BOUNDS, lasted), rollup.duration_seconds)
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


_Bucket = tuple[str, float] | tuple[str, float, Exemplar]


def _buckets(
    sketch: DurationSketch, bounds: Sequence[float], exemplars: Mapping[float, Exemplar] = MappingProxyType({})
) -> list[_Bucket]:
    """The buckets of a histogram, each with everything below its bound. An exemplar that is not folded yet comes with the next scrape."""
    buckets: list[_Bucket] = []
    below = 0
    for bound in (*bounds, float("inf")):
        count = sketch.total if bound == float("inf") else sketch.at_most(bound)
        name = "+Inf" if bound == float("inf") else str(bound)
        exemplar = exemplars.get(bound) if count > below else None
        buckets.append((name, float(count)) if exemplar is None else (name, float(count), exemplar))
        below = count
    return buckets


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
        shown = sum(row["depth"] for row in overview.queues)
        depth.add_metric((OTHERS,), max(overview.now.queued - shown, 0))
    yield from (depth, oldest, paused)
    yield GaugeMetricFamily("timeball_queues", "Queues in use; at most 100 have a label of their own.", total)


def _of_jobs(summaries: Sequence[JobSummary]) -> Iterator[Metric]:
    """What the latest runs of recurring jobs tell. A job has no line for what it has not shown yet, such as a success."""
    succeeded = GaugeMetricFamily(
        "timeball_job_last_success_timestamp_seconds", "When a recurring job last succeeded.", labels=_JOB
    )
    lasted = GaugeMetricFamily(
        "timeball_job_last_duration_seconds", "How long the last run of a recurring job took.", labels=_JOB
    )
    late = GaugeMetricFamily(
        "timeball_job_lateness_seconds",
        "How long after its instant the last run of a recurring job started.",
        labels=_JOB,
    )
    failures = GaugeMetricFamily(
        "timeball_job_failures_in_a_row",
        "How many runs of a recurring job have died since one succeeded.",
        labels=_JOB,
    )
    for summary in summaries:
        name = (OTHERS if summary.name is None else summary.name,)
        if summary.succeeded_at is not None:
            succeeded.add_metric(name, summary.succeeded_at.timestamp())
        if summary.duration_seconds is not None:
            lasted.add_metric(name, summary.duration_seconds)
        if summary.lateness_seconds is not None:
            late.add_metric(name, summary.lateness_seconds)
        failures.add_metric(name, summary.failures_in_a_row)
    yield from (succeeded, lasted, late, failures)


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
