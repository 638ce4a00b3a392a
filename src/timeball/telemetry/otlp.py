"""The metrics of a worker or scheduler process, pushed by OTLP to a collector of OpenTelemetry.

The counters are those that Prometheus reads (`telemetry.metrics`), with the same names, so a rule holds for both. They are sent from a
thread: a collector that is away, blocks or refuses costs the numbers of one interval, which the next one has, too.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import time_ns
from typing import TYPE_CHECKING, Any

from timeball.config.environment import explain_missing_extra
from timeball.telemetry.events import Emit, TelemetryFailed
from timeball.version import __version__

with explain_missing_extra():
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        MetricExporter,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

    from timeball.telemetry.metrics import MetricsSource

_STOP_SECONDS = 2.0


class OtlpPusher:
    """Sends what a process has counted, once in each interval and at its end."""

    def __init__(self, metrics: MetricsSource, exporter: MetricExporter, interval: timedelta, emit: Emit) -> None:
        self._metrics = metrics
        self._exporter = exporter
        self._interval = interval
        self._emit = emit
        self._began_at = time_ns()
        self._failures = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="timeball-otlp", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send once more, and wait for that for a bounded time."""
        self._is_over.set()
        self._thread.join(_STOP_SECONDS)

    def _serve(self) -> None:
        while not self._is_over.wait(self._interval.total_seconds()):
            self.push()
        self.push()

    def push(self) -> None:
        """Send what was counted so far."""
        try:
            data = metrics_data(self._metrics.collect(), self._began_at, time_ns())
            if self._exporter.export(data) is MetricExportResult.SUCCESS:
                return
            reason = "the collector has not taken them"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._failures += 1
        self._emit(TelemetryFailed("otlp_metrics", reason, self._failures))


@contextmanager
def pushed_metrics(metrics: MetricsSource, url: str, interval: timedelta, emit: Emit) -> Iterator[None]:
    """Send metrics to a collector until the block ends."""
    pusher = OtlpPusher(metrics, OTLPMetricExporter(endpoint=url), interval, emit)
    pusher.start()
    try:
        yield
    finally:
        pusher.stop()


def metrics_data(families: Any, began_at: int, now: int) -> MetricsData:
    """What Prometheus would read, in the words of OpenTelemetry."""
    metrics = [metric for family in families if (metric := _metric(family, began_at, now)) is not None]
    scope = ScopeMetrics(InstrumentationScope("timeball", __version__), metrics, "")
    return MetricsData([ResourceMetrics(_resource(), [scope], "")])


def _resource() -> Resource:
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "timeball"}
    return Resource.create({**named, "service.instance.id": f"{platform.node()}/{os.getpid()}"})


def _metric(family: Metric, began_at: int, now: int) -> OtlpMetric | None:
    make: Callable[[Sequence[Sample], int, int], Any] | None = _MAKERS.get(family.type)
    if make is None:
        return None
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return OtlpMetric(name, family.documentation, None, make(family.samples, began_at, now))


def _sum(samples: Sequence[Sample], began_at: int, now: int) -> Sum:
    points = [_number(sample, began_at, now) for sample in samples if sample.name.endswith("_total")]
    return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)


def _gauge(samples: Sequence[Sample], began_at: int, now: int) -> Gauge:
    return Gauge([_number(sample, began_at, now) for sample in samples])


def _number(sample: Sample, began_at: int, now: int) -> NumberDataPoint:
    return NumberDataPoint(dict(sample.labels), began_at, now, sample.value)


def _histogram(samples: Sequence[Sample], began_at: int, now: int) -> Histogram:
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        by_labels.setdefault(labels, []).append(sample)
    points = [_histogram_point(dict(labels), own, began_at, now) for labels, own in by_labels.items()]
    return Histogram(points, AggregationTemporality.CUMULATIVE)


def _histogram_point(labels: dict[str, str], samples: Sequence[Sample], began_at: int, now: int) -> HistogramDataPoint:
    # Prometheus counts what is at most a bound, OpenTelemetry what is between two.
    buckets = sorted((float(sample.labels["le"]), int(sample.value)) for sample in samples if "le" in sample.labels)
    counts = [
        count - before for (_, count), before in zip(buckets, [0, *(count for _, count in buckets)], strict=False)
    ]
    total = next((sample.value for sample in samples if sample.name.endswith("_sum")), 0.0)
    # The least and the greatest value are not known.
    unknown: Any = None
    bounds = [bound for bound, _ in buckets[:-1]]
    return HistogramDataPoint(
        labels, began_at, now, buckets[-1][1] if buckets else 0, total, counts, bounds, unknown, unknown
    )


_MAKERS: dict[str, Callable[[Sequence[Sample], int, int], Any]] = {
    "counter": _sum,
    "gauge": _gauge,
    "histogram": _histogram,
}
