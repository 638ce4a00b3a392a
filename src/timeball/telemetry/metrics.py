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
    Event,
    ExecutionsPromoted,
    ExecutionsRescued,
    KeyRefused,
    ListenerChanged,
    LoggedIn,
    LoopBlocked,
    NodeLost,
    OccurrencesRecorded,
    OccurrencesSkipped,
    OutcomeRefused,
    ProcessRestarted,
    RetriesHeldBack,
    ServiceFailed,
    ShardsChanged,
    TelemetryFailed,
    TicketsPublished,
    TicketsUsed,
)

# A second is what is promised, twelve if the scheduler has just died.
_LATENESS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 12, 30, 60, 300, 3600)


class MetricsSource(Protocol):
    """What a process has counted, for Prometheus."""

    def collect(self) -> Iterable[Metric]: ...


class ProcessMetrics:
    """The counters of one process; hand `emit` every event."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stale = self._counter("stale_outcomes", "Outcomes that were refused because their claim was gone.")
        self._reaped = self._counter("attempts_reaped", "Attempts that the reaper ended.", "outcome")
        self._recorded = self._counter("occurrences_recorded", "Occurrences that were recorded, run or skipped.")
        self._recorded_late = Histogram(
            "timeball_record_lateness_seconds",
            "How long after its instant an occurrence was recorded, of those that were late.",
            buckets=_LATENESS,
            registry=self.registry,
        )
        self._skipped = self._counter("occurrences_skipped", "Occurrences that were recorded as skipped.", "reason")
        self._promoted = self._counter("executions_promoted", "Executions that were moved to ready.")
        self._refused = self._counter("promotions_refused", "Promotions that somebody else, or an edit, was ahead of.")
        self._failures = self._counter("service_failures", "Errors that a loop met and went on after.", "service")
        self._telemetry_failures = self._counter(
            "telemetry_failures", "Events that the log or the counters could not take."
        )
        self._lines_lost = self._counter(
            "output_lines_lost", "Lines that could not be written to standard output or standard error.", "stream"
        )
        self._held_back = self._counter("retries_held_back", "Retries that the budget of their target had no room for.")
        self._clock_steps = self._counter("clock_steps", "Times that the database's clock was set.")
        self._blocked = self._counter("loop_blocked_seconds", "How long something kept the event loop from turning.")
        self._restarts = self._counter("process_restarts", "Processes that died and were started again.", "process")
        self._lives_lost = self._counter("lives_lost", "Lives of nodes that ended without their wish.", "kind")
        self._listening = Gauge("timeball_listening", "Whether hints reach this process.", registry=self.registry)
        self._published = self._counter("tickets_published", "Tickets that went to the broker.", "kind")
        self._received = self._counter("tickets_received", "Tickets that came from the broker.")
        self._claimed = self._counter("tickets_claimed", "Tickets whose execution was there to be claimed.")
        self._broker = Gauge(
            "timeball_broker_works", "Whether the broker carries due work.", ["broker"], registry=self.registry
        )
        self._shards = Gauge("timeball_shards_owned", "Shards that this scheduler owns.", registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"timeball_{name}", text, labels, registry=self.registry)

    def emit(self, event: Event) -> None:
        """Count an event."""
        match event:
            case OutcomeRefused():
                self._stale.inc()
            case ExecutionsRescued(lost=lost, timed_out=timed_out):
                self._reaped.labels("lost").inc(lost)
                self._reaped.labels("timed_out").inc(timed_out)
            case OccurrencesRecorded(count=count, late=late):
                self._recorded.inc(count)
                for seconds in late:
                    self._recorded_late.observe(seconds)
            case OccurrencesSkipped(count=count, reason=reason):
                self._skipped.labels(reason).inc(count or 1)
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
                self._lives_lost.labels(kind).inc()
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
        self._logins = Counter("timeball_logins", "Sessions of the dashboard that were begun.", registry=self._registry)
        self._keys_refused = Counter(
            "timeball_keys_refused", "Requests and logins without a valid key.", registry=self._registry
        )

    def emit(self, event: Event) -> None:
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
        # Otherwise the port goes on taking connections that nobody answers.
        server.server_close()

    return end
