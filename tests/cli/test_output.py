"""Tables for people, plain lines for pipes, documents for programs."""

from __future__ import annotations

import io
import json
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from timeball.cli.errors import Declined, error_lines, exit_code
from timeball.cli.output import Column, ColumnKind, OutputFormat, Printer, TimeStyle, format_duration, format_instant
from timeball.errors import (
    Conflict,
    ExecutionFailed,
    InvalidInput,
    NotAllowed,
    NotFound,
    SettingsError,
    StoreUnavailable,
    TimeballError,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
ROWS = [
    {"name": "nightly", "state": "dead", "next_run_at": "2026-11-16T12:05:00Z", "tags": ["a", "b"], "duration": 1300.0},
    {"name": "a very long name " * 20, "state": "active", "next_run_at": None, "tags": [], "duration": None},
]
COLUMNS = [
    Column("name"),
    Column("state", kind=ColumnKind.STATE),
    Column("next run", "next_run_at", ColumnKind.INSTANT),
    Column("tags"),
    Column("took", "duration", ColumnKind.MILLISECONDS),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(output: OutputFormat | None = None, out: io.StringIO | None = None, **more: TimeStyle) -> str:
    out = out or io.StringIO()
    Printer(output, more.get("times"), out=out, err=io.StringIO(), now=lambda: NOW).rows(ROWS, COLUMNS)
    return out.getvalue()


def test_a_pipe_gets_plain_lines_and_nothing_is_cut_off() -> None:
    first, second = printed().splitlines()

    assert first.split("\t") == ["nightly", "dead", "2026-11-16T12:05:00Z", "a,b", "1300"]
    assert second.split("\t")[0] == ROWS[1]["name"]


def test_a_terminal_gets_a_table_with_relative_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    text = printed(out=Terminal())

    assert "NEXT RUN" in text
    assert "in 5m" in text
    assert "1.3 s" in text
    assert "\x1b[1;31mdead" in text


def test_a_narrow_terminal_gets_every_row_on_two_lines_and_no_word_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")

    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(out=Terminal())).splitlines()

    assert lines[:2] == ["nightly  dead", "    next run in 5m · tags a,b · took 1.3 s"]
    assert (lines[2].endswith("  active"), len(lines)) == (True, 3)


def test_no_color_means_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    assert "[1;31m" not in printed(out=Terminal())


def test_a_table_that_is_asked_for_in_a_pipe_is_not_cut_off() -> None:
    assert str(ROWS[1]["name"]).strip() in printed(OutputFormat.TABLE)


def test_documents_are_for_programs() -> None:
    assert json.loads(printed(OutputFormat.JSON)) == ROWS
    assert [json.loads(line) for line in printed(OutputFormat.JSONL).splitlines()] == ROWS
    assert printed(OutputFormat.CSV).splitlines()[:2] == [
        "name,state,next_run,tags,took",
        'nightly,dead,2026-11-16T12:05:00Z,"a,b",1300',
    ]


def test_a_spreadsheet_runs_no_cell() -> None:
    out = io.StringIO()
    cells = ("=1+1", "-5", "＝1", "＋1", "－x", "＠x", "\nx")
    Printer(OutputFormat.CSV, out=out).rows([{"a": cell} for cell in cells], [Column("a")])

    assert out.getvalue() == "a\n'=1+1\n-5\n'＝1\n'＋1\n'－x\n'＠x\n\"'\nx\"\n"


def test_a_hostile_name_does_not_reach_the_terminal() -> None:
    out = io.StringIO()
    Printer(out=out).rows([{"a": "x\x1b[2Jy\nz\tw"}], [Column("a")])

    assert out.getvalue() == "x\ufffd[2Jy z w\n"


def test_a_hostile_text_does_not_move_the_cursor_anywhere_else_either() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07two\nlines\u202e"
    out, err = Terminal(), Terminal()
    printer = Printer(out=out, err=err)

    printer.line(hostile)
    printer.styled(hostile, "none")
    printer.details({"description": hostile}, [Column("description")])
    printer.say(hostile)

    shown = out.getvalue() + err.getvalue()
    assert "[2J" in shown
    assert shown.count("lines") == 4
    assert [part for part in ("\x1b[2J", "\x1b]", "\x07", "\u202e") if part in shown] == []
    # A pipe gets data as it is, and what is for people as harmless as on a terminal.
    pipe = io.StringIO()
    Printer(out=pipe).words(hostile)
    Printer(out=pipe).styled(hostile, "none")
    assert pipe.getvalue() == "�[2J�]0;owned�two lines�\n�[2J�]0;owned�two\nlines�\n"
    pipe = io.StringIO()
    Printer(out=pipe).line(hostile)
    assert pipe.getvalue() == hostile + "\n"


def test_an_empty_list_is_told_to_people_and_empty_for_programs() -> None:
    for output, out_text, err_text in (
        (None, "", "no jobs\n"),
        (OutputFormat.JSON, "[]\n", ""),
        (OutputFormat.CSV, "name\n", ""),
        (OutputFormat.JSONL, "", ""),
    ):
        out, err = io.StringIO(), io.StringIO()
        Printer(output, out=out, err=err).rows([], [Column("name")], empty="no jobs")
        assert (out.getvalue(), err.getvalue()) == (out_text, err_text)


@pytest.mark.parametrize(
    ("style", "distance", "words"),
    [
        ("relative", timedelta(minutes=5), "in 5m"),
        ("relative", timedelta(seconds=-75), "1m 15s ago"),
        ("relative", timedelta(milliseconds=300), "now"),
        ("relative", timedelta(days=2, minutes=3), "in 2d"),
        ("utc", timedelta(milliseconds=4), "2026-11-16T12:00:00.004Z"),
        ("utc", timedelta(days=400), "2027-12-21T12:00:00Z"),
    ],
)
def test_instants_in_each_style(style: str, distance: timedelta, words: str) -> None:
    assert format_instant(NOW + distance, style, NOW) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"), [(4.2, "4.2 ms"), (999, "999 ms"), (1300, "1.3 s"), (125_000, "2m 5s")]
)
def test_durations(milliseconds: float, words: str) -> None:
    assert format_duration(milliseconds) == words


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("gone"), 1),
        (InvalidInput("bad"), 2),
        (SettingsError(["bad"]), 2),
        (NotFound("job", "x"), 3),
        (NotAllowed("no"), 4),
        (Conflict("taken"), 5),
        (ExecutionFailed("exe_1", "dead", None), 6),
    ],
)
def test_every_error_has_three_lines_and_its_exit_code(error: TimeballError, code: int) -> None:
    what, why, advice = error_lines(error)

    assert exit_code(error) == code
    assert what == f"timeball: {error}"
    assert error.code in why
    assert advice.strip()


def test_a_hint_is_the_advice() -> None:
    assert list(error_lines(Conflict("taken", hint="choose another name")))[2] == "  choose another name"


def test_without_anybody_to_ask_only_yes_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    printer = Printer(err=io.StringIO())
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    printer.confirm("Delete?", yes=True)
    with pytest.raises(InvalidInput, match="cannot ask without a terminal"):
        printer.confirm("Delete?", yes=False)


@pytest.mark.parametrize(("answer", "does_it"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False)])
def test_somebody_who_is_asked_must_say_yes(answer: str, does_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    printer = Printer(err=io.StringIO())

    if does_it:
        printer.confirm("Delete?", yes=False)
    else:
        with pytest.raises(Declined):
            printer.confirm("Delete?", yes=False)


def test_progress_without_a_terminal_is_one_line() -> None:
    err = io.StringIO()
    with Printer(err=err).progress("imported", 3) as advance:
        advance(2)
        advance(1)

    assert err.getvalue() == "imported: 3 done\n"
