"""Handlers that wait for other runs: their slots are lent meanwhile, so that what they wait for can run."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.sdk.conftest import ON_ONE_SERVER, running_node
from tests.support.pace import patience
from timeball import ExecutionFailed, Settings, Timeball, TimedOut

pytestmark = ON_ONE_SERVER

_FAMILY = """
from timeball import TimedOut, Timeball

tb = Timeball()


@tb.handler(name="child")
def child(n: int) -> int:
    return n + 1


@tb.handler(name="never", queue="elsewhere")
def never() -> None: ...


@tb.handler(name="parent", isolate=True, retries=0)
def parent(n: int) -> int:
    return 10 * child.enqueue(n).result()


@tb.handler(name="stuck", isolate=True, retries=0, timeout="1s", grace="10m")
def stuck(path: str) -> None:
    try:
        never.enqueue().result()
    except TimedOut:
        open(path, "w").write("cleaned up")
        raise
"""


def with_worker(settings: Settings, **fields: Any) -> Settings:
    return settings.model_copy(update={"worker": settings.worker.model_copy(update=fields)})


@pytest.fixture
def family(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Timeball, str]]:
    """A program in a module of its own, which isolated children can import, and the name by which they do."""
    name = f"family_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(_FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    assert settings.database_url is not None
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("TIMEBALL_MIGRATE", "false")

    with importlib.import_module(name).tb as program:
        yield program, f"{name}:tb"


def test_two_parents_in_two_slots_get_the_results_of_their_children(tb: Timeball, settings: Settings) -> None:
    @tb.handler
    def child(n: int) -> int:
        return n + 1

    @tb.handler(retries=0)
    def parent(n: int) -> int:
        return 10 * child.enqueue(n).result()

    with running_node(tb, with_worker(settings, slots=2)):
        runs = parent.enqueue_many(parent.call(n) for n in range(2))

        assert [run.result(timeout=patience(20)) for run in runs] == [10, 20]


async def test_coroutines_await_runs_and_lend_their_slots(tb: Timeball, settings: Settings) -> None:
    @tb.handler
    async def child(n: int) -> int:
        return n + 1

    @tb.handler(retries=0)
    async def parent(n: int) -> int:
        runs = [await child.aenqueue(n), await child.aenqueue(n + 1)]
        return sum(await asyncio.gather(*runs))

    with running_node(tb, with_worker(settings, slots=1)):
        run = await parent.aenqueue(1)

        assert await asyncio.wait_for(run.aresult(), patience(20)) == 5


def test_isolated_parents_lend_their_slots(family: tuple[Timeball, str], settings: Settings) -> None:
    program, reference = family
    with running_node(program, with_worker(settings, slots=2), reference):
        runs = [program.enqueue("parent", {"n": n}) for n in range(2)]

        assert [run.result(timeout=patience(40)) for run in runs] == [10, 20]


def test_a_parent_of_parents_waits_in_a_single_slot(tb: Timeball, settings: Settings) -> None:
    @tb.handler(retries=0)
    def countdown(n: int) -> int:
        return n if n == 0 else countdown.enqueue(n - 1).result() + 1

    with running_node(tb, with_worker(settings, slots=1)):
        assert countdown.enqueue(8).result(timeout=patience(20)) == 8


def test_a_group_is_waited_for_without_a_slot(tb: Timeball, settings: Settings) -> None:
    @tb.handler
    def part(n: int) -> int:
        return n

    @tb.handler(retries=0)
    def whole(parts: int) -> list[int]:
        return tb.group(part.call(n) for n in range(parts)).enqueue().results()

    with running_node(tb, with_worker(settings, slots=1)):
        assert whole.enqueue(5).result(timeout=patience(20)) == [0, 1, 2, 3, 4]


def test_an_isolated_handler_that_waits_for_another_run_is_told_that_its_time_is_over(
    family: tuple[Timeball, str], settings: Settings, tmp_path: Path
) -> None:
    program, reference = family
    with running_node(program, with_worker(settings, queues=("default",)), reference):
        # The child is there then, and has opened its database: neither is a part of the second.
        assert program.enqueue("parent", {"n": 1}).result(timeout=patience(40)) == 20
        run = program.enqueue("stuck", {"path": str(tmp_path / "note")})

        assert ended(run) == "dead"
    assert (tmp_path / "note").read_text() == "cleaned up"


def test_a_thread_that_waits_for_another_run_is_interrupted_if_it_asks_for_it(tb: Timeball, settings: Settings) -> None:
    seen: list[str] = []

    @tb.handler(queue="elsewhere")
    def never() -> None: ...

    @tb.handler(retries=0, timeout="1s", grace="10m", interrupt=True)
    def stuck() -> None:
        try:
            never.enqueue().result()
        except TimedOut:
            seen.append("cleaned up")
            raise

    with running_node(tb, with_worker(settings, queues=("default",))):
        assert ended(stuck.enqueue()) == "dead"
    assert seen == ["cleaned up"]


def ended(run: Any) -> str:
    with pytest.raises(ExecutionFailed):
        run.result(timeout=patience(30))
    return str(run.state())
