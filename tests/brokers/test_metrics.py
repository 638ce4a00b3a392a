"""Whether the broker works, and what goes through it, is there for Prometheus."""

from __future__ import annotations

from prometheus_client import generate_latest

from timeball.telemetry.events import BrokerLost, BrokerRecovered, BrokerSilent, TicketsPublished, TicketsUsed
from timeball.telemetry.metrics import ProcessMetrics


def told(metrics: ProcessMetrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_tickets_are_counted() -> None:
    metrics = ProcessMetrics()

    metrics.emit(TicketsPublished(count=5, again=2))
    metrics.emit(TicketsUsed(received=4, claimed=3))

    found = told(metrics)
    assert found['timeball_tickets_published_total{kind="first"}'] == 3
    assert found['timeball_tickets_published_total{kind="again"}'] == 2
    assert (found["timeball_tickets_received_total"], found["timeball_tickets_claimed_total"]) == (4, 3)


def test_a_broker_that_is_down_or_silent_shows_as_zero() -> None:
    metrics, name = ProcessMetrics(), 'timeball_broker_works{broker="redis"}'
    shown = []

    for event in (
        BrokerRecovered("redis"),
        BrokerLost("redis", "refused"),
        BrokerRecovered("redis"),
        BrokerSilent("redis"),
    ):
        metrics.emit(event)
        shown.append(told(metrics)[name])

    assert shown == [1, 0, 1, 0]
