"""The benchmarks, as far as they can be tested without measuring anything."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from xml.etree.ElementTree import fromstring

import bench.__main__ as main_module
import pytest
from bench.curves import Curve, drawn
from bench.lab import Lab
from bench.load import bare_claims
from bench.million import furnish
from bench.multiply import add_history, add_schedules, add_waiting, portions
from bench.notebook import MILLISECONDS, Notebook
from bench.processes import cpu_seconds
from bench.punctuality import percentiles
from bench.report import chart, table, write
from bench.system import System

from bench import report
from tests.conftest import FreshDatabase
from timeball.config.settings import load_settings
from timeball.domain.job_fields import JobSpec
from timeball.runtime import open_runtime

ALL = (*main_module.QUESTIONS, *main_module.LONG_QUESTIONS)
ON_ONE_SERVER = pytest.mark.parametrize("fresh_database", ["pg18"], indirect=True)


# questions


@pytest.mark.parametrize("name", ALL)
def test_a_question_has_a_title_and_can_be_asked(name: str) -> None:
    question = importlib.import_module(f"bench.{name}")

    assert question.TITLE
    assert asyncio.iscoroutinefunction(question.ask)


@pytest.mark.parametrize("name", main_module.QUESTIONS)
def test_a_question_of_the_usual_run_has_its_limit(name: str) -> None:
    assert importlib.import_module(f"bench.{name}").LIMIT


def test_the_usual_run_asks_all_that_was_promised() -> None:
    """In the words of those who asked for it."""
    assert set(main_module.QUESTIONS) == {
        *("drain", "enqueue", "latency", "lateness", "recurring", "minute_zero", "backlog", "snapshot"),
        *("recovery", "footprint", "http", "startup"),
    }
    assert {one for names in main_module.GROUPS.values() for one in names} <= set(main_module.LONG_QUESTIONS)


def test_an_unknown_question_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "drain", "sing"])

    with pytest.raises(SystemExit, match=r"unknown question sing, expected one of drain, .*growth"):
        main_module.main()


# figures


@pytest.fixture
def notebook() -> Notebook:
    """Two rounds of a question, one of which met a slow machine."""
    made = Notebook("late", "how late", "bare", {("ours", "p99"): "below 5 ms"})
    for values in ((2.0, 4.0), (2.0, 4.0), (20.0, 40.0)):
        for subject, value in zip(("bare", "ours"), values, strict=True):
            made.note(subject, "p99", value, MILLISECONDS)
    return made


def test_a_figure_is_the_median_and_is_compared_with_its_limit(notebook: Notebook) -> None:
    limit, ours = notebook

    assert (ours.median, notebook.ratio_to_limit(ours)) == (4.0, 2.0)
    assert notebook.ratio_to_limit(limit) is None
    assert table(notebook).splitlines()[-1].endswith("4.00 ms  4.00 ms to 40.00 ms  2.00      below 5 ms")


def test_a_run_leaves_its_figures_and_a_chart(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")

    write([notebook], "late")

    document = json.loads((tmp_path / "results" / "late.json").read_text())
    assert document["questions"][0]["measures"][1]["values"] == [4.0, 4.0, 40.0]
    assert document["questions"][0]["measures"][1]["ratio_to_limit"] == 2.0
    assert (tmp_path / "results" / "late.svg").read_text() == chart([notebook])
    assert any("ours, p99" in (element.text or "") for element in fromstring(chart([notebook])).iter())


def test_growth_is_drawn_as_multiples_of_the_first_size() -> None:
    curve = Curve("a job, by backlog", (0, 1_000))
    for value in (20.0, 30.0):
        curve.add("buffers", value)

    assert curve.multiples("buffers") == [1.0, 1.5]
    assert {"a job, by backlog", "buffers", "1,000"} <= {element.text for element in fromstring(drawn([curve])).iter()}


def test_the_worst_is_among_the_percentiles() -> None:
    assert percentiles([float(number) for number in range(101)]) == {"p50 late": 50, "p99 late": 99, "worst": 100}


def test_cpu_time_is_read_finer_than_the_kernel_s_hundredths() -> None:
    here = os.getpid()
    counted, before = cpu_seconds(here), time.process_time()
    while time.process_time() < before + 0.003:
        pass

    assert 0.003 <= cpu_seconds(here) - counted < 0.01


# rows


def test_portions_leave_nothing_out() -> None:
    assert list(portions(1, 7, 3)) == [(1, 3), (4, 6), (7, 7)]
    assert list(portions(5, 4, 3)) == []


@pytest.fixture
async def system(fresh_database: FreshDatabase, tmp_path: Path) -> AsyncIterator[System]:
    """A system without nodes, as a question gets it."""
    async with open_runtime(load_settings(database_url=fresh_database.dsn)) as parts:
        made = System(parts, fresh_database.dsn, tmp_path, os.getpid(), tmp_path / "log")
        await made.value("UPDATE timeball.fold SET seen = pg_current_snapshot()")
        yield made


@ON_ONE_SERVER
async def test_rows_that_the_server_made_keep_every_promise(system: System) -> None:
    """Whatever a migration has added since."""
    now = system.parts.env.clock.now()

    await add_waiting(system, 1, 30, now + timedelta(days=1))
    await add_history(system, 1, 30, now)
    await add_schedules(system, 31, 60, 3600, now + timedelta(days=1))
    await furnish(system, 30)

    system.verify()
    assert await system.value("SELECT count(*) FROM timeball.finished") == 30 + 1 + 30
    assert await system.value("SELECT count(*) FROM timeball.due") == 30 + 1 + 30 + 1 + 100
    assert await system.value("SELECT count(*) FROM timeball.job WHERE name LIKE 'schedule-%'") == 30


@ON_ONE_SERVER
async def test_bare_claims_keep_every_promise_too(system: System) -> None:
    took = await bare_claims(system, 3)

    system.verify()
    assert len(took) == 3
    assert await system.value("SELECT count(*) FROM timeball.running") == 0


@ON_ONE_SERVER
async def test_a_benchmark_whose_promises_do_not_hold_fails(system: System) -> None:
    await system.parts.commands.jobs.create(JobSpec(name="nightly", handler="bench.noop", interval_seconds=3600))
    # Of an active job nothing is left to be run.
    await system.value("DELETE FROM timeball.due")

    with pytest.raises(SystemExit, match="verify does not hold"):
        system.verify()


async def test_a_lab_verifies_each_system_and_drops_it_however_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def nothing(_settings: object) -> AsyncIterator[None]:
        yield

    async def run(_lab: Lab, statement: str) -> None:
        said.append(statement.split(" TEMPLATE")[0])

    async def value(_system: System, _query: str) -> None: ...

    def fail(_system: System) -> None:
        raise SystemExit("verify does not hold")

    monkeypatch.setattr("bench.lab.open_runtime", nothing)
    monkeypatch.setattr(Lab, "_run", run)
    monkeypatch.setattr(System, "value", value)
    monkeypatch.setattr(System, "verify", fail)
    lab = Lab(tmp_path, "postgresql://somebody@/database?host=/nowhere", 1, tmp_path / "log")

    with pytest.raises(SystemExit, match="does not hold"):
        async with lab.system():
            pass

    assert said == ["CREATE DATABASE bench_1", "DROP DATABASE bench_1 WITH (FORCE)"]
