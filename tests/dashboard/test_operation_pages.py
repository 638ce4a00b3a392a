"""Bulk actions: counted and confirmed first, then shown as an operation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.api.test_operations import make_dead
from tests.dashboard.conftest import Browser
from tests.dashboard.test_actions import api, toast
from tests.support.factories import enqueue, make_recurring, seconds
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.store.store import Store
from timeball.testing import VirtualClock

Entering = Callable[[str], Awaitable[Browser]]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six executions are too many to be done at once."""
    monkeypatch.setattr("timeball.api.resources.operations.MAX_INLINE", 5)


@pytest.fixture
def loop(store: Store) -> OperationLoop:
    return OperationLoop(Commands(store, store.env), store.env.new_id())


def progress(page: httpx.Response) -> str:
    found = re.search(r'class="axis-words"><span>([^<]*)<', page.text)
    return re.sub(r"(?<=\d),(?=\d)", "", found[1]) if found else ""


async def test_all_that_match_are_worked_off_in_the_background_and_watched(
    browser: Browser, store: Store, loop: OperationLoop
) -> None:
    for _ in range(7):
        await enqueue(store, queue="mail")
    wish = {"action": "cancel", "matching": "yes", "q": "queue:mail", "reason": "sent twice"}

    asked = await browser.submit("/executions/bulk", **wish)
    assert "Cancel 7 executions?" in asked.text
    watched = await browser.submit("/executions/bulk", **wish, expected="7")
    assert watched.url.path.startswith("/operations/op_")
    assert "in the background" in toast(watched)
    assert progress(watched) == "0 % · 0 done, 0 failed"
    assert 'hx-trigger="refresh, every 2s"' in watched.text

    assert await loop.round()

    over = await browser.get(watched.url.path)
    assert progress(over) == "100 % · 7 done, 0 failed"
    assert 'hx-trigger="refresh"' in over.text
    assert "sent twice" in over.text
    assert (await api(browser, "/executions?status=cancelled&include=total"))["total"] == 7
    assert "Cancel 7 executions" in (await browser.get("/operations")).text


async def test_very_many_jobs_are_worked_off_in_the_background_too(
    browser: Browser, store: Store, loop: OperationLoop
) -> None:
    for _ in range(6):
        await make_recurring(store)
    wish = {"action": "delete", "matching": "yes", "q": "kind:every", "reason": "old"}

    asked = await browser.submit("/jobs/bulk", **wish)
    assert "Delete 6 jobs?" in asked.text
    watched = await browser.submit("/jobs/bulk", **wish, expected="6")
    assert "<h1>Delete 6 jobs</h1>" in watched.text
    assert await loop.round()

    assert progress(await browser.get(watched.url.path)) == "100 % · 6 done, 0 failed"
    assert "Delete 6 jobs" in (await browser.get("/operations")).text
    assert (await api(browser, "/jobs"))["data"] == []


async def test_a_number_that_has_changed_is_asked_about_again(browser: Browser, store: Store) -> None:
    for _ in range(6):
        await enqueue(store, queue="mail")

    asked = await browser.submit("/executions/bulk", action="cancel", matching="yes", q="queue:mail", expected="9")

    assert "Cancel 6 executions?" in asked.text
    assert "it was 9" in asked.text
    assert (await api(browser, "/operations"))["data"] == []


@pytest.mark.parametrize("idempotency", ["retry", "discard"])
async def test_a_large_group_of_dead_letters_is_an_operation(
    browser: Browser, store: Store, loop: OperationLoop, idempotency: str
) -> None:
    await make_dead(store, 6)
    (group,) = (await api(browser, "/dead-letter/groups"))["data"]

    page = await browser.submit(f"/dead/{idempotency}", fingerprint=group["fingerprint"])
    assert page.url.path.startswith("/operations/op_")
    await loop.round()

    assert "6 done" in progress(await browser.get(page.url.path))
    assert (await api(browser, "/dead-letter"))["data"] == []


async def test_what_could_not_be_done_is_listed_with_why(browser: Browser, store: Store, loop: OperationLoop) -> None:
    await make_dead(store, 5)
    await enqueue(store)

    page = await browser.submit("/executions/bulk", action="retry", matching="yes", expected="6")
    await loop.round()

    over = await browser.get(page.url.path)
    assert "5 done, 1 failed" in over.text
    assert "expected a finished one" in over.text


async def test_an_operation_is_stopped_by_operators_only(
    browser: Browser, store: Store, loop: OperationLoop, log_in: Entering
) -> None:
    for _ in range(6):
        await enqueue(store)
    page = await browser.submit("/executions/bulk", action="cancel", matching="yes", expected="6")
    viewer = await log_in("viewer")
    assert (await viewer.submit(f"{page.url.path}/cancel")).status_code == 403
    assert "/cancel" not in (await viewer.get(page.url.path)).text
    operator = await log_in("operator")

    stopped = await operator.submit(f"{page.url.path}/cancel", reason="enough")
    await loop.round()

    assert "what is done stays done" in toast(stopped)
    assert "</svg>cancelled</span>" in (await operator.get(page.url.path)).text


async def test_all_of_a_list_is_no_more_than_the_list_showed(
    browser: Browser, store: Store, clock: VirtualClock, loop: OperationLoop
) -> None:
    await make_recurring(store, name="ahead")
    for _ in range(6):
        await enqueue(store)

    asked = await browser.submit("/executions/bulk", action="cancel", matching="yes")
    assert "Cancel 6 executions?" in asked.text
    assert "All executions up to now" in asked.text
    until = re.search(r'name="until" value="([^"]+)"', asked.text)
    assert until
    clock.advance(seconds(3_600))
    await enqueue(store)
    await browser.submit("/executions/bulk", action="cancel", matching="yes", expected="6", until=until[1])
    await loop.round()

    states = [run["state"] for run in (await api(browser, "/executions"))["data"]]
    assert sorted(states) == ["cancelled"] * 6 + ["queued", "scheduled"]


async def test_without_operations_the_page_says_what_they_are(browser: Browser) -> None:
    assert "No operations" in (await browser.get("/operations")).text
    assert (await browser.get("/operations/op_none")).status_code == 404
