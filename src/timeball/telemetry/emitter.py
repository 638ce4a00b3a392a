"""The `emit` of a process: passes every event to the log and to the counters, and never raises into the engine.

In the log an event is a name and fields, readable in a terminal, JSON elsewhere.

A listener that fails loses its own line or its own count. The other listeners get the failure as an event. A failure of the log itself is
also written to standard error: the first one, the second, the fourth, the eighth and so on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO
from uuid import UUID

from timeball.config.settings import Settings
from timeball.domain.values.ids import format_id
from timeball.telemetry.events import Emit, KeyRefused, OutputLost, ServiceFailed, TelemetryEvent, TelemetryFailed
from timeball.telemetry.output import QueuedOutput, queued

if TYPE_CHECKING:
    from timeball.telemetry.metrics import ProcessMetrics

__all__ = ["structlog"]


# structlog imports Rich and greenlet wherever they are installed. Rich is for tracebacks that Timeball does not print, and takes five of
# the forty megabytes of an idle worker; greenlet is for `structlog.threadlocal`, which structlog advises against, and takes one more.
# So both are hidden while structlog is imported, unless the program has imported them already.
_SYS_MODULES: dict[str, Any] = sys.modules
_HIDDEN_MODULES = [name for name in ("rich", "greenlet") if name not in _SYS_MODULES]

try:
    # A module that is None here cannot be imported, and structlog works without it.
    _SYS_MODULES.update(dict.fromkeys(_HIDDEN_MODULES))
    import structlog
finally:
    for _name in _HIDDEN_MODULES:
        del _SYS_MODULES[_name]

# Fields of many lines.
_TRACES = ("stack", "traceback")
_PREFIXES = {"execution_id": "exe", "job_id": "job", "incarnation": "nod"}


def logging_emit(log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> Emit:
    """An `emit` that writes log lines to *stream* (standard error, if none is given)."""
    stream = stream or sys.stderr
    least = getattr(logging, level.upper())
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=_processors(is_text=is_text, colors=stream.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(least),
    )

    def emit(event: TelemetryEvent) -> None:
        if event.log_level >= least and not _is_repetition(event):
            logger.log(event.log_level, event.log_name, **_fields(event))

    return emit


def _is_repetition(event: TelemetryEvent) -> bool:
    """Whether the event gets no line: of failures in a row only the first is logged, the second, the fourth, the eighth and so on."""
    if isinstance(event, KeyRefused):
        return not event.count
    return isinstance(event, ServiceFailed | TelemetryFailed) and event.failures.bit_count() > 1


def _processors(*, is_text: bool, colors: bool) -> list[Any]:
    shared: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    if is_text:
        return [_quote, *shared, structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=22)]
    return [*shared, structlog.processors.JSONRenderer()]


def _quote(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show text that is invisible, or would move the cursor of a terminal, as Python writes it; stacks stand below their line."""
    traces = [fields.pop(name) for name in _TRACES if name in fields]
    shown = {name: _Quoted(value) if _is_unseen(value) else value for name, value in fields.items()}
    if traces:
        # structlog puts the text of this name below the line, and accepts only text.
        shown["stack"] = "\n".join(f"    {_visible(line)}" for trace in traces for line in trace.splitlines())
    return shown


def _visible(line: str) -> str:
    return line if line.isprintable() else repr(line)[1:-1]


def _is_unseen(value: Any) -> bool:
    return isinstance(value, str) and not (value and value.isprintable())


class _Quoted:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _fields(event: TelemetryEvent) -> dict[str, Any]:
    pairs = ((f.name, getattr(event, f.name)) for f in fields(event))
    return {name: _shown(name, value) for name, value in pairs if value is not None}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, UUID):
        return format_id(_PREFIXES.get(name, "id"), value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds() * 1000:.1f} ms"
    return value


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
