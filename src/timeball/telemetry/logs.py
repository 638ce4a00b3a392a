"""Events become log lines: a name and fields, readable in a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, TextIO
from uuid import UUID

from timeball.domain.events import (
    AttemptFailed,
    BrokerLost,
    BrokerSilent,
    BrokerWorks,
    Draining,
    Emit,
    Event,
    HistoryTrimmed,
    Hoisted,
    ListenerChanged,
    LoopBlocked,
    NodeBuried,
    NodeLost,
    NodeStarted,
    NodeStopped,
    OccurrencesSkipped,
    OutcomeRefused,
    Reaped,
    RecordsForgotten,
    RetriesHeldBack,
    ScheduleUndeclared,
    ServiceFailed,
    ServiceRecovered,
    SettingUnknown,
    ShardsChanged,
    StraysTakenIn,
    SucceededInBatch,
    TicketsPublished,
    TicketsUsed,
)
from timeball.domain.ids import show
from timeball.telemetry.log_lines import json_line, text_line

_LEVELS: dict[type[Event], tuple[int, str]] = {
    NodeStarted: (logging.INFO, "node.started"),
    NodeStopped: (logging.INFO, "node.stopped"),
    NodeLost: (logging.ERROR, "node.lost"),
    NodeBuried: (logging.WARNING, "node.buried"),
    ShardsChanged: (logging.INFO, "shards.changed"),
    Hoisted: (logging.DEBUG, "executions.hoisted"),
    OccurrencesSkipped: (logging.INFO, "occurrences.skipped"),
    SucceededInBatch: (logging.INFO, "executions.succeeded"),
    AttemptFailed: (logging.WARNING, "attempt.failed"),
    RetriesHeldBack: (logging.WARNING, "retries.held_back"),
    OutcomeRefused: (logging.WARNING, "outcome.refused"),
    Reaped: (logging.WARNING, "executions.reaped"),
    StraysTakenIn: (logging.WARNING, "strays.taken_in"),
    ServiceFailed: (logging.ERROR, "service.failed"),
    ServiceRecovered: (logging.INFO, "service.recovered"),
    ListenerChanged: (logging.INFO, "listener.changed"),
    LoopBlocked: (logging.WARNING, "loop.blocked"),
    HistoryTrimmed: (logging.INFO, "history.trimmed"),
    RecordsForgotten: (logging.INFO, "records.forgotten"),
    ScheduleUndeclared: (logging.WARNING, "schedule.undeclared"),
    SettingUnknown: (logging.WARNING, "setting.unknown"),
    Draining: (logging.INFO, "worker.draining"),
    BrokerLost: (logging.WARNING, "broker.lost"),
    BrokerSilent: (logging.WARNING, "broker.silent"),
    BrokerWorks: (logging.INFO, "broker.works"),
    TicketsPublished: (logging.DEBUG, "tickets.published"),
    TicketsUsed: (logging.DEBUG, "tickets.used"),
}
_PREFIXES = {"execution_id": "exe", "job_id": "job", "incarnation": "nod"}


def logging_emit(log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> Emit:
    """An `emit` that writes log lines to *stream* (standard error, if none is given); from any thread."""
    stream = stream or sys.stderr
    least = getattr(logging, level.upper())
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    line = partial(text_line, has_colors=stream.isatty()) if is_text else json_line
    turn = Lock()

    def emit(event: Event) -> None:
        number, name = _LEVELS[type(event)]
        if number < least:
            return
        written = line(datetime.now(UTC), logging.getLevelName(number).lower(), name, _fields(event))
        with turn:
            stream.write(written)
            stream.flush()

    return emit


def _fields(event: Event) -> dict[str, Any]:
    found = ((f.name, getattr(event, f.name)) for f in fields(event))
    return {name: _shown(name, value) for name, value in found if value is not None}


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, UUID):
        return show(_PREFIXES.get(name, "id"), value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds() * 1000:.1f} ms"
    return value
