"""TIMEBALL_METRICS_PORT: a worker or scheduler alone lets Prometheus read it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from timeball.cli.processes import _metrics_server
from timeball.config.settings import Settings, load_settings
from timeball.errors import InvalidInput
from timeball.telemetry.events import ExecutionsRescued
from timeball.telemetry.metrics import ProcessMetrics


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port of this machine that is in use."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def settings(taken: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TIMEBALL_METRICS_PORT", str(taken.getsockname()[1]))
    return load_settings()


def test_it_is_read_as_long_as_the_process_runs(taken: socket.socket, settings: Settings) -> None:
    taken.close()
    metrics = ProcessMetrics()
    metrics.emit(ExecutionsRescued(lost=3, timed_out=0))
    address = f"http://127.0.0.1:{settings.metrics_port}/metrics"

    with _metrics_server(metrics, settings), urlopen(address, timeout=30) as answer:
        text = answer.read().decode()

    assert 'timeball_attempts_rescued_total{outcome="lost"} 3.0' in text
    with pytest.raises(URLError):
        urlopen(address, timeout=30)


def test_a_port_that_is_taken_is_said(taken: socket.socket, settings: Settings) -> None:
    taken.listen()

    with (
        pytest.raises(InvalidInput, match="metrics cannot be served on") as refused,
        _metrics_server(ProcessMetrics(), settings),
    ):
        pass

    assert refused.value.hint is not None
    assert "TIMEBALL_METRICS_PORT" in refused.value.hint


def test_without_a_port_nothing_listens() -> None:
    assert load_settings().metrics_port is None
