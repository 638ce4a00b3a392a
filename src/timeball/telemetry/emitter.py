"""The `emit` of a process: passes every event to the log and to the counters, and never raises into the engine.

A listener that fails loses its own line or its own count. The other listeners get the failure as an event. A failure of the log itself is
also written to standard error: the first one, the second, the fourth, the eighth and so on.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from timeball.config.settings import Settings
from timeball.telemetry.events import Emit, OutputLost, TelemetryEvent, TelemetryFailed
from timeball.telemetry.logs import logging_emit
from timeball.telemetry.output import QueuedOutput, queued

if TYPE_CHECKING:
    from timeball.telemetry.metrics import ProcessMetrics


class Emitter:
    """Passes every event to a log and to other listeners; safe to call from any thread."""

    def __init__(self, log: Emit, *others: Emit) -> None:
        self._listeners = (log, *others)
        self._failures = 0

    def __call__(self, event: TelemetryEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                self._report(listener, event, error)

    def _report(self, failed: Emit, event: TelemetryEvent, error: Exception) -> None:
        self._failures += 1
        failure = TelemetryFailed(type(event).__name__, f"{type(error).__name__}: {error}", self._failures)
        log = self._listeners[0]
        is_logged = False
        for listener in self._listeners:
            if listener is not failed:
                with suppress(Exception):
                    listener(failure)
                    is_logged = is_logged or listener is log
        if not is_logged and self._failures.bit_count() == 1:
            _report_to_stderr(failure)


def _report_to_stderr(failure: TelemetryFailed) -> None:
    with suppress(Exception):
        text = f"timeball: the log failed on {failure.event_name}: {failure.error} ({failure.failures} failures so far)"
        sys.stderr.write(text.encode("ascii", "backslashreplace").decode().replace("\n", " ") + "\n")
        sys.stderr.flush()


def make_emit(settings: Settings, metrics: ProcessMetrics | None = None) -> Emit:
    """The `emit` of a process with these settings: for its log on standard error, which never blocks, and for its counters."""
    stream, output = queued(sys.stderr, "stderr")
    log = logging_emit(settings.log_format, settings.log_level, stream)
    emit = Emitter(log, *([] if metrics is None else [metrics.emit]))
    for each in {output, getattr(sys.stdout, "buffer", None)}:
        if isinstance(each, QueuedOutput):
            on_lost = None if metrics is None else partial(metrics.count_lost_lines, each.name)
            each.report_losses(partial(_emit_loss, emit, each.name), on_lost)
    return emit


def _emit_loss(emit: Emit, stream: str, lines: int, reason: str) -> None:
    emit(OutputLost(stream, lines, reason))
