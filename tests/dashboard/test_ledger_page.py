"""The Ledger tab of a job: its days, and what became of its occurrences."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from tests.dashboard.conftest import Browser, open_browser
from tests.engine.support import ManualScheduler, create, start_scheduler, start_worker
from tests.support.factories import seconds
from timeball.api.server import OperationLoop
from timeball.application.commands import Commands
from timeball.application.commands.requests import Actor
from timeball.config.settings import Settings
from timeball.domain.values.ids import format_job_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing.environment import START

TAB = "/jobs/beat?tab=ledger"


@pytest.fixture
async def node(store: Store) -> ManualScheduler:
    """A job of every five seconds; nothing was alive for 55 of them."""
    node, worker = await start_scheduler(store), await start_worker(store)
    await create(store, name="beat", interval_seconds=5)
    await node.run_until(START + seconds(12), worker.work)
    node.clock.advance_to(START + seconds(67))
    await node.run_until(START + seconds(72), worker.work)
    await store.rollups.fold()
    return node


async def shown(browser: Browser, path: str) -> str:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    assert "style=" not in answer.text
    return unescape(answer.text)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def entries(page: str) -> list[str]:
    body = page.partition('id="entries"')[2]
    return [text_of(row) for row in re.findall(r"<tr><td class=\"name\">.*?</tr>", body, re.DOTALL)]


@pytest.mark.usefixtures("node")
async def test_the_tab_says_how_many_were_missed_and_why(browser: Browser) -> None:
    page = await shown(browser, TAB)

    rows = entries(page)
    assert len(rows) == 10
    (missed,) = [row for row in rows if "skipped" in row]
    assert " 5 5 missed, misfire " in missed
    assert [("ran" in row, "succeeded" in row) for row in rows if row is not missed] == [(True, True)] * 9


@pytest.mark.usefixtures("node")
async def test_a_day_of_the_calendar_says_what_became_of_it_and_leads_to_its_entries(browser: Browser) -> None:
    page = await shown(browser, TAB)

    (day,) = re.findall(r'<td class="tone-warn ?"><a href="([^"]+)" title="([^"]+)" aria-label="([^"]+)">', page)
    assert day[1] == day[2] == f"{START:%a %-d %b %Y}: 9 ran; 5 missed, misfire"
    assert page.count('<tr><th scope="row">') == 7
    of_day = await shown(browser, day[0].partition("#")[0])
    assert len(entries(of_day)) >= 10
    assert "The last week" in of_day


@pytest.mark.usefixtures("node")
async def test_the_days_can_be_read_as_a_table(browser: Browser) -> None:
    page = await shown(browser, f"{TAB}&view=table")

    assert 'class="heat days"' not in page
    days = page.partition('id="entries"')[0]
    (row,) = [text_of(row) for row in re.findall(r"<tr><td class=\"name\">.*?</tr>", days, re.DOTALL)]
    assert row.split()[-5:] == ["missed", "9", "0", "0", "5"]


@pytest.mark.usefixtures("node")
async def test_entries_are_filtered_and_paged(browser: Browser) -> None:
    skipped = entries(await shown(browser, f"{TAB}&verdict=skipped&reason=misfire"))
    overlap = await shown(browser, f"{TAB}&verdict=skipped&reason=overlap")
    expected = await shown(browser, f"{TAB}&verdict=expected")
    older = re.search(r'rel="next" href="([^"]+)"', expected)

    assert len(skipped) == 1
    assert entries(overlap) == []
    assert "Nothing matches" in overlap
    assert len(entries(expected)) == 50
    assert older is not None
    following = entries(await shown(browser, older[1]))
    assert len(following) == 50
    assert set(following).isdisjoint(entries(expected))


async def test_a_pause_is_shown_as_what_it_skips_and_will_skip(
    browser: Browser, node: ManualScheduler, store: Store, parts: ServerRuntime
) -> None:
    job = await parts.queries.jobs.find("beat")
    await Commands(store, store.env).jobs.pause(job.id, None, Actor("ana"))
    node.clock.advance("1m")

    past = entries(await shown(browser, TAB))
    ahead = entries(await shown(browser, f"{TAB}&verdict=expected"))

    assert "12 skipped, paused" in past[0]
    (skips,) = ahead
    assert "will be skipped, paused" in skips
    assert " 17,280 " in skips


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("query", ["verdict=x&reason=y", "cursor=", "from=&until="])
async def test_words_that_make_no_sense_show_the_usual_list(browser: Browser, query: str) -> None:
    assert len(entries(await shown(browser, f"{TAB}&{query}"))) == 10


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("query", ["from=nonsense", "cursor=nonsense"])
async def test_a_span_or_a_cursor_that_cannot_be_read_is_refused(browser: Browser, query: str) -> None:
    assert (await browser.get(f"{TAB}&{query}")).status_code == 422


async def test_a_job_that_never_ran_has_an_empty_ledger(browser: Browser, store: Store) -> None:
    await create(store, name="beat", interval_seconds=3_600)

    page = await shown(browser, TAB)

    assert "Nothing was due in this time" in page
    assert entries(page) == []


@pytest.mark.usefixtures("node")
async def test_all_addresses_of_the_tab_lie_below_the_prefix(parts: ServerRuntime) -> None:
    async with open_browser(replace(parts, settings=Settings(url_prefix="/below"))) as browser:
        page = (await browser.get(f"/below{TAB}")).text

        foreign = [href for href in re.findall(r'href="(/[^"]*)"', page) if not href.startswith("/below/")]
        assert foreign == []


@pytest.mark.usefixtures("node")
async def test_the_timeline_draws_what_was_missed_and_leads_to_the_ledger(
    browser: Browser, parts: ServerRuntime
) -> None:
    job = format_job_id((await parts.queries.jobs.find("beat")).id)

    drawing = await shown(browser, "/timeline?span=1h")
    table = await shown(browser, "/timeline?span=1h&view=table")

    (mark,) = re.findall(r'<rect class="mark skipped tone-warn"[^>]*data-go="([^"]+)"[^>]*><title>([^<]+)', drawing)
    assert mark[0].startswith(f"/jobs/{job}?tab=ledger&verdict=skipped&from=")
    assert mark[1] == f"5 missed, misfire: {START:%a} 12:00:15 – 12:00:35"
    assert "; 5 missed, misfire" in drawing, "the sentence of the drawing"
    assert "5 missed, misfire" in table
    ledger = re.search(r'href="(/jobs/[^"]+tab=ledger[^"]+)"', table)
    assert ledger is not None
    assert len(entries(await shown(browser, ledger[1]))) == 1


@pytest.mark.usefixtures("node")
async def test_live_names_a_job_that_missed_occurrences_and_leads_to_its_ledger(
    browser: Browser, parts: ServerRuntime
) -> None:
    job = format_job_id((await parts.queries.jobs.find("beat")).id)

    page = await shown(browser, "/")

    assert "beat: 5 missed, misfire, in the last 24 hours" in page
    assert f'href="/jobs/{job}?tab=ledger&verdict=skipped"' in page


async def test_what_was_missed_is_named_until_it_was_seen_and_again_when_more_is_missed(
    browser: Browser, parts: ServerRuntime, node: ManualScheduler, store: Store
) -> None:
    words = "5 missed, misfire, in the last 24 hours"
    mark = re.findall(r'name="mark" value="(\w+)"', await shown(browser, "/"))[0]

    for wrong in ("", "x" * 33, "no mark"):
        await browser.submit("/seen", mark=wrong)
    assert words in await shown(browser, "/")
    await browser.submit("/seen", mark=mark)
    seen = await shown(browser, "/")
    async with open_browser(parts) as other:
        elsewhere = await shown(other, "/")
    node.clock.advance_to(START + seconds(127))
    await node.tick()
    await store.rollups.fold()
    again = await shown(browser, "/")

    assert words not in seen
    assert words in elsewhere
    assert "beat: 10 missed, misfire" in again


@pytest.mark.usefixtures("node")
async def test_a_backfill_that_cannot_be_is_refused_before_and_after_it_is_started(browser: Browser) -> None:
    span = {"from": "2026-03-03T00:00", "until": "2026-03-02T00:00", "reason": "the outage"}

    counted = await browser.submit("/parts/backfill/beat", **span)
    refused = await browser.submit("/jobs/beat/backfill", **span)

    assert 'class="error"' in counted.text
    assert (await browser.get("/jobs/beat/backfill")).status_code == 200
    assert (await browser.get("/jobs/beat/backfill?from=nonsense")).status_code == 422
    assert refused.status_code == 422
    assert 'value="the outage"' in refused.text


@pytest.mark.usefixtures("node")
async def test_what_was_missed_is_filled_in_from_the_tab(browser: Browser, store: Store) -> None:
    (link,) = re.findall(r'href="(/jobs/[^"]+/backfill[^"]+)"', await shown(browser, TAB))
    form = await shown(browser, link)
    span = dict(re.findall(r'name="(from|until)" type="datetime-local" value="([^"]+)"', form))

    counted = unescape((await browser.submit(re.findall(r'hx-post="(/parts/backfill[^"]+)"', form)[0], **span)).text)
    begun = await browser.submit(link.partition("?")[0], **span, max_running="2", reason="the outage")
    paused = await browser.submit(f"{begun.url.path}/pause")
    resumed = await browser.submit(f"{begun.url.path}/resume")
    await OperationLoop(Commands(store, store.env), store.env.new_id()).round()
    after = await shown(browser, TAB)

    assert "5 occurrences would run." in text_of(counted)
    assert " skipped misfire 5 5 " in text_of(counted)
    assert begun.url.path.startswith("/operations/op_")
    assert "<h1>Backfill beat</h1>" in begun.text
    assert ">Backfill beat</a>" in (await browser.get("/operations")).text
    assert "/resume" in paused.text
    assert "/pause" in resumed.text
    (missed,) = [row for row in entries(after) if "skipped" in row]
    assert "5 missed, misfire; 2 filled in" in missed
    assert [row for row in entries(after) if "backfill" in row]
