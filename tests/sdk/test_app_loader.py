"""Finding a program by its reference on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timeball import InvalidInput, Timeball
from timeball.errors import CronSyntaxError
from timeball.sdk.app_loader import load_app

PROGRAM = """
from timeball import Timeball

class web:
    tb = Timeball()

tb = web.tb
number = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a few programs; they are not imported any more afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "two.py").write_text("from timeball import Timeball\na, b = Timeball(), Timeball()")
    (tmp_path / "none.py").write_text("tb = 5")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("reference", ["shop:tb", "shop:web.tb", "shop"])
def test_an_app_is_found_in_the_current_folder(reference: str) -> None:
    assert isinstance(load_app(reference), Timeball)


@pytest.mark.parametrize(
    ("reference", "problem", "hint"),
    [
        ("", 'the app is "", expected module:attribute, such as app:tb', None),
        ("shop:", 'the app is "shop:", expected module:attribute', None),
        ("shop.py:tb", 'the app is "shop.py:tb", expected module:attribute', "write shop:tb"),
        ("./web/shop.py", "expected module:attribute", "write web.shop:tb"),
        (".shop:tb", 'the app is ".shop:tb", expected module:attribute', "write the module with dots"),
        ("my shop:tb", 'the app is "my shop:tb", expected module:attribute', "write the module with dots"),
        ("shoop:tb", "there is no module 'shoop'", "looked in "),
        ("shop.inner:tb", "there is no module 'shop.inner'", "looked in "),
        ("shop:app", "shop has no attribute 'app'", "did you mean shop:tb?"),
        ("shop:number", "shop:number is a builtins.int, expected a Timeball", "did you mean shop:tb?"),
        ("two", "two has 2 Timeballs, expected one", "did you mean two:a or two:b?"),
        ("none:tb", "none:tb is a builtins.int", "make one in none: tb = Timeball()"),
    ],
)
def test_a_wrong_reference_is_refused_with_a_hint(reference: str, problem: str, hint: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_app(reference)

    assert problem in str(caught.value)
    assert (caught.value.hint or "").startswith(hint or "")


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("import a_package_that_is_not_there", "ModuleNotFoundError: No module named 'a_package_that_is_not_there'", 1),
        ("\nx = (", "SyntaxError: '(' was never closed", 2),
        ("\n\nraise ValueError('boom')", "ValueError: boom", 3),
        ("import json\n\ndef broken():\n    json.loads('')\n\nbroken()", "JSONDecodeError: Expecting value", 4),
    ],
)
def test_an_error_of_the_program_is_shown_with_its_line(text: str, problem: str, line: int, folder: Path) -> None:
    (folder / "broken.py").write_text(text)

    with pytest.raises(InvalidInput) as caught:
        load_app("broken:tb")

    what, _, where = str(caught.value).partition("\n")
    assert what.startswith(f"broken cannot be imported: {problem}")
    assert where == f"{folder / 'broken.py'}, line {line}"
    assert (caught.value.hint or "").endswith('python -c "import broken"')


def test_an_error_of_a_declaration_is_passed_on(folder: Path) -> None:
    (folder / "broken.py").write_text("from timeball import Timeball\nTimeball().cron('0 25 * * *')(print)")

    with pytest.raises(CronSyntaxError, match="hour is 25, expected 0-23"):
        load_app("broken:tb")
