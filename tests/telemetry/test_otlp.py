"""Metrics that are pushed by OTLP: to a collector on loopback, which decodes them as any collector does."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult

from timeball.telemetry.events import (
    ExecutionsExpired,
    ExecutionsRescued,
    ListenerChanged,
    OccurrencesRecorded,
    TelemetryFailed,
)
from timeball.telemetry.metrics import ProcessMetrics
from timeball.telemetry.otlp import OtlpPusher, pushed_metrics

AN_HOUR = timedelta(hours=1)


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.status = 200
        kept = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                kept.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(kept.status)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1/metrics"

    def metrics(self) -> dict[str, Any]:
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr("timeball.telemetry.otlp._STOP_SECONDS", 60)
    made = Collector()
    yield made
    made.close()


def test_what_a_process_counts_is_sent_at_its_end_with_the_names_of_prometheus(collector: Collector) -> None:
    metrics, heard = ProcessMetrics(), []
    with pushed_metrics(metrics, collector.url, AN_HOUR, heard.append):
        metrics.emit(ExecutionsExpired(3))
        metrics.emit(ExecutionsRescued(lost=2, timed_out=1))
        metrics.emit(ListenerChanged(is_listening=True))
        metrics.emit(OccurrencesRecorded(3, (0.001, 0.2, 1e9)))

    sent = collector.metrics()
    assert heard == []
    assert [point.as_double for point in sent["timeball_executions_expired_total"].sum.data_points] == [3.0]
    rescued = sent["timeball_attempts_rescued_total"].sum
    assert rescued.is_monotonic
    assert {point.attributes[0].value.string_value: point.as_double for point in rescued.data_points} == {
        "lost": 2.0,
        "timed_out": 1.0,
    }
    assert [point.as_double for point in sent["timeball_listening"].gauge.data_points] == [1.0]
    (late,) = [metric for metric in sent.values() if metric.HasField("histogram")]
    (point,) = late.histogram.data_points
    assert (point.count, sum(point.bucket_counts), point.bucket_counts[-1]) == (3, 3, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert not point.HasField("min")
    attributes = {
        pair.key: pair.value.string_value for pair in collector.requests[-1].resource_metrics[0].resource.attributes
    }
    assert attributes["service.name"] == "timeball"


@pytest.mark.parametrize("result", [MetricExportResult.FAILURE, ConnectionError("no collector")])
def test_a_collector_that_takes_nothing_is_told_of_and_harms_nothing(result: Any) -> None:
    class Exporter:
        def export(self, _data: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    heard: list[Any] = []
    pusher = OtlpPusher(ProcessMetrics(), Exporter(), AN_HOUR, heard.append)  # type: ignore[arg-type]

    pusher.push()
    pusher.push()

    assert [(type(event), event.event_name, event.failures) for event in heard] == [
        (TelemetryFailed, "otlp_metrics", 1),
        (TelemetryFailed, "otlp_metrics", 2),
    ]


def test_a_collector_that_blocks_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Exporter:
        def export(self, _data: Any) -> Any:
            release.wait()
            return MetricExportResult.SUCCESS

    monkeypatch.setattr("timeball.telemetry.otlp._STOP_SECONDS", 0.01)
    pusher = OtlpPusher(ProcessMetrics(), Exporter(), AN_HOUR, lambda _: None)  # type: ignore[arg-type]
    pusher.start()

    pusher.stop()

    assert pusher._thread.is_alive()
    release.set()
    pusher._thread.join(60)


def test_metrics_are_sent_in_each_interval(collector: Collector) -> None:
    arrived = threading.Event()
    append = collector.requests.append

    class Requests(list[Any]):
        def append(self, request: Any) -> None:
            append(request)
            super().append(request)
            if len(self) == 2:
                arrived.set()

    collector.requests = Requests()
    with pushed_metrics(ProcessMetrics(), collector.url, timedelta(milliseconds=10), lambda _: None):
        assert arrived.wait(60)
