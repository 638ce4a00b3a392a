"""Handlers by name."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from timeball.domain.handler import HandlerOptions, RunStyle
from timeball.errors import Conflict, InvalidInput, NotFound
from timeball.handlers.binding import style_of
from timeball.handlers.registry import Registry, default_name, make_handler


def plain() -> None: ...


async def asynchronous() -> None: ...


class Callable:
    def __call__(self) -> None: ...


class AsyncCallable:
    async def __call__(self) -> None: ...


def test_a_handler_is_found_by_its_name() -> None:
    registry = Registry()

    handler = registry.add(make_handler(plain, options=HandlerOptions(fields={"queue": "mail"})))

    assert registry.get("tests.handlers.test_registry:plain") is handler
    assert registry.find("other") is None
    assert registry.names() == ("tests.handlers.test_registry:plain",)
    assert "tests.handlers.test_registry:plain" in registry
    assert handler.options.fields == {"queue": "mail"}
    with pytest.raises(NotFound, match="there is no handler other"):
        registry.get("other")


def test_a_name_belongs_to_one_handler_only() -> None:
    registry = Registry([make_handler(plain, name="mail")])

    with pytest.raises(
        Conflict, match=r"'mail' is declared twice: by .*test_registry.py:\d+ and by .*test_registry.py:\d+"
    ):
        registry.add(make_handler(asynchronous, name="mail"))
    with pytest.raises(Conflict):
        registry.merge([make_handler(asynchronous, name="mail")])

    assert registry.get("mail").function is plain


def test_merging_leaves_both_sides_as_they_were() -> None:
    ours, built_in = Registry([make_handler(plain)]), Registry([make_handler(asynchronous)])

    both = ours.merge(built_in)

    assert len(both) == 2
    assert len(ours) == len(built_in) == 1


@pytest.mark.parametrize(
    ("function", "style"),
    [
        (plain, RunStyle.THREAD),
        (asynchronous, RunStyle.COROUTINE),
        (partial(plain), RunStyle.THREAD),
        (partial(asynchronous), RunStyle.COROUTINE),
        (Callable(), RunStyle.THREAD),
        (AsyncCallable(), RunStyle.COROUTINE),
        (AsyncCallable().__call__, RunStyle.COROUTINE),
        (print, RunStyle.THREAD),
    ],
)
def test_the_kind_of_a_function_says_how_it_runs(function: Any, style: RunStyle) -> None:
    assert style_of(function, isolate=False) is style
    assert style_of(function, isolate=True) is RunStyle.PROCESS


def test_generators_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(InvalidInput, match="is a generator"):
            make_handler(function)


def test_what_has_no_name_must_be_given_one() -> None:
    with pytest.raises(InvalidInput, match="has no name of its own"):
        make_handler(partial(plain))

    assert make_handler(partial(plain), name="mail").name == "mail"


def test_a_handler_has_the_same_name_in_a_script_and_when_imported(tmp_path: Path) -> None:
    (tmp_path / "mailer.py").write_text(
        "from timeball.handlers.registry import default_name\ndef send(): ...\nprint(default_name(send))\n"
    )

    as_script = subprocess.run([sys.executable, "mailer.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    as_module = subprocess.run(
        [sys.executable, "-m", "mailer"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert as_script.stdout == as_module.stdout == "mailer:send\n"
    assert default_name(plain) == "tests.handlers.test_registry:plain"
    assert runpy.run_path(str(tmp_path / "mailer.py"), run_name="mailer")["send"].__module__ == "mailer"
