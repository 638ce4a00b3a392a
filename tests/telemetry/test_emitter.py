"""Emitting never raises into the engine: a listener that fails is counted and told of."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest

from timeball.telemetry.emitter import Emitter, logging_emit
from timeball.telemetry.events import ClockStepped, Emit, TelemetryEvent, TelemetryFailed, UnknownSetting
from timeball.telemetry.metrics import ProcessMetrics

STEP = ClockStepped(timedelta(seconds=1))


def fails(event: TelemetryEvent) -> None:
    raise TypeError(f"cannot take\n{type(event).__name__}")


def counted(metrics: ProcessMetrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(name)


def test_a_log_that_fails_harms_neither_the_engine_nor_the_counters(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = ProcessMetrics()
    emit = Emitter(fails, metrics.emit)

    for _ in range(5):
        emit(STEP)

    assert counted(metrics, "timeball_clock_steps_total") == 5
    assert counted(metrics, "timeball_telemetry_failures_total") == 5
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"timeball: the log failed on ClockStepped: TypeError: cannot take ClockStepped ({number} failures so far)"
        for number in (1, 2, 4)
    ]


def test_counters_that_fail_are_told_of_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    emit = Emitter(logging_emit("json", stream=stream), fails)

    for _ in range(3):
        emit(UnknownSetting("TIMEBALL_X", "none"))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["setting.unknown", "telemetry.failed"] * 2 + ["setting.unknown"]
    assert lines[1]["event_name"] == "UnknownSetting"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("listeners", [(fails,), (fails, fails)], ids=["the log", "everything"])
def test_nothing_is_raised_even_if_nothing_can_be_told(
    listeners: tuple[Emit, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stderr", Full())

    Emitter(*listeners)(STEP)


def test_every_event_is_counted_by_the_listeners_that_work() -> None:
    heard: list[TelemetryEvent] = []

    Emitter(fails, heard.append)(STEP)

    assert heard == [TelemetryFailed("ClockStepped", "TypeError: cannot take\nClockStepped", 1), STEP]
