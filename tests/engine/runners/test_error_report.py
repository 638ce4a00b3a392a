"""What went wrong, told for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.domain.execution import MAX_MESSAGE, MAX_TRACEBACK, ErrorInfo
from timeball.engine.runners.outcome import describe_error, describe_interruption
from timeball.handlers.registry import invoke


class Mailer:
    def deliver(self, address: str) -> None:
        raise NoSuchUser(address)


class NoSuchUser(Exception):
    pass


def report_of(act: Callable[[], object]) -> ErrorInfo:
    try:
        act()
    except BaseException as error:
        return describe_error(error)
    raise AssertionError("nothing was raised")


def imported(folder: Path, source: str, name: str = "mail_app") -> ModuleType:
    """A module of a user's, from a file."""
    file = folder / f"{name}.py"
    file.write_text(source)
    module = ModuleType(name)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def test_type_message_and_place_are_told() -> None:
    report = report_of(lambda: Mailer().deliver("a@b.co"))

    assert report.type == "tests.engine.runners.test_error_report.NoSuchUser"
    assert report.message == "a@b.co"
    assert report.top_frame is not None
    assert report.top_frame.startswith("tests/engine/runners/test_error_report.py:")
    assert report.top_frame.endswith(" in Mailer.deliver")
    assert report.traceback is not None
    assert "raise NoSuchUser(address)" in report.traceback


def test_the_frame_to_look_at_is_the_users_and_not_the_librarys() -> None:
    report = report_of(lambda: json.loads("{"))

    assert report.type == "json.decoder.JSONDecodeError"
    assert report.top_frame is not None
    assert report.top_frame.startswith("tests/engine/runners/test_error_report.py:")
    assert report.traceback is not None
    assert "decoder.py" in report.traceback


def test_our_own_frames_are_left_out() -> None:
    from timeball.handlers.registry import make_handler

    handler = make_handler(Mailer().deliver, name="deliver")

    report = report_of(lambda: invoke(handler, '{"address": "x"}'))

    assert report.traceback is not None
    assert "timeball/runners" not in report.traceback
    assert "timeball/handlers/binding" not in report.traceback
    assert "in deliver" in report.traceback


def test_causes_are_told_too() -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    report = report_of(fail)

    assert report.traceback is not None
    assert "KeyError: 'inner'" in report.traceback
    assert "direct cause" in report.traceback


def test_a_fingerprint_ignores_data_and_line_numbers_but_not_kind_and_place(tmp_path: Path) -> None:
    source = "def deliver(n): raise ValueError(f'no {n}')\ndef other(n): raise ValueError(f'no {n}')\n"
    before = imported(tmp_path, source)
    after = imported(tmp_path, "# a comment\n\n\n" + source)
    elsewhere = imported(tmp_path, source, name="other_app")

    first = report_of(lambda: before.deliver(1)).fingerprint

    assert first == report_of(lambda: before.deliver(2)).fingerprint
    assert first == report_of(lambda: after.deliver(3)).fingerprint
    assert first != report_of(lambda: before.other(1)).fingerprint
    assert first != report_of(lambda: elsewhere.deliver(1)).fingerprint
    assert first != report_of(lambda: before.deliver()).fingerprint


def test_a_fingerprint_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path, "def deliver(n): raise ValueError\n")
    here = report_of(lambda: module.deliver(1))

    monkeypatch.chdir(tmp_path)
    there = report_of(lambda: module.deliver(1))

    assert here.fingerprint == there.fingerprint
    assert there.top_frame == "mail_app.py:1 in deliver"


def test_a_working_directory_that_is_gone_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert report_of(lambda: Mailer().deliver("x")).top_frame is not None


def test_long_texts_lose_their_middle() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("a" * 10**6)
        [deep, shallow][n % 2](n - 1)

    def shallow(n: int) -> None:
        deep(n)

    report = report_of(lambda: deep(400))

    assert MAX_MESSAGE - 10 <= len(report.message) <= MAX_MESSAGE
    assert report.traceback is not None
    assert MAX_TRACEBACK - 10 <= len(report.traceback) <= MAX_TRACEBACK
    assert report.traceback.startswith("Traceback")


def test_an_error_that_cannot_be_told_is_told_all_the_same() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        @property
        def __notes__(self) -> list[str]:  # type: ignore[override]
            raise RuntimeError

    report = report_of(lambda: (_ for _ in ()).throw(Hostile()))

    assert report.type.endswith("Hostile")
    assert "cannot be had" in report.message


@given(st.text())
def test_any_message_can_be_stored(message: str) -> None:
    report = report_of(lambda: Mailer().deliver(message))

    for text in (report.message, report.traceback, report.top_frame):
        assert text is not None
        assert "\0" not in text
        text.encode()


def test_an_interruption_says_where_the_thread_was() -> None:
    report = describe_interruption("TimedOut", "too long", sys._getframe())

    assert report.top_frame is not None
    assert report.top_frame.endswith("in test_an_interruption_says_where_the_thread_was")
    assert report.traceback is not None
    assert "sys._getframe()" in report.traceback
    assert describe_interruption("TimedOut", "too long", None).traceback is None


def test_no_report_shows_where_a_machine_keeps_its_files() -> None:
    report = report_of(lambda: Mailer().deliver("x"))

    assert report.top_frame is not None
    assert os.getcwd() not in report.top_frame
