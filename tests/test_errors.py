from __future__ import annotations

import pickle
import traceback

import pytest

from timeball.errors import Conflict, InvalidInput, ResultTimeout, TimeballError


def last_lines(error: TimeballError) -> list[str]:
    """What a program ends with that does not catch the error."""
    return "".join(traceback.format_exception_only(error)).splitlines()


@pytest.mark.parametrize(
    "error",
    [
        Conflict("there is already a job named 'a'", hint="choose another name"),
        InvalidInput("there is already a job named 'a'", hint="choose another name"),
        Conflict.from_response("there is already a job named 'a'", hint="choose another name", status=409),
    ],
)
def test_a_traceback_shows_what_to_do(error: TimeballError) -> None:
    assert last_lines(error)[0].endswith(": there is already a job named 'a'")
    assert last_lines(error)[1:] == ["choose another name"]
    assert str(error) == "there is already a job named 'a'"


def test_a_hint_that_comes_later_is_shown_too() -> None:
    error = ResultTimeout("after 10s it is still queued")
    error.hint = "does a worker serve its queue?"

    assert last_lines(error)[1:] == ["does a worker serve its queue?"]


def test_nothing_is_said_twice() -> None:
    assert last_lines(Conflict("no; choose another name", hint="choose another name"))[1:] == []
    assert last_lines(Conflict("no"))[1:] == []


def test_a_hint_goes_along_between_processes() -> None:
    found = pickle.loads(pickle.dumps(InvalidInput("no", hint="choose another name")))

    assert found.hint == "choose another name"
    assert last_lines(found)[1:] == ["choose another name"]
