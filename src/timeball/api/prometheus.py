"""The numbers as Prometheus reads them.

What the database counted is the same whichever process is asked, so ask one API; what a process counted itself is its own.
No label names a job or an execution; no more than a thousand pairs of queue and handler, and no more than a hundred queues, are told
one by one: those whose oldest execution waits longest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import product

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from timeball.domain.node import BrokerState, NodeKind
from timeball.domain.rollup import Rollup
from timeball.domain.sketch import Sketch
from timeball.insights.meters import Meters, Overview
from timeball.telemetry.metrics import Counts

_OPEN_METRICS = "application/openmetrics-text"
_PAIR = ("queue", "handler")
# Stands for all queues that are not told one by one.
OTHER_QUEUES = "(other)"
_OUTCOMES = ("succeeded", "cancelled", "dead", "skipped")
_TRIES = ("failed", "timed_out", "lost")
_LATENESS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


async def exposition(meters: Meters, process: Counts, accept: str = "") -> tuple[bytes, str]:
    """Everything there is to tell, in the format that *accept* asks for, and the media type of that format."""
    ever, overview, database = await meters.ever(), await meters.overview(), await meters.database()
    own = list(process.collect())
    # Aside: a thousand pairs are some ten thousand lines, and others wait for this loop.
    return await asyncio.to_thread(_encoded, accept, ever, overview, database, own)


def _encoded(
    accept: str, ever: Sequence[Rollup], overview: Overview, database: dict[str, object], own: Sequence[Metric]
) -> tuple[bytes, str]:
    families = [*_of_all_time(ever), *_of_this_moment(overview), *_of_the_database(database), *own]
    registry = CollectorRegistry()
    registry.register(_Ready(families))
    # Only the name is asked for: the version in a header is the caller's own text, and would be repeated in the answer.
    encode, media_type = choose_encoder(f"{_OPEN_METRICS}; version=1.0.0" if _OPEN_METRICS in accept else "")
    return encode(registry), media_type


class _Ready(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_all_time(rollups: Sequence[Rollup]) -> Iterator[Metric]:
    ended = CounterMetricFamily("timeball_executions", "Executions that ended, by outcome.", labels=(*_PAIR, "outcome"))
    tries = CounterMetricFamily(
        "timeball_unsuccessful_tries", "Tries that did not succeed, by outcome.", labels=(*_PAIR, "outcome")
    )
    starts = CounterMetricFamily("timeball_starts", "Tries that were started.", labels=_PAIR)
    lateness = HistogramMetricFamily(
        "timeball_start_lateness_seconds", "How long after its instant an execution first started.", labels=_PAIR
    )
    duration = HistogramMetricFamily(
        "timeball_execution_duration_seconds", "How long the last try of an execution took.", labels=_PAIR
    )
    for one in rollups:
        pair = (one.queue, one.handler)
        for outcome in _OUTCOMES:
            ended.add_metric((*pair, outcome), getattr(one.tally, outcome))
        for outcome in _TRIES:
            tries.add_metric((*pair, outcome), getattr(one.tally, outcome))
        starts.add_metric(pair, one.tally.starts)
        lateness.add_metric(pair, _buckets(one.lateness, _LATENESS_BOUNDS), one.lateness_seconds)
        duration.add_metric(pair, _buckets(one.duration, _DURATION_BOUNDS), one.duration_seconds)
    yield from (ended, tries, starts, lateness, duration)


def _buckets(sketch: Sketch, bounds: Sequence[float]) -> list[tuple[str, float]]:
    told = [(str(bound), float(sketch.at_most(bound))) for bound in bounds]
    return [*told, ("+Inf", float(sketch.total))]


def _of_this_moment(overview: Overview) -> Iterator[Metric]:
    now = overview.now
    states = GaugeMetricFamily(
        "timeball_executions_waiting", "What waits and runs; stops at 10,001.", labels=("state",)
    )
    for state in ("scheduled", "retrying", "queued", "running"):
        states.add_metric((state,), getattr(now, state))
    yield states
    yield GaugeMetricFamily("timeball_late", "Ready for more than two seconds; stops at 10,001.", now.late)
    yield GaugeMetricFamily("timeball_overdue", "Due for more than two seconds, and not hoisted.", now.overdue)
    yield GaugeMetricFamily("timeball_dead", "Dead, and nobody has dealt with it; stops at 10,001.", now.dead)
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
        # No queue of this name is told twice: parentheses around it would be odd for a real one.
        told = sum(row["depth"] for row in overview.queues)
        depth.add_metric((OTHER_QUEUES,), max(overview.now.queued - told, 0))
    yield from (depth, oldest, paused)
    yield GaugeMetricFamily("timeball_queues", "Queues that are in use; at most 100 are told one by one.", total)


def _of_nodes(overview: Overview) -> Iterator[Metric]:
    alive = GaugeMetricFamily("timeball_nodes", "Nodes that are alive.", labels=("kind",))
    renewal = GaugeMetricFamily(
        "timeball_renewal_age_seconds", "The longest that a living node has not renewed its lease.", labels=("kind",)
    )
    for kind in NodeKind:
        nodes = [node for node in overview.nodes if node.kind is kind]
        alive.add_metric((kind.value,), len(nodes))
        ages = [_age(node.renewed_at, overview.now.at) for node in nodes]
        renewal.add_metric((kind.value,), max(ages, default=0.0))
    slots = GaugeMetricFamily("timeball_worker_slots", "Slots of all living workers.", labels=("state",))
    total = sum(node.slots for node in overview.nodes)
    busy = sum(node.busy for node in overview.nodes)
    slots.add_metric(("busy",), busy)
    slots.add_metric(("free",), max(total - busy, 0))
    yield from (alive, renewal, slots, _of_brokers(overview))


def _of_brokers(overview: Overview) -> Metric:
    nodes = GaugeMetricFamily(
        "timeball_broker_nodes", "Living nodes by their broker and how it does.", labels=("broker", "state")
    )
    used = {node.broker for node in overview.nodes}
    for broker, state in product(sorted(used), BrokerState):
        found = [node for node in overview.nodes if (node.broker, node.broker_status.state) == (broker, state)]
        nodes.add_metric((broker, state.value), len(found))
    return nodes


def _of_the_database(found: dict[str, object]) -> Iterator[Metric]:
    oldest = found["oldest_transaction_seconds"]
    assert isinstance(oldest, float)
    yield GaugeMetricFamily(
        "timeball_database_oldest_transaction_seconds", "How long the oldest transaction has been open.", oldest
    )
    dead = GaugeMetricFamily("timeball_database_dead_rows", "Dead rows of a room.", labels=("room",))
    rooms, rows = found["rooms"], found["dead_rows"]
    assert isinstance(rooms, list)
    assert isinstance(rows, list)
    for room, number in zip(rooms, rows, strict=True):
        dead.add_metric((room,), number)
    yield dead


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max((now - since).total_seconds(), 0.0)
