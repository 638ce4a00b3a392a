"""Every page, with nothing in the database and with everything in it; as every role; and whatever people call their things."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.support.factories import FAILURE, claim_all, enqueue, found, make_job, record
from timeball.application.commands import Commands
from timeball.dashboard.app import every_page
from timeball.domain.execution import Failed
from timeball.domain.values.ids import format_execution_id, format_job_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}"
CANARY = "canary-5f3a"
Entering = Callable[[str], Awaitable[Browser]]
Ids = dict[str, str]

EMPTY = [
    "/",
    "/jobs",
    "/jobs/new",
    "/executions",
    "/dead",
    "/keys",
    "/audit",
    "/settings",
    "/templates",
    "/templates/new",
    "/calendars",
    "/calendars/new",
    "/webhooks",
    "/webhooks/new",
]
SEARCHES = [
    "/jobs?q=status:paused",
    "/executions?status=dead&q=queue:x",
    "/jobs?q=stauts:x",
    "/executions?q=%22",
    "/jobs?all=yes",
]


@pytest.fixture
async def ids(store: Store, clock: VirtualClock) -> Ids:
    """A job of every kind with hostile names and a secret, one execution that died, one that succeeded, one that waits."""
    payload = {"text": HOSTILE, "password": CANARY, "nested": [{"api_key": CANARY}]}
    job = await make_job(
        store, name=HOSTILE, description=HOSTILE, tags=(HOSTILE,), queue=HOSTILE, payload=payload, max_retries=0
    )
    cron = await make_job(store, name="cron", schedule="30 2 * * *", timezone="Europe/Berlin")
    await make_job(store, name="every", interval_seconds=60)
    await make_job(store, name="once", scheduled_at="2030-01-01T00:00:00Z")
    commands = Commands(store, store.env)
    dead = await commands.executions.trigger(job.id)
    good = await commands.executions.trigger(cron.id)
    claimed = {one.id: one for one in await claim_all(store)}
    start, end = clock.now(), clock.advance("2s")
    failure = Failed(error=FAILURE.__class__(type="ValueError", message=HOSTILE, traceback=HOSTILE, fingerprint="f1"))
    await record(
        store,
        [
            found(claimed[dead], failure, started_at=start, finished_at=end),
            found(claimed[good], started_at=start, finished_at=end),
        ],
    )
    await commands.jobs.pause(job.id)
    waiting = await commands.executions.trigger(cron.id)
    return {
        "job": format_job_id(job.id),
        "cron": format_job_id(cron.id),
        "dead": format_execution_id(dead),
        "good": format_execution_id(good),
        "waiting": format_execution_id(waiting),
    }


def pages_of(ids: Ids) -> list[str]:
    tabs = [f"/jobs/{ids[job]}?tab={tab}" for job in ("job", "cron") for tab in _TABS]
    runs = [f"/executions/{ids[run]}{rest}" for run in ("dead", "good", "waiting") for rest in ("", "/why", "/log")]
    others = [f"/jobs/{ids['job']}/edit", f"/jobs/{ids['cron']}/edit", f"/jobs/{ids['job']}/why"]
    others += [f"/jobs/{ids[job]}/why?at={at}" for job in ("job", "cron") for at in ("2026-03-02T12:00", "+1", "")]
    dead = ["/dead?fingerprint=f1", "/dead?fingerprint=none", "/dead?by=handler", "/dead?by=queue", "/dead?queue=x"]
    dead += [f"/executions/{ids['dead']}/retry", "/parts/palette?words=c"]
    return [*EMPTY, *SEARCHES, *tabs, *runs, *others, *dead, "/jobs/export", "/executions/export?q=status:dead"]


_TABS = ("overview", "executions", "schedule", "settings", "activity")


async def test_every_page_is_there_when_there_is_nothing(browser: Browser) -> None:
    for path in [*EMPTY, *SEARCHES]:
        assert (await browser.get(path)).status_code == 200, path


async def test_every_page_shows_everything_and_hides_what_must_be_hidden(browser: Browser, ids: Ids) -> None:
    for path in pages_of(ids):
        answer = await browser.get(path)

        assert answer.status_code == 200, path
        if not path.endswith("log"):
            assert len(answer.text) > 100, path
        assert CANARY not in answer.text, path
        if answer.headers["content-type"].startswith("text/html"):
            assert "<img src=x" not in answer.text, path
            assert "onerror=alert(1)>" not in answer.text.replace("&gt;", ""), path
            assert not re.search(r"\sstyle=|<style|<script(?![^>]*src=)", answer.text), path


async def test_a_part_that_is_refreshed_is_only_the_part(browser: Browser, ids: Ids) -> None:
    for path in ("/jobs", "/executions", "/dead", "/audit", f"/jobs/{ids['job']}", f"/executions/{ids['dead']}"):
        whole = (await browser.get(path)).text
        part = (await browser.get(path, headers={"HX-Request": "true", "HX-Request-Type": "partial"})).text

        assert "<html" in whole, path
        assert "<html" not in part, path
        assert re.search(r'data-topics="[a-z :_A-Z0-9]+"', part), path


async def test_a_log_is_read_on_for_a_while_after_the_end(browser: Browser, ids: Ids, clock: VirtualClock) -> None:
    path = f"/executions/{ids['good']}"
    assert "data-wait=" in (await browser.get(path)).text

    clock.advance("2m")

    assert "data-wait=" not in (await browser.get(path)).text


async def test_what_is_not_there_is_not_found(browser: Browser) -> None:
    for path in ("/jobs/none", "/executions/exe_0", "/jobs/none/edit", "/executions/none/why", "/jobs/%00"):
        assert (await browser.get(path)).status_code == 404, path


async def test_a_search_that_does_not_fit_helps(browser: Browser) -> None:
    page = await browser.get("/jobs?q=stauts:x")

    assert "did you mean status:?" in page.text


async def test_empty_lists_say_which_nothing_it_is(browser: Browser, log_in: Entering) -> None:
    assert "No jobs yet" in (await browser.get("/jobs")).text
    assert "Nothing matches" in (await browser.get("/jobs?q=zzz")).text
    viewer = await log_in("viewer")
    assert (await viewer.get("/audit")).status_code == 403


READS = {"/keys": "admin", "/audit": "admin", "/settings": "admin", "/jobs/new": "editor", "/templates/new": "editor"}
READS |= {"/calendars/new": "editor", "/webhooks/new": "editor"}


async def test_pages_that_need_more_than_a_look_say_so(log_in: Entering) -> None:
    for role in ("viewer", "operator", "editor", "admin"):
        browser = await log_in(role)
        for path, needed in READS.items():
            ranks = ("viewer", "operator", "editor", "admin")
            expected = 200 if ranks.index(role) >= ranks.index(needed) else 403
            assert (await browser.get(path)).status_code == expected, (role, path)


async def test_a_viewer_sees_no_button_and_can_press_none(log_in: Entering, ids: Ids) -> None:
    viewer = await log_in("viewer")
    pages = [await viewer.get(path) for path in ("/jobs", "/executions", "/dead", f"/jobs/{ids['job']}")]

    for page in pages:
        actions = set(re.findall(r'<form[^>]*method="post"[^>]*action="([^"]+)"', page.text))
        assert actions <= {"/logout"}, page.url

    for route in every_page():
        if "POST" not in (route.methods or ()) or route.path in ("/login", "/logout", "/seen", "/parts/schedule"):
            continue
        path = route.path.replace("{job}", ids["job"]).replace("{execution}", ids["dead"]).replace("{key}", "k")
        assert (await viewer.submit(re.sub(r"{\w+}", "x", path))).status_code == 403, path


# what needs which role in the API needs the same here
SAME_ROLES = [
    ("/jobs/{job}/pause", "/jobs/{job}/pause"),
    ("/jobs/{job}/resume", "/jobs/{job}/resume"),
    ("/jobs/{job}/trigger", "/jobs/{job}/trigger"),
    ("/jobs/{job}/duplicate", "/jobs/{job}/duplicate"),
    ("/executions/{execution}/cancel", "/executions/{execution}/cancel"),
    ("/executions/{execution}/retry", "/executions/{execution}/retry"),
    ("/executions/bulk", "/executions/bulk"),
    ("/jobs/bulk", "/jobs/bulk/{action}"),
    ("/dead/retry", "/dead-letter/retry"),
    ("/dead/discard", "/dead-letter/discard"),
    ("/jobs", "/jobs"),
]


async def test_a_form_needs_the_role_that_its_route_in_the_api_needs(
    browser: Browser, log_in: Entering, ids: Ids
) -> None:
    paths: dict[str, Any] = (await browser.get("/openapi.json")).json()["paths"]
    browsers = {role: await log_in(role) for role in ("viewer", "operator", "editor")}
    for page, route in SAME_ROLES:
        needed = paths[f"/api/v1{route}"]["post"]["x-role"]
        path = page.format(job=ids["cron"], execution=ids["good"])
        below = {"operator": "viewer", "editor": "operator", "admin": "editor"}[needed]

        assert (await browsers[below].submit(path)).status_code == 403, page


@pytest.mark.parametrize("path", ["/jobs", "/executions"])
async def test_a_search_that_was_broken_off_can_be_gone_on_with(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for number in range(4):
        await enqueue(store, queue="rare" if number == 0 else "other")
    monkeypatch.setattr("timeball.store.search.listing.SCAN_SECONDS", 0)
    monkeypatch.setattr("timeball.store.search.listing.FIRST_CHUNK", 2)

    first = (await browser.get(path, params={"q": "queue:rare"})).text
    go_on = re.search(r'href="([^"]*cursor=[^"]*)">Continue the search', first)
    assert go_on is not None, first
    second = (await browser.get(html.unescape(go_on[1]))).text

    assert "Nothing found so far" in first
    assert "2 rows looked at, back to" in first
    assert 'id="row-' in second
    assert "1 execution found so far" in second or "1 job found so far" in second


async def test_a_job_shows_its_executions(browser: Browser, store: Store) -> None:
    job = await make_job(store, name="reports", interval_seconds=60)

    page = await browser.get(f"/jobs/{job.name}", params={"tab": "executions"})

    assert (page.status_code, "1 execution shown" in page.text) == (200, True)


async def test_progress_is_a_bar_with_its_note(browser: Browser, store: Store) -> None:
    execution_id = await enqueue(store)
    (claimed,) = await claim_all(store)
    await store.executions.report_progress(claimed, 0.42, "page <42>")

    page = (await browser.get(f"/executions/{format_execution_id(execution_id)}")).text
    listed = (await browser.get("/executions")).text

    for text in (page, listed):
        assert "42 % done" in text
        assert "page &lt;42&gt;" in text
