"""Live: the first steps, the numbers, concerns, starts, charts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.dashboard.conftest import Browser, open_browser
from tests.store.test_rollups import fold_all, put_finished
from tests.support.factories import claim_all, enqueue, found, make_job, make_node, make_recurring, record, seconds
from timeball.config.settings import Settings
from timeball.dashboard.internal_api import FRESH_SECONDS, ReadCache
from timeball.dashboard.pages.live import DEMO_JOB
from timeball.domain.node import NodeKind
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

Entering = Callable[[str], Awaitable[Browser]]
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
MOST_BYTES = 130 * 1024


# first steps


async def test_the_first_visit_says_how_to_begin(browser: Browser) -> None:
    page = (await browser.get("/")).text

    assert "Welcome to Timeball" in page
    assert "timeball worker app:tb" in page
    assert "http://localhost:8080/api/v1/jobs" in page


async def test_a_worker_that_came_is_ticked_off(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, name="web-1/80", slots=4)

    page = (await browser.get("/", headers=PARTIAL)).text

    assert "web-1/80" in page
    assert "timeball worker app:tb" not in page


async def test_the_demo_job_runs_at_once_and_the_checklist_becomes_live(browser: Browser, parts: ServerRuntime) -> None:
    answer = await browser.submit("/welcome/demo")

    assert "The demo job runs" in answer.text
    assert "Needs attention" in answer.text
    job = await parts.queries.jobs.find(DEMO_JOB["name"])
    current = await parts.queries.executions.current_of(job.id)
    assert current is not None
    assert current.state == "queued"
    assert (await browser.get("/", headers=PARTIAL)).headers["hx-refresh"] == "true"


async def test_the_demo_job_is_made_once_however_often_it_is_asked_for(browser: Browser, parts: ServerRuntime) -> None:
    await browser.submit("/welcome/demo")
    answer = await browser.submit("/welcome/demo")

    assert answer.status_code == 200
    assert "The demo job runs" in answer.text


async def test_a_viewer_is_not_offered_what_they_may_not_do(log_in: Entering) -> None:
    viewer = await log_in("viewer")

    page = (await viewer.get("/")).text

    assert "Run the demo job" not in page
    assert "may not create jobs" in page
    assert (await viewer.submit("/welcome/demo")).status_code == 403


# live


async def test_every_number_leads_to_the_list_it_counts(browser: Browser, store: Store, clock: VirtualClock) -> None:
    await make_recurring(store)
    await enqueue(store)
    await enqueue(store)
    clock.advance(seconds(90))

    page = (await browser.get("/")).text

    figures = dict(re.findall(r'<a class="figure[^"]*" href="([^"]+)"><b>([^<]*)</b>', page))
    assert figures["/executions?status=queued"] == "2"
    assert figures["/queues"] == "1 min"
    assert figures["/dead"] == "0"


async def test_what_needs_a_human_is_said_with_the_way_there(browser: Browser, store: Store) -> None:
    await make_recurring(store)
    await make_node(store, NodeKind.WORKER, slots=1, queues=("other",))
    await enqueue(store, queue="mail")

    page = (await browser.get("/")).text

    assert "1 waiting, no worker serves it" in page
    assert 'href="/queues/one?name=mail">Open' in page


async def test_runs_that_tell_their_progress_are_shown_with_it(browser: Browser, store: Store) -> None:
    await make_recurring(store, 3600, name="there")
    for _ in range(2):
        await enqueue(store)
    (claimed, _) = await claim_all(store)
    assert "In progress" not in (await browser.get("/")).text
    await store.executions.report_progress(claimed, 0.42, HOSTILE)

    page = (await browser.get("/?part=now", headers=PARTIAL)).text

    assert page.count("42 % done") == 1
    assert HOSTILE not in page


async def test_starts_show_how_late_they_were(browser: Browser, store: Store, clock: VirtualClock) -> None:
    await make_job(store, name=HOSTILE)
    await enqueue(store, handler="tests:noop")
    clock.advance(seconds(2))
    await record(store, [found(one, started_at=clock.now()) for one in await claim_all(store)])

    page = (await browser.get("/")).text

    assert re.search(r'<li data-id="exe_\w+">.*?tests:noop.*?\+2\.0 s', page, re.DOTALL)
    assert 'class="late-mark"' in page


async def test_the_charts_count_what_was_folded(browser: Browser, store: Store) -> None:
    await make_recurring(store)
    for _ in range(3):
        await enqueue(store)
    await record(store, [found(one) for one in await claim_all(store)])
    await store.rollups.fold()

    page = (await browser.get("/")).text

    assert "3 executions done and 0 attempts failed in the last hour" in page
    assert "p99" in page


async def test_what_is_due_next_stands_in_order(browser: Browser, store: Store) -> None:
    for every in (300, 60, 120):
        await make_recurring(store, every=every, name=f"every-{every}")

    part = (await browser.get("/?part=next", headers=PARTIAL)).text

    assert re.findall(r"every-\d+", part) == ["every-60", "every-120", "every-300"]


async def test_each_part_comes_alone_when_it_is_refreshed(browser: Browser, store: Store) -> None:
    await make_recurring(store, name=HOSTILE)

    for part in ("now", "charts", "next"):
        text = (await browser.get(f"/?part={part}", headers=PARTIAL)).text
        assert f'id="{part}"' in text
        assert "<html" not in text
        assert "<img src=x" not in text


async def test_the_page_lies_below_the_prefix(parts: ServerRuntime, store: Store) -> None:
    async with open_browser(replace(parts, settings=Settings(url_prefix="/below"))) as browser:
        first = (await browser.get("/below/")).text
        await make_recurring(store)
        page = first + (await browser.get("/below/")).text

    addresses = re.findall(r'(?:href|action|src|hx-get|data-stream|data-ping)="(/[^"]*)"', page)
    assert len(addresses) > 40
    assert not [address for address in addresses if not address.startswith("/below")]


async def test_the_first_view_is_small(browser: Browser, store: Store, clock: VirtualClock) -> None:
    for number in range(30):
        await make_recurring(store, name=f"job-{number}")
    async with store.database.transaction() as connection:
        for hours in range(24):
            for number in range(3):
                state = "dead" if number == 0 else "succeeded"
                await put_finished(connection, store, clock.now() - timedelta(hours=hours), state=state)
    await fold_all(store)
    page = (await browser.get("/")).text

    sizes: dict[str, int] = {}
    waiting = set(re.findall(r'(?:href|src)="(/static/[^"#]+)', page))
    while waiting:
        address = waiting.pop()
        body = (await browser.get(address)).content
        sizes[address] = len(body)
        named = re.findall(r'(?:from|import)\s+"\./([\w.-]+)"', body.decode()) if address.endswith(".js") else []
        waiting |= {f"/static/{name}" for name in named} - sizes.keys()
    size = len(page.encode()) + sum(sizes.values())

    history = (await browser.get("/?part=history", headers=PARTIAL)).text
    assert history.count('tabindex="-1"') == 24, "a day of history"
    assert len(history.encode()) < 25_000
    assert "Ended executions of" not in page, "it comes behind the first view"
    assert len(sizes) >= 8
    assert size <= MOST_BYTES, size


# reads that many ask for


async def test_a_read_that_many_ask_for_is_made_once() -> None:
    asked: list[int] = []
    now = [0.0]
    reads = ReadCache(lambda: now[0])

    async def ask() -> bytes:
        asked.append(1)
        await asyncio.sleep(0)
        return b"answer"

    answers = await asyncio.gather(*(reads.get("question", ask) for _ in range(50)))
    assert set(answers) == {b"answer"}
    assert len(asked) == 1

    now[0] += FRESH_SECONDS + 0.01
    await reads.get("question", ask)
    assert len(asked) == 2

    reads.clear()
    await reads.get("question", ask)
    assert len(asked) == 3


async def test_a_read_that_failed_is_made_again() -> None:
    reads = ReadCache(lambda: 0.0)
    answers: Iterator[Exception | bytes] = iter([ValueError("no"), b"yes"])

    async def ask() -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="no"):
        await reads.get("question", ask)
    assert await reads.get("question", ask) == b"yes"


async def test_a_change_is_seen_at_once_by_the_next_refresh(browser: Browser, store: Store) -> None:
    await enqueue(store, queue="mail")
    assert "Pause" in (await browser.get("/queues", headers=PARTIAL)).text

    await browser.submit("/queues/pause", name="mail")

    assert "Resume" in (await browser.get("/queues", headers=PARTIAL)).text
