"""Events become the counters of this process, for Prometheus. What the database knows is counted there, not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from timeball.telemetry.events import (
    BrokerLost,
    BrokerRecovered,
    BrokerSilent,
    ClockStepped,
    ExecutionsExpired,
    ExecutionsPromoted,
    ExecutionsRescued,
    KeyRefused,
    ListenerChanged,
    LoggedIn,
    LoopBlocked,
    NodeLost,
    OccurrencesRecorded,
    OutcomeRefused,
    ProcessRestarted,
    RetriesHeldBack,
    ServiceFailed,
    ShardsChanged,
    TelemetryEvent,
    TelemetryFailed,
    TicketsPublished,
    TicketsUsed,
)

# One second is promised, and twelve if the scheduler has just died.
_LATENESS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 12, 30, 60, 300, 3600)


class MetricsSource(Protocol):
    """What a process has counted, for Prometheus."""

    def collect(self) -> Iterable[Metric]: ...


class ProcessMetrics:
    """The counters of one process; `emit` takes every event."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stale = self._counter("stale_outcomes", "Outcomes refused because another claim had taken their place.")
        self._rescued = self._counter(
            "attempts_rescued",
            "Attempts ended by the reaper, because their worker was lost or their deadline had passed.",
            "outcome",
        )
        self._expired = self._counter(
            "executions_expired", "Executions that had not begun in time, recorded as skipped by this process."
        )
        self._recorded = self._counter(
            "occurrences_recorded", "Occurrences of schedules recorded, to run or as skipped."
        )
        self._recorded_late = Histogram(
            "timeball_record_lateness_seconds",
            "How late occurrences were recorded, without those that were in time.",
            buckets=_LATENESS,
            registry=self.registry,
        )
        self._promoted = self._counter("executions_promoted", "Executions promoted from due to ready.")
        self._refused = self._counter(
            "promotions_refused", "Promotions refused because another scheduler or an edit came first."
        )
        self._failures = self._counter(
            "service_failures", "Errors of the loops of this process; each loop goes on after a pause.", "service"
        )
        self._telemetry_failures = self._counter("telemetry_failures", "Events that the log or the counters failed on.")
        self._lines_lost = self._counter(
            "output_lines_lost", "Lines that could not be written to standard output or standard error.", "stream"
        )
        self._held_back = self._counter(
            "retries_held_back", "Retries held back because the retry budget of their target was used up."
        )
        self._clock_steps = self._counter("clock_steps", "Steps of the database's clock.")
        self._blocked = self._counter("loop_blocked_seconds", "Seconds for which the event loop was blocked.")
        self._restarts = self._counter("process_restarts", "Processes that died and were started again.", "process")
        self._nodes_lost = self._counter("nodes_lost", "Nodes that lost their lease.", "kind")
        self._listening = Gauge(
            "timeball_listening",
            "Whether wake-ups from the database reach this process (1) or it polls (0).",
            registry=self.registry,
        )
        self._published = self._counter("tickets_published", "Tickets published to the broker.", "kind")
        self._received = self._counter("tickets_received", "Tickets received from the broker.")
        self._claimed = self._counter("tickets_claimed", "Tickets whose execution was claimed.")
        self._broker = Gauge(
            "timeball_broker_works",
            "Whether the broker carries tickets (1) or not (0).",
            ["broker"],
            registry=self.registry,
        )
        self._shards = Gauge("timeball_shards_owned", "Shards owned by this scheduler.", registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"timeball_{name}", text, labels, registry=self.registry)

    def emit(self, event: TelemetryEvent) -> None:
        """Count an event."""
        match event:
            case OutcomeRefused():
                self._stale.inc()
            case ExecutionsRescued(lost=lost, timed_out=timed_out):
                self._rescued.labels("lost").inc(lost)
                self._rescued.labels("timed_out").inc(timed_out)
            case ExecutionsExpired(count=count):
                self._expired.inc(count)
            case OccurrencesRecorded(count=count, late=late):
                self._recorded.inc(count)
                for seconds in late:
                    self._recorded_late.observe(seconds)
            case ExecutionsPromoted(runs=runs, refused=refused):
                self._promoted.inc(runs)
                self._refused.inc(refused)
            case ServiceFailed(service=service):
                self._failures.labels(service).inc()
            case TelemetryFailed():
                self._telemetry_failures.inc()
            case RetriesHeldBack(count=count):
                self._held_back.inc(count)
            case ClockStepped():
                self._clock_steps.inc()
            case LoopBlocked(blocked_for=span):
                self._blocked.inc(span.total_seconds())
            case ProcessRestarted(process=process):
                self._restarts.labels(process).inc()
            case NodeLost(kind=kind):
                self._nodes_lost.labels(kind).inc()
            case ListenerChanged(is_listening=is_listening):
                self._listening.set(is_listening)
            case ShardsChanged(owned=owned):
                self._shards.set(owned)
            case BrokerRecovered(broker=broker):
                self._broker.labels(broker).set(1)
            case BrokerLost(broker=broker) | BrokerSilent(broker=broker):
                self._broker.labels(broker).set(0)
            case TicketsPublished(count=count, again=again):
                self._published.labels("first").inc(count - again)
                self._published.labels("again").inc(again)
            case TicketsUsed(received=received, claimed=claimed):
                self._received.inc(received)
                self._claimed.inc(claimed)
            case _:
                return

    def count_lost_lines(self, stream: str, lines: int) -> None:
        """Count lines that could not be written, as they are lost: the event comes when writing works again."""
        self._lines_lost.labels(stream).inc(lines)

    def collect(self) -> Iterable[Metric]:
        """What was counted."""
        return self.registry.collect()

    def text(self) -> str:
        """The same as text, for another process."""
        return generate_latest(self.registry).decode()


class ServerMetrics:
    """The counters of API and dashboard; hand `emit` every event of theirs."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._logins = Counter("timeball_logins", "Sessions of the dashboard started.", registry=self._registry)
        self._keys_refused = Counter(
            "timeball_keys_refused", "Requests and logins without a valid key.", registry=self._registry
        )

    def emit(self, event: TelemetryEvent) -> None:
        """Count an event."""
        match event:
            case LoggedIn():
                self._logins.inc()
            case KeyRefused():
                self._keys_refused.inc()
            case _:
                return

    def collect(self) -> Iterable[Metric]:
        """What was counted."""
        return self._registry.collect()


class CombinedMetrics:
    """What several have counted, none of them the same."""

    def __init__(self, *counts: MetricsSource) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        return [metric for each in self._counts for metric in each.collect()]


def serve(metrics: ProcessMetrics, port: int, host: str) -> Callable[[], Any]:
    """Let Prometheus read a process that has no API; returns how to end it."""
    from prometheus_client import start_http_server

    server, _thread = start_http_server(port, host, metrics.registry)

    def end() -> None:
        server.shutdown()
        # Otherwise the port goes on accepting connections without answering them.
        server.server_close()

    return end
