"""Finding a program by the reference people type."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timeball import InvalidInput, Timeball
from timeball.loading import load_app

PROGRAM = """
from timeball import Timeball

class web:
    tb = Timeball()

tb = web.tb
number = 7
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder one is in, with a few programs; afterwards nobody remembers them."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "two.py").write_text("from timeball import Timeball\na, b = Timeball(), Timeball()")
    (tmp_path / "none.py").write_text("tb = 5")
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("reference", ["shop:tb", "shop:web.tb", "shop"])
def test_an_app_is_found_in_the_folder_one_is_in(reference: str) -> None:
    assert isinstance(load_app(reference), Timeball)


@pytest.mark.parametrize(
    ("reference", "problem", "hint"),
    [
        ("", "the app is '', expected module:attribute, such as app:tb", None),
        ("shop:", "the app is 'shop:', expected module:attribute", None),
        ("shop.py:tb", "the app is 'shop.py:tb', expected module:attribute", "write shop:tb"),
        ("./web/shop.py", "expected module:attribute", "write web.shop:tb"),
        ("shoop:tb", "there is no module 'shoop'", "looked in "),
        ("shop.inner:tb", "there is no module 'shop.inner'", "looked in "),
        ("shop:app", "shop has no attribute 'app'", "did you mean shop:tb?"),
        ("shop:number", "shop:number is a builtins.int, expected a Timeball", "did you mean shop:tb?"),
        ("two", "two has 2 Timeballs, expected one", "did you mean two:a or two:b?"),
        ("none:tb", "none:tb is a builtins.int", "make one in none: tb = Timeball()"),
    ],
)
def test_what_is_no_app_is_refused_with_what_was_found_and_what_to_do(
    reference: str, problem: str, hint: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_app(reference)

    assert problem in str(caught.value)
    assert (caught.value.hint or "").startswith(hint or "")


def test_what_a_program_misses_itself_is_told_by_python() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        load_app("broken:tb")
