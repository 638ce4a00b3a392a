"""Lists: what they leave out, how late they call things, how a search can go on, and the numbers that lead to them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.application.queries.support import ran
from tests.dashboard.conftest import Browser
from tests.support.factories import (
    FAILURE,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_job,
    make_node,
    make_owner,
    make_recurring,
    promote_due,
    record,
    seconds,
)
from timeball.application.commands import Commands
from timeball.domain.execution import Failed
from timeball.domain.node import NodeKind
from timeball.store.store import Store
from timeball.testing import VirtualClock

Entering = Callable[[str], Awaitable[Browser]]
# A page has fifty of them, and most of what it costs is what it writes.
MOST_BYTES_A_ROW, MOST_ELEMENTS_A_ROW = 2_800, 48
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}


def ends(text: str) -> list[str]:
    return re.findall(r'<option value="([^"]*)"', text.replace("&#34;", "'").replace("&gt;", ">").replace("&lt;", "<"))


def cells(page: str, label: str) -> list[str]:
    return re.findall(rf'data-label="{label}"[^>]*>([^<]*)<', page)


@pytest.mark.parametrize("path", ["/executions?q=job:shaky", "/jobs/{job}?tab=executions"])
async def test_late_is_the_first_start_and_not_the_last_try(
    browser: Browser, store: Store, clock: VirtualClock, path: str
) -> None:
    job = await make_job(store, name="shaky", max_retries=1)
    await Commands(store, store.env).executions.trigger(job.id)
    clock.advance(seconds(3))
    await record(store, [found(one, Failed(FAILURE), started_at=clock.now()) for one in await claim_all(store)])
    retrying = (await browser.get(path.format(job=job.id))).text
    clock.advance(seconds(7_200))
    await promote_due(store, await make_owner(store))
    await record(store, [found(one, Failed(FAILURE), started_at=clock.now()) for one in await claim_all(store)])

    dead = (await browser.get(path.format(job=job.id))).text

    assert "dead" in dead
    assert cells(retrying, "Late by") == cells(dead, "Late by") == ["3.0 s"]


async def test_what_lies_ahead_is_not_in_the_way_of_what_has_come(browser: Browser, store: Store) -> None:
    await make_recurring(store, name="ahead", every=86_400)
    await enqueue(store, handler="app:come")

    page = (await browser.get("/executions")).text
    assert "app:come" in page
    assert "ahead" not in page
    assert "ahead" in (await browser.get("/executions?status=scheduled")).text
    assert "ahead" in (await browser.get("/executions?q=job:ahead")).text


# completion


async def test_a_row_of_the_jobs_stays_small_however_much_has_run(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    job = await make_recurring(store, every=60, name="busy")
    for number in range(25):
        state = "dead" if number % 5 == 0 else "succeeded"
        await ran(store, clock.now() - seconds(60 * (25 - number)), 0.001 * (number + 1), job.id, state)

    page = (await browser.get("/jobs")).text

    (row,) = re.findall(r'<tr id="row-.*?</tr>', page, re.DOTALL)
    assert 'aria-label="The latest 20 runs: 16 succeeded; took 6.0 ms to 25 ms"' in row
    # Each bar once, and one element for all of a state.
    assert [path.count("M") for path in re.findall(r'<path class="tone-(?:bad|good)" d="([^"]*)"', row)] == [4, 16]
    assert len(re.findall(r"<\w", row)) <= MOST_ELEMENTS_A_ROW
    assert len(row.encode()) <= MOST_BYTES_A_ROW, len(row.encode())


async def test_a_search_goes_on_with_fields_and_with_their_values(browser: Browser, store: Store) -> None:
    await make_job(store, name="nightly etl", tags=("billing",))
    await make_job(store, name="nightly-sync", tags=("crm",), queue="mail")
    await enqueue(store, queue="mail")
    await make_node(store, NodeKind.WORKER, slots=1, handlers=("app.mail:send",))

    async def after(text: str, where: str = "/executions") -> list[str]:
        answer = await browser.get("/parts/search-ends", params={"list": where, "q": text})
        assert answer.status_code == 200
        return ends(answer.text)

    assert await after("stat") == ["status:"]
    assert await after("queue:mail -st") == ["queue:mail -status:"]
    assert await after("status:de") == ["status:dead", "status:succeeded"]
    assert await after("status:dead,can") == ["status:dead,cancelled"]
    assert await after("queue:m") == ["queue:mail"]
    assert await after("handler:app") == ["handler:app.mail:send"]
    assert await after("job:night") == ["job:'nightly etl'", "job:nightly-sync"]
    assert await after("tag:b") == ["tag:billing"]
    assert await after("late:") == ["late:>1s", "late:>30s", "late:>5m", "late:>1h", "late:<1s"]
    assert await after("status:pau", "/jobs") == ["status:paused"]
    assert await after("zone:Europe/Ber", "/jobs") == ["zone:Europe/Berlin"]
    assert await after("nothing:x") == []


async def test_payload_fields_are_completed_only_for_editors(log_in: Entering) -> None:
    for role, expected in (("viewer", []), ("editor", ["payload."])):
        browser = await log_in(role)
        assert ends((await browser.get("/parts/search-ends", params={"q": "payl"})).text) == expected


async def test_every_end_that_is_offered_is_a_search_that_is_understood(browser: Browser, store: Store) -> None:
    await make_job(store, name="nightly etl", tags=("a,b",))
    for where in ("/executions", "/jobs"):
        for field in ends((await browser.get("/parts/search-ends", params={"list": where, "q": ""})).text):
            for text in ends((await browser.get("/parts/search-ends", params={"list": where, "q": field})).text):
                page = await browser.get(where, params={"q": text.replace("'", '"')})
                assert 'id="search-error"' not in page.text, text


# the side


async def test_the_side_counts_what_its_pages_show(browser: Browser, store: Store) -> None:
    assert 'class="n"' not in (await browser.get("/jobs")).text
    await make_job(store, name="one")
    await make_job(store, name="two")
    await enqueue(store, queue="mail", max_retries=0)
    await record(store, [found(one, Failed(FAILURE)) for one in await claim_all(store)])
    await enqueue(store, queue="crm")
    # The claim above registered a worker, too.
    await make_node(store, NodeKind.WORKER, slots=1)

    part = (await browser.get("/parts/nav?section=/jobs", headers=PARTIAL)).text
    counts = dict(re.findall(r'<a href="([^"]+)"[^>]*>.*?</svg>[^<]*<span class="n[^"]*">([^<]*)</span>', part))

    assert counts == {"/alerts": "0", "/jobs": "2", "/dead": "1", "/queues": "1", "/workers": "2"}
    page = (await browser.get("/jobs")).text
    assert '<span class="n">2</span>' in page
    assert '<span class="n bad">1</span>' in page
    assert part.count('aria-current="page"') == 1


# numbers and their lists


async def test_what_is_late_now_is_just_what_its_list_shows(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    await make_recurring(store)
    await enqueue(store, handler="app:late")
    await enqueue(store, handler="app:late")
    clock.advance(seconds(60))
    await enqueue(store, handler="app:fresh")
    job = await make_job(store, name="tight", max_running=1)
    for _ in range(2):
        await browser.post(f"/api/v1/jobs/{job.id}/trigger")
    clock.advance(seconds(1))

    page = (await browser.get("/")).text
    link, number = re.findall(r'href="([^"]+)"><b>([^<]*)</b><span>late now', page)[0]
    rows = (await browser.get(link.replace("&amp;", "&"))).text

    assert number == "2"
    assert rows.count('<tr id="row-exe_') == 2
    assert "app:fresh" not in rows


async def test_failed_attempts_are_just_what_their_list_shows(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    await make_recurring(store)
    await _fail(store, 2, handler="app:old")
    clock.advance(seconds(3_700))
    await _fail(store, 3, handler="app:new", max_retries=5)
    await enqueue(store)
    await record(store, [found(one, started_at=clock.now()) for one in await claim_all(store)])
    await store.rollups.fold()

    page = (await browser.get("/")).text
    link, number = re.findall(r'href="([^"]+)"><b>([^<]*)</b><span>failed attempts', page)[0]
    rows = (await browser.get(link)).text

    assert (link, number) == ("/attempts", "75.0 %")
    assert rows.count('<tr id="attempt-exe_') == 3
    assert "3 attempts</h2>" in rows
    assert "app:old" not in rows
    assert "retrying" in rows


async def test_a_long_list_of_failed_attempts_goes_on(
    browser: Browser, store: Store, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeball.dashboard.pages.executions._ATTEMPTS_PAGE", 2)
    for _ in range(3):
        await _fail(store, 1)
        clock.advance(seconds(1))

    first = (await browser.get("/attempts")).text
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    second = (await browser.get(older[1].replace("&amp;", "&"))).text

    shown = [re.findall(r'<tr id="(attempt-exe_\w+-1)"', page) for page in (first, second)]
    assert [len(rows) for rows in shown] == [2, 1]
    assert not set(shown[0]) & set(shown[1])
    assert (await browser.get("/attempts?cursor=nonsense")).status_code == 200


async def _fail(store: Store, number: int, **fields: Any) -> None:
    for _ in range(number):
        await enqueue(store, **{"max_retries": 0} | fields)
    claimed = await claim_all(store, handlers=[HANDLER, fields.get("handler", HANDLER)])
    now = store.env.clock.now()
    await record(store, [found(one, Failed(FAILURE), started_at=now, finished_at=now) for one in claimed])
