"""The page of a tag and the page of a worker."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

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
    record,
    seconds,
)
from timeball.domain.execution import Failed
from timeball.domain.node import NodeKind
from timeball.domain.values.ids import Incarnation, format_execution_id, format_id
from timeball.store.store import Store
from timeball.testing import VirtualClock

Entering = Callable[[str], Awaitable[Browser]]
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
HOSTILE = "<b>\"'& x"
NEVER = format_id("wrk", Incarnation(UUID(int=7)))


async def read_part(browser: Browser, path: str, part: str) -> str:
    """A part that the page fetches after it is shown."""
    separator = "&" if "?" in path else "?"
    answer = await browser.get(f"{path}{separator}part={part}", headers=PARTIAL)
    assert answer.status_code == 200
    return answer.text


async def run_some(store: Store, worker: Incarnation, number: int = 1, outcome: Any = None, **fields: Any) -> list[str]:
    """Enqueue executions, and let a worker end them; their ids."""
    ids = [await enqueue(store, **fields) for _ in range(number)]
    claimed = await claim_all(store, worker=worker, handlers=[fields.get("handler", HANDLER)])
    now = store.env.clock.now()
    await record(store, [found(one, outcome, started_at=now, finished_at=now) for one in claimed])
    return [format_execution_id(id_) for id_ in ids]


# a tag


async def test_a_tag_shows_its_jobs_their_executions_and_failures(browser: Browser, store: Store) -> None:
    worker = await make_node(store)
    await make_recurring(store, name="bills", tags=("finance", "monthly"))
    await make_recurring(store, name="other", tags=("search",))
    (well,) = await run_some(store, worker, tags=("finance",))
    (dead,) = await run_some(store, worker, outcome=Failed(FAILURE), tags=("finance",), max_retries=0)
    (apart,) = await run_some(store, worker, outcome=Failed(FAILURE), max_retries=0)

    page = (await browser.get("/tags/finance")).text
    runs = await read_part(browser, "/tags/finance", "runs")

    assert "<h1>finance</h1>" in page
    assert "bills" in page
    assert "other" not in page
    assert 'hx-get="/tags/finance?part=runs"' in page
    latest, _, failures = runs.partition("<h2>Failures</h2>")
    assert f"/executions/{well}" in latest
    assert f"/executions/{dead}" in latest
    assert f"/executions/{dead}" in failures
    assert f"/executions/{well}" not in failures
    assert apart not in runs


async def test_a_job_leads_to_the_pages_of_its_tags(browser: Browser, store: Store) -> None:
    job = await make_recurring(store, tags=("finance", "a/b c", ".."))

    links = re.findall(r'class="tag" href="([^"]+)"', (await browser.get(f"/jobs/{job.id}")).text)

    assert links == ["/tags/finance", "/tags/a%2Fb%20c", "/jobs?q=tag%3A%22..%22"]
    for link in links:
        assert str(job.name) in (await browser.get(link)).text


async def test_the_jobs_of_a_tag_are_shown_a_page_at_a_time(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeball.dashboard.pages.jobs._PAGE", 2)
    names = {str((await make_recurring(store, tags=("many",))).name) for _ in range(3)}

    first = (await browser.get("/tags/many")).text
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    second = (await browser.get(older[1].replace("&amp;", "&"))).text

    shown = [{name for name in names if name in page} for page in (first, second)]
    assert [len(some) for some in shown] == [2, 1]
    assert shown[0] | shown[1] == names


async def test_a_tag_without_jobs_says_so(browser: Browser) -> None:
    page = (await browser.get("/tags/nothing")).text

    assert "No job has this tag" in page
    assert "Nothing of these jobs has run yet" in await read_part(browser, "/tags/nothing", "runs")


async def test_a_tag_stays_text(browser: Browser, store: Store) -> None:
    await make_job(store, name=HOSTILE, tags=(HOSTILE,), interval_seconds=60)

    page = (await browser.get("/tags/%3Cb%3E%22%27%26%20x")).text

    assert "<b>" not in page.partition("<main")[2].partition("</h1>")[0]
    assert "&lt;b&gt;" in page


# a worker


@pytest.mark.parametrize("by", ["id", "name"])
async def test_a_worker_shows_what_it_runs_serves_and_knows(
    browser: Browser, store: Store, clock: VirtualClock, by: str
) -> None:
    worker = await make_node(
        store, name="web-1/4711", slots=4, queues=("mail",), handlers=("app.mail:send", HANDLER), version="1.2.3"
    )
    await store.nodes.renew(worker, busy=1)
    running = await enqueue(store, queue="mail")
    await claim_all(store, worker=worker, queues=["mail"])
    clock.advance(seconds(2))
    path = f"/workers/{format_id('wrk', worker) if by == 'id' else 'web-1%2F4711'}"

    page = (await browser.get(path)).text

    assert "<h1>web-1/4711</h1>" in page
    assert "<b>1 of 4</b><span>slots busy" in page
    assert f"/executions/{format_execution_id(running)}" in page
    assert 'href="/queues/one?name=mail"' in page
    assert 'href="/handlers/one?name=app.mail%3Asend"' in page
    assert "<dt>Version</dt><dd>1.2.3</dd>" in page
    assert "<dt>Lease</dt><dd>renewed <time" in page
    assert "Drain" in page


async def test_a_worker_shows_what_it_ran_how_late_and_what_failed(
    browser: Browser, store: Store, clock: VirtualClock
) -> None:
    worker, other = await make_node(store, name="web-1/1"), await make_node(store, name="web-2/2")
    (well,) = await run_some(store, worker)
    (retried,) = await run_some(store, worker, outcome=Failed(FAILURE), max_retries=3)
    (elsewhere,) = await run_some(store, other)
    await run_some(store, other, outcome=Failed(FAILURE), max_retries=3)
    clock.advance(seconds(1))

    history = await read_part(browser, f"/workers/{format_id('wrk', worker)}", "history")

    ended, _, failed = history.partition("Failed attempts")
    assert f"/executions/{well}" in ended
    assert elsewhere not in history
    assert "the median started" in ended
    assert f"/executions/{retried}" in failed
    assert failed.count('<tr id="attempt-') == 1


async def test_what_a_worker_ran_is_shown_a_page_at_a_time(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeball.dashboard.pages.cluster._PAGE", 2)
    worker = await make_node(store)
    ids = set(await run_some(store, worker, 3))
    path = f"/workers/{format_id('wrk', worker)}"

    first = await read_part(browser, path, "history")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    assert "part=" not in older[1]
    second = await read_part(browser, older[1], "history")

    shown = [{id_ for id_ in ids if f"/executions/{id_}" in page} for page in (first, second)]
    assert [len(some) for some in shown] == [2, 1]
    assert shown[0] | shown[1] == ids


async def test_a_worker_that_is_gone_still_has_the_page_of_what_it_ran(browser: Browser, store: Store) -> None:
    worker = await make_node(store, name="web-1/4711")
    (run,) = await run_some(store, worker)
    await store.nodes.remove(worker)
    path = f"/workers/{format_id('wrk', worker)}"

    page = (await browser.get(path)).text

    assert "This worker has ended, or its lease ran out." in page
    assert "Drain" not in page
    assert f"/executions/{run}" in await read_part(browser, path, "history")


@pytest.mark.parametrize("reference", ["nothing", "web-9%2F1", NEVER])
async def test_a_worker_that_never_was_is_not_found(browser: Browser, reference: str) -> None:
    assert (await browser.get(f"/workers/{reference}")).status_code == 404


async def test_workers_are_called_by_their_names_and_lead_to_their_pages(browser: Browser, store: Store) -> None:
    worker = await make_node(store, name="web-1/4711", queues=("default",))
    (run,) = await run_some(store, worker, outcome=Failed(FAILURE), max_retries=0)
    id_ = format_id("wrk", worker)
    link = f'<a href="/workers/{id_}" title="{id_}">web-1/4711</a>'

    assert link in (await browser.get(f"/executions/{run}")).text
    assert link in (await browser.get("/attempts")).text
    assert f'<a href="/workers/{id_}">web-1/4711</a>' in (await browser.get("/workers")).text
    assert '<a href="/workers/web-1%2F4711">web-1/4711</a>' in (await browser.get("/queues/one?name=default")).text
    await store.nodes.remove(worker)
    page = (await browser.get(f"/executions/{run}")).text
    assert f'<a href="/workers/{id_}" title="{id_}">wrk_…{id_[-6:]} (gone)</a>' in page


async def test_a_scheduler_has_a_page_with_its_shards(browser: Browser, store: Store) -> None:
    owner = await make_owner(store)
    (node,) = await store.nodes.list()

    page = (await browser.get(f"/workers/{format_id('sch', node.incarnation)}")).text

    assert owner.epochs
    assert "<dt>Kind</dt><dd>scheduler</dd>" in page
    assert "<dt>Shards</dt>" in page
    assert "part=history" not in page


async def test_a_name_that_a_worker_and_a_scheduler_share_means_the_worker(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.SCHEDULER, name="app-1/1")
    await make_node(store, NodeKind.WORKER, name="app-1/1")

    assert "<dt>Kind</dt><dd>worker</dd>" in (await browser.get("/workers/app-1%2F1")).text


async def test_a_viewer_sees_a_worker_without_buttons(log_in: Entering, store: Store) -> None:
    worker = await make_node(store)
    viewer = await log_in("viewer")

    assert "Drain" not in (await viewer.get(f"/workers/{format_id('wrk', worker)}")).text
