"""Log lines: a name and fields, for people and for programs."""

from __future__ import annotations

import io
import json
import re
from datetime import timedelta
from threading import Thread
from uuid import UUID

import pytest

from timeball.domain.events import (
    Hoisted,
    LoopBlocked,
    NodeStarted,
    OutcomeRefused,
    ServiceFailed,
    SettingUnknown,
    ShardsChanged,
)
from timeball.domain.ids import ExecutionId, Incarnation, show_execution
from timeball.telemetry.logs import logging_emit

NODE = NodeStarted(Incarnation(UUID(int=1)), "worker", "host/17")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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

    logging_emit("text", stream=stream)(SettingUnknown("TIMEBALL_X", text))

    assert f"advice={text!r} name=TIMEBALL_X\n" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_a_terminal_gets_colors_that_stand_for_words() -> None:
    stream = Terminal()

    logging_emit("auto", stream=stream)(SettingUnknown("TIMEBALL_X", "none"))

    assert "\x1b[33m" in stream.getvalue()
    assert "[warning  ] setting.unknown" in re.sub(r"\x1b\[\d+m", "", stream.getvalue())


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    emit = logging_emit("json", "info", stream)

    emit(Hoisted(3, 0, 0))
    emit(ShardsChanged(1, 0, 1))

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["shards.changed"]


def test_a_stale_outcome_is_logged_by_that_name() -> None:
    """Fault 5."""
    stream, execution_id = io.StringIO(), ExecutionId(UUID(int=7))

    logging_emit("json", stream=stream)(OutcomeRefused(execution_id, "send", 2))

    told = json.loads(stream.getvalue())
    del told["timestamp"]
    shown = {"execution_id": show_execution(execution_id), "handler": "send", "fence": 2}
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
