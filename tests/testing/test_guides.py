"""The pages about Python are true: their programs run, and the reference has every name and option."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

import timeball
from tests.conftest import FreshDatabase
from timeball import Timeball
from timeball.sdk.options import EnqueueOptions, HandlerDeclaration, ScheduleOptions
from timeball.testing import TimeballHarness

DOCS = Path(__file__).parents[2] / "docs"
SDK = (DOCS / "reference" / "sdk.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (✓?) ?\| (✓?) ?\| (✓?) ?\|", re.MULTILINE)


def run_page(page: Path) -> dict[str, Any]:
    """Run the blocks of a page one after the other, as a reader would type them."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_program_of_the_guide_runs(harness: TimeballHarness) -> None:
    guide = run_page(DOCS / "howto" / "python.md")
    harness.use(guide["tb"], schedules=False)

    guide["remind_all"]({1: "a@b.co", 2: "b@b.co"})
    paging = guide["import_pages"].enqueue(["one", "two"])

    assert harness.drain(raise_errors=True) == (3, 0, 0)
    assert paging.result() == 2
    assert harness.last(guide["send_receipt"]).result == "receipt 2 -> b@b.co"


def test_the_page_on_inline_runs_is_true() -> None:
    guide = run_page(DOCS / "howto" / "inline.md")

    guide["test_a_checkout_sends_a_receipt"]()


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_page_on_keys_is_true(harness: TimeballHarness) -> None:
    guide = run_page(DOCS / "howto" / "unique-keys.md")
    harness.use(guide["tb"], schedules=False)

    guide["on_import"](1)
    harness.drain(raise_errors=True)
    for revision in range(3):
        guide["on_keystroke"](2, revision)
        harness.clock.advance("9s")
    for revision in range(10, 13):
        guide["on_save"](3, revision)
    assert len(harness.executions(guide["reindex"])) == 3
    harness.clock.advance("1m", raise_errors=True)
    for _ in range(2):
        guide["on_overdue"](4)
        harness.drain(raise_errors=True)

    reindexed = harness.executions(guide["reindex"])
    assert [run.result for run in reindexed] == [1, 2, 12]
    assert len(harness.executions(guide["remind"])) == 1


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_page_on_pages_of_your_own_is_true(harness: TimeballHarness) -> None:
    guide = run_page(DOCS / "howto" / "your-own-pages.md")
    harness.use(guide["tb"], schedules=False)

    run_id = guide["start"](7)

    assert guide["progress_bar"](run_id) == {
        "state": "queued",
        "percent": 0,
        "words": "",
        "error": None,
        "late_ms": None,
    }
    assert guide["of_user"](7) == "queued"
    assert guide["page_of_exports"]("acme") == []
    assert guide["history_of"](7) == ["queued"]
    assert guide["status_page"]()["waiting"] == {"default": 1}
    harness.drain(raise_errors=True)
    assert guide["progress_bar"](run_id)["state"] == "succeeded"


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_page_on_schedules_for_users_is_true(harness: TimeballHarness, fresh_database: FreshDatabase) -> None:
    guide = run_page(DOCS / "howto" / "user-schedules.md")

    guide["test_digest"](harness)

    assert guide["subscribe_all"]({17: "Europe/Rome", 18: "Asia/Tokyo"}) == 1
    with psycopg.connect(fresh_database.dsn) as connection:
        connection.execute("CREATE TABLE users (id int GENERATED ALWAYS AS IDENTITY (START 20), email text, hour int)")
        user, other = (guide["sign_up"](connection, f"{name}@b.co", "Europe/Rome") for name in "ab")
        guide["move"](connection, user, 9)
        guide["leave"](connection, other)
    guide["on_holiday"]([18], "2098-01-01")
    assert guide["paused_users"]() == [18]
    harness.clock.advance("1d")

    assert [len(harness.fired(f"digest-{number}")) for number in (17, 18, user, other)] == [3, 0, 1, 0]
    assert harness.fired(f"digest-{user}")[0].local.hour == 9
    assert harness.last(guide["send_digest"]).result is not None


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_page_on_code_around_runs_is_true(harness: TimeballHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    flask = ModuleType("flask")
    flask.Flask = _Flask  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flask", flask)
    guide = run_page(DOCS / "howto" / "code-around-runs.md")
    harness.use(guide["tb"])
    token = guide["tenant"].set("trial")

    guide["on_order"](7)
    with pytest.raises(PermissionError):
        guide["send_invoice"].enqueue_many([guide["send_invoice"].call(number) for number in range(1001)])
    guide["on_payment"](100)
    guide["tenant"].reset(token)
    guide["on_payment"](100)
    harness.drain(raise_errors=True)
    assert [one.result for one in harness.executions(guide["add_tax"])] == [100.0, 119.0]
    harness.assert_enqueued(guide["add_tax"], 100, times=2)

    sent = harness.last(guide["send_invoice"])
    assert sent.result == "invoice 7 of trial, asked for by ada"
    assert sent.priority == 10
    assert set(guide["seconds_by_outcome"]) == {"guide:send_invoice succeeded", "guide:add_tax succeeded"}
    assert (guide["models"], _Flask.entered) == (["loaded"], 3)
    harness.close()
    assert guide["models"] == []


class _Flask:
    """As much of Flask as the page uses."""

    entered = 0

    def __init__(self, name: str) -> None: ...

    @contextmanager
    def app_context(self) -> Iterator[None]:
        _Flask.entered += 1
        yield


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
def test_the_page_on_errors_and_traces_is_true(harness: TimeballHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    root = logging.getLogger()
    before, exporter = root.handlers[:], InMemorySpanExporter()
    monkeypatch.delenv("SENTRY_DSN", raising=False)
    try:
        guide = run_page(DOCS / "howto" / "errors-and-traces.md")
        guide["provider"].add_span_processor(SimpleSpanProcessor(exporter))
        harness.use(guide["tb"])
        for order in (-1, 0, 1):
            guide["charge"].options(retries=0).enqueue(order)
        run = guide["count"].enqueue(3)
        harness.drain()
    finally:
        root.handlers[:] = before

    (call,) = guide["pager"].calls
    assert call.startswith("shop:charge: attempt 1 of exe_")
    assert call.endswith("failed, the execution is dead: ValueError: nothing to charge")
    assert harness.log(harness.last(guide["count"])) == ["done number=3"]
    harness.close()
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == sorted(
        [*["send shop:charge", "process shop:charge"] * 3, "send shop:count", "process shop:count"]
    )
    assert run.id.startswith("exe_")


def test_the_declarations_of_the_page_on_switching_are_accepted() -> None:
    tb: Timeball = run_page(DOCS / "howto" / "switch.md")["tb"]

    assert sorted(tb.schedules) == ["poll"]
    assert tb.registry.get("guide:send_receipt").options.fields["max_retries"] == 5


def test_the_reference_has_every_public_name() -> None:
    assert [name for name in timeball.__all__ if not re.search(rf"\b{name}\b", SDK)] == []


@pytest.mark.parametrize(
    ("place", "declared"), [(1, HandlerDeclaration), (2, ScheduleOptions), (3, EnqueueOptions)], ids=str
)
def test_the_table_of_options_ticks_what_each_takes(place: int, declared: Any) -> None:
    rows = [option.groups() for option in OPTION.finditer(SDK)]
    ticked = {word.strip("` ") for row in rows if row[place] for word in row[0].split(",")}

    assert ticked == set(declared.__optional_keys__)
