"""The history on Live and on the pages of a job, a queue and a handler: charts whose bars lead to their runs."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import orjson
import pytest

from tests.dashboard.conftest import Browser
from tests.store.test_rollups import fold_all, put_finished
from tests.support.factories import enqueue, make_job, make_recurring
from tests.support.query_plans import rows_touched
from timeball.application.queries.metrics import MetricsScope
from timeball.dashboard.history import SPANS
from timeball.domain.job import Job
from timeball.domain.values.ids import first_id_at, format_job_id
from timeball.runtime import ServerRuntime
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.testing import VirtualClock

_NUMBERS = count(1)
PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}
HOSTILE = "<b>\"'& x"


async def ended(store: Store, job: Job, ago: timedelta, *states: str) -> None:
    """Runs of a job that were due and ended ten minutes and so long ago, each within two seconds."""
    at = store.env.clock.now() - ago - timedelta(minutes=10)
    async with store.database.transaction() as connection:
        for state in states:
            # The id of an occurrence begins with its instant.
            run_id = UUID(int=first_id_at(at).int | next(_NUMBERS))
            own = {"id": run_id, "job_id": job.id, "queue": job.queue, "handler": job.handler, "origin": "schedule"}
            await put_finished(connection, store, at, **own | {"state": state})


def history_in(page: str) -> str:
    found = re.search(r'<section class="card" aria-labelledby="history-title".*?</section>', page, re.DOTALL)
    assert found, "the page has no history"
    return found[0]


def bars_in(page: str) -> list[tuple[str, str]]:
    """Address and words of each bar that leads somewhere, of the upper chart."""
    upper = history_in(page).split("</svg>")[0]
    pairs = re.findall(r'<a href="([^"]*)" tabindex="-1"><title>([^<]*)</title>', upper)
    return [(html.unescape(address), html.unescape(words)) for address, words in pairs]


async def history_of(browser: Browser, path: str) -> str:
    """The history of a page; that of Live comes behind its first view."""
    return (await (browser.get("/?part=history", headers=PARTIAL) if path == "/" else browser.get(path))).text


def pages_of(job: Job) -> Sequence[str]:
    return ["/", f"/jobs/{format_job_id(job.id)}", f"/queues/one?name={job.queue}", f"/handlers/one?name={job.handler}"]


async def test_a_bar_leads_to_the_runs_that_it_counts(browser: Browser, store: Store) -> None:
    job = await make_recurring(store, name="nightly", queue="mail", handler="test.log")
    other = await make_recurring(store, name="other", queue="slow", handler="tests:other")
    await ended(store, job, timedelta(hours=3), "succeeded", "succeeded", "dead")
    await ended(store, other, timedelta(hours=3), "succeeded")
    await ended(store, job, timedelta(hours=8), "cancelled")
    await fold_all(store)

    for path in pages_of(job):
        bars = bars_in(await history_of(browser, path))
        (early, late) = bars
        runs = (await browser.get(late[0])).text
        shown = len(set(re.findall(r'href="/executions/(exe_\w+)"', runs)))

        expected = (3, 1, 4) if path == "/" else (2, 1, 3)
        assert f"{expected[0]} succeeded, {expected[1]} died" in late[1], path
        assert shown == expected[2], path
        assert "1 cancelled or skipped" in early[1]


async def test_one_sentence_says_what_the_chart_shows_and_a_table_has_its_numbers(
    browser: Browser, store: Store
) -> None:
    job = await make_recurring(store, queue="mail")
    await ended(store, job, timedelta(hours=3), *["succeeded"] * 3, "dead")
    await ended(store, job, timedelta(hours=8), "skipped")
    await fold_all(store)

    history = history_in((await browser.get("/queues/one?name=mail")).text)

    assert (
        "In the last 24 hours 75 % of 4 runs succeeded, 1 died, 1 were cancelled or skipped; most ended on" in history
    )
    rows = re.findall(r"<tr><td.*?</tr>", history)
    assert len(rows) == 2, "steps without runs are left out"
    assert re.findall(r'<td class="num"[^>]*>([^<]*)<', rows[0]) == ["3", "1", "0", "2.0 s"]


async def test_the_span_stays_in_the_address_and_says_how_far_the_chart_reaches(browser: Browser, store: Store) -> None:
    job = await make_recurring(store, queue="mail")
    for days in (0.5, 5, 20, 80):
        await ended(store, job, timedelta(days=days), "succeeded")
    await fold_all(store)

    counts = {}
    for span in SPANS:
        history = history_in((await browser.get(f"/queues/one?name=mail&span={span}")).text)
        counts[span] = len(bars_in(history))
        assert re.findall(r'href="([^"]*)" aria-current="true"', history) == (
            ["/queues/one?name=mail"] if span == "24h" else [f"/queues/one?name=mail&amp;span={span}"]
        )
        assert f'hx-get="/queues/one?name=mail&amp;span={span}&amp;part=history"' in history
        part = (await browser.get(f"/queues/one?name=mail&span={span}&part=history", headers=PARTIAL)).text
        assert len(bars_in(part)) == counts[span]
        assert "<html" not in part

    assert counts == {"24h": 1, "7d": 2, "30d": 3, "90d": 4}


async def test_a_span_that_does_not_exist_is_a_day(browser: Browser, store: Store) -> None:
    await make_recurring(store)

    history = history_in((await browser.get("/?span=century&part=history", headers=PARTIAL)).text)

    assert "Nothing ended in the last 24 hours." in history
    assert "<svg" not in history


async def test_a_refresh_of_another_part_does_not_read_the_history(browser: Browser, store: Store) -> None:
    job = await make_recurring(store, queue="mail", handler="test.log")

    for path in pages_of(job)[1:]:
        assert "history-title" not in (await browser.get(path, headers=PARTIAL)).text


async def test_a_job_shows_its_success_rate_and_how_long_it_takes(browser: Browser, store: Store) -> None:
    job = await make_recurring(store)
    await ended(store, job, timedelta(hours=3), *["succeeded"] * 3, "dead")
    await fold_all(store)

    history = history_in((await browser.get(f"/jobs/{format_job_id(job.id)}")).text)

    facts = dict(re.findall(r"<small>([^<]*)</small> <b>([^<]*)</b>", history))
    assert facts["success rate"] == "75 %"
    assert facts["p50 duration"] == facts["p95 duration"] == "2.0 s"


async def test_a_one_off_has_no_history_of_its_own(browser: Browser, store: Store, clock: VirtualClock) -> None:
    job = await make_job(store, scheduled_at=clock.now() + timedelta(hours=1))

    assert "history-title" not in (await browser.get(f"/jobs/{format_job_id(job.id)}")).text


async def test_hostile_names_stay_text_and_a_name_that_no_search_can_name_leads_nowhere(
    browser: Browser, store: Store
) -> None:
    job = await make_recurring(store, queue=HOSTILE)
    await ended(store, job, timedelta(hours=3), "succeeded")
    await fold_all(store)

    history = history_in((await browser.get("/queues/one", params={"name": HOSTILE})).text)

    assert "<b>&#34;" not in history
    assert "1 succeeded, 0 died" in history
    assert bars_in(history) == [], "the list without the name would be that of all queues"


async def test_a_wrong_limit_keeps_the_history_of_its_queue(browser: Browser, store: Store) -> None:
    await enqueue(store, queue="mail")

    answer = await browser.submit("/queues/limit", name="mail", max_running="many")

    assert answer.status_code == 422
    assert 'href="/queues/one?name=mail&amp;span=7d"' in history_in(answer.text)


@pytest.mark.parametrize("kind", ["installation", "job", "queue", "handler"])
async def test_a_chart_of_three_months_reads_one_row_an_hour(store: Store, parts: ServerRuntime, kind: str) -> None:
    """And no sketches, which are most of a row."""
    jobs = [await make_recurring(store, name=f"job-{number}", handler=f"tests:{number}") for number in range(6)]
    for job in jobs:
        for days in range(0, 90, 9):
            await ended(store, job, timedelta(days=days, hours=1), "succeeded", "succeeded")
    await fold_all(store)
    scopes = {
        "installation": MetricsScope(),
        "job": MetricsScope(job_id=jobs[0].id),
        "queue": MetricsScope(queue="default"),
        "handler": MetricsScope(handler="tests:0"),
    }
    asked: dict[str, Any] = {}
    fetch = store.database.fetch

    async def noting(name: str, *given: Any, **values: Any) -> Any:
        asked.update({"name": name, **values})
        return await fetch(name, *given, **values)

    store.database.fetch = noting  # type: ignore[method-assign]
    span = SPANS["90d"]
    series = await parts.queries.metrics.history(span.window, span.step, scopes[kind])
    statement = all_statements()[asked["name"]]
    async with store.database.connection() as connection:
        await connection.execute("ANALYZE timeball.rollup")
        text = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.numbered()}"
        plan = await connection.fetchval(text, *(asked.get(name) for name in statement.parameters))

    assert asked["name"] == "rollup_series"
    assert sum(rows for _, rows in rows_touched(orjson.loads(plan)[0]["Plan"])) == 10
    assert asked["with_sketches"] is False
    assert len(series.points) == 90
    assert sum(point.counts.succeeded for point in series.points) == 20 * (
        6 if kind in ("installation", "queue") else 1
    )
    assert not any(point.duration.total for point in series.points)
