"""What `timeball check` says about the handlers of a program."""

from __future__ import annotations

import asyncio
import datetime
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from timeball.handlers.lint import lint_handler
from timeball.handlers.registry import make_handler
from timeball.sdk.options import handler_options


class Document:
    """As a model of an ORM: no type of data."""

    def __init__(self, key: int) -> None:
        self.key = key


Row = TypeVar("Row")


class Found(Generic[Row]):
    """As a query of an ORM."""


@dataclass
class Page:
    number: int


def lint(function: Callable[..., Any]) -> list[str]:
    return list(lint_handler(make_handler(function)))


def test_a_parameter_that_json_can_never_hold_is_named() -> None:
    def index(document: Document, page: Page, path: Path, at: datetime.datetime, anything: object, untyped) -> None:  # type: ignore[no-untyped-def]
        ...

    (concern,) = lint(index)

    assert concern.startswith("its parameter document takes a Document, which JSON cannot hold")


def test_a_class_inside_of_a_union_or_a_container_is_named_too() -> None:
    def index(
        optional: Document | None,
        many: list[Document],
        by_name: dict[str, Annotated[Document, "marked"]],
        pages: list[Page] | None,
        numbers: dict[str, list[int]],
        found: Found[int],
        first: Callable[[int], str] | None = None,
    ) -> None: ...

    concerns = lint(index)

    assert [concern.partition(",")[0] for concern in concerns] == [
        *(f"its parameter {name} takes a Document" for name in ("optional", "many", "by_name")),
        "its parameter found takes a Found",
    ]


def test_a_plain_function_with_a_timeout_that_nothing_enforces_is_told() -> None:
    def work() -> None: ...

    async def awaited() -> None: ...

    def concerns(function: Callable[..., Any], *, isolate: bool = False, **options: Any) -> list[str]:
        return list(lint_handler(make_handler(function, isolate=isolate, options=handler_options(options))))

    (concern,) = concerns(work, timeout="5s")
    assert concern.startswith(
        "its timeout ends nothing: a plain function learns of it by current.cancelled alone; add interrupt=True"
    )
    assert concerns(work) == concerns(work, timeout=None) == []
    assert concerns(work, timeout="5s", interrupt=True) == concerns(work, isolate=True, timeout="5s") == []
    assert concerns(awaited, timeout="5s") == []


def test_a_coroutine_that_blocks_is_told_with_its_line() -> None:
    async def wait() -> None:
        time.sleep(3)

    (concern,) = lint(wait)

    assert concern.startswith(f"line {wait.__code__.co_firstlineno + 1}: time.sleep() blocks the event loop")


def test_names_are_followed_to_what_they_mean() -> None:
    nap = time.sleep

    async def renamed() -> None:
        nap(3)

    async def imported_inside() -> None:
        from subprocess import run as execute

        execute(["true"])

    assert [concern.split("(")[0] for concern in lint(renamed)] == [f"line {renamed.__code__.co_firstlineno + 1}: nap"]
    assert "execute() blocks" in lint(imported_inside)[0]


def test_what_runs_elsewhere_does_not_block() -> None:
    async def in_threads() -> None:
        def work() -> None:
            subprocess.run(["true"], check=True)

        await asyncio.to_thread(time.sleep, 0)
        await asyncio.to_thread(work)
        await asyncio.sleep(0)

    def plain() -> None:
        time.sleep(0)

    assert lint(in_threads) == []
    assert lint(plain) == []


def test_a_function_without_a_source_is_passed_over() -> None:
    scope: dict[str, Any] = {}
    exec("async def made():\n    import time\n    time.sleep(1)", scope)

    assert lint(scope["made"]) == []
