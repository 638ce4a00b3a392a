"""Log lines: a name and fields, for people and for programs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields
from datetime import timedelta
from threading import Thread
from typing import Any, get_type_hints
from uuid import UUID

import pytest

from timeball.domain.values.ids import ExecutionId, Incarnation, format_execution_id
from timeball.telemetry import events
from timeball.telemetry.emitter import logging_emit
from timeball.telemetry.events import (
    ExecutionsPromoted,
    LoopBlocked,
    NodeStarted,
    OutcomeRefused,
    ServiceFailed,
    ShardsChanged,
    TelemetryEvent,
    UnknownSetting,
)

KINDS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, TelemetryEvent) and kind is not TelemetryEvent
]
NODE = NodeStarted(Incarnation(UUID(int=1)), "worker", "host/17")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# One of each, in the fields that can have it; the texts are as unpleasant as they come.
TEXT = 'say "hi" to\n\x1b[2J\udc80 a=b'
VALUES: dict[Any, Any] = {
    str: TEXT,
    str | None: TEXT,
    int: 8,
    int | None: 8,
    bool: True,
    timedelta: timedelta(milliseconds=1500),
    timedelta | None: timedelta(milliseconds=1500),
    tuple[float, ...]: (0.25, 3.5),
    UUID: UUID(int=1),
}


def test_every_event_has_a_log_name_of_its_own() -> None:
    names = [kind.log_name for kind in KINDS]

    assert len(names) > 30
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", name) for name in names)


def filled(kind: type[Any]) -> Any:
    """An event of this kind with a value in every field."""
    hints = get_type_hints(kind)
    return kind(
        **{field.name: VALUES[getattr(hints[field.name], "__supertype__", hints[field.name])] for field in fields(kind)}
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["a terminal", "a pipe"])
@pytest.mark.parametrize("log_format", ["auto", "text", "json"])
def test_every_event_can_be_told_in_every_format(log_format: str, stream: type[io.StringIO], kind: type[Any]) -> None:
    told = stream()
    is_text = log_format == "text" or (log_format == "auto" and stream is Terminal)

    logging_emit(log_format, "debug", told)(filled(kind))

    text = told.getvalue()
    if is_text:
        plain = re.sub(r"\x1b\[\d+m", "", text)
        assert all(line.isprintable() for line in plain.splitlines())
        first, *below = plain.splitlines()
        names = {field.name for field in fields(kind)}
        traces = names & {"stack", "traceback"}
        assert all(f"{name}=" in first for name in names - traces)
        assert all(line.startswith("    ") for line in below)
        assert bool(below) == bool(traces)
    else:
        assert json.loads(text).keys() >= {field.name for field in fields(kind)}


def test_a_stack_stands_below_its_line_in_a_terminal() -> None:
    stream = Terminal()

    logging_emit("auto", stream=stream)(LoopBlocked(timedelta(seconds=3), "File a.py\n  time.sleep(3)\n\x1b[2J"))

    first, *below = re.sub(r"\x1b\[\d+m", "", stream.getvalue()).splitlines()
    assert first.endswith("loop.blocked           blocked_for='3000.0 ms'")
    assert below == ["    File a.py", "      time.sleep(3)", "    \\x1b[2J"]


def test_a_line_for_people() -> None:
    stream = io.StringIO()

    logging_emit("text", stream=stream)(NODE)

    stamp, rest = stream.getvalue().split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    assert (
        rest
        == "[info     ] node.started           incarnation=nod_00000000000000000000000001 kind=worker name=host/17\n"
    )


def test_a_line_for_programs() -> None:
    stream = io.StringIO()

    logging_emit("auto", stream=stream)(LoopBlocked(timedelta(milliseconds=1500), None))

    document = json.loads(stream.getvalue())
    assert document.pop("timestamp").endswith("Z")
    assert document == {"blocked_for": "1500.0 ms", "event": "loop.blocked", "level": "warning"}


@pytest.mark.parametrize("text", ["two words", "a=b", 'say "hi"', "it's", "", "\x1b[2J", "two\nlines", "\udc80"])
def test_no_text_can_pass_for_another_field_or_move_the_cursor(text: str) -> None:
    stream = io.StringIO()

    logging_emit("text", stream=stream)(UnknownSetting("TIMEBALL_X", text))

    assert f"advice={text!r} name=TIMEBALL_X\n" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_a_terminal_gets_colors_that_stand_for_words() -> None:
    stream = Terminal()

    logging_emit("auto", stream=stream)(UnknownSetting("TIMEBALL_X", "none"))

    assert "\x1b[33m" in stream.getvalue()
    assert "[warning  ] setting.unknown" in re.sub(r"\x1b\[\d+m", "", stream.getvalue())


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    emit = logging_emit("json", "info", stream)

    emit(ExecutionsPromoted(3, 0, 0))
    emit(ShardsChanged(1, 0, 1))

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["shards.changed"]


def test_a_stale_outcome_is_logged_by_that_name() -> None:
    """Fault 5."""
    stream, execution_id = io.StringIO(), ExecutionId(UUID(int=7))

    logging_emit("json", stream=stream)(OutcomeRefused(execution_id, "send", 2))

    told = json.loads(stream.getvalue())
    del told["timestamp"]
    shown = {"execution_id": format_execution_id(execution_id), "handler": "send", "fence": 2}
    assert told == {"event": "stale_outcome", "level": "warning", **shown}


def test_what_fails_for_long_is_told_seldom() -> None:
    stream = io.StringIO()
    emit = logging_emit("json", stream=stream)

    for failures in range(1, 3_600):
        emit(ServiceFailed("claimer", "no", timedelta(seconds=1), failures=failures))

    told = [json.loads(line)["failures"] for line in stream.getvalue().splitlines()]
    assert told == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def test_lines_of_several_threads_do_not_mix() -> None:
    stream = io.StringIO()
    emit = logging_emit("json", stream=stream)
    threads = [Thread(target=lambda: [emit(NODE) for _ in range(200)]) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["node.started"] * 800
