"""The pages of the timeline and the forecast."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from zoneinfo import ZoneInfo

import httpx
import pytest

from tests.dashboard.conftest import Browser, open_browser
from tests.support.factories import claim_all, enqueue, found, make_job, make_node, make_recurring, record, seconds
from timeball.config.settings import Settings
from timeball.dashboard import timeline_chart as drawing
from timeball.dashboard.context import ZONE_COOKIE
from timeball.dashboard.pages.forecast import shade
from timeball.dashboard.timeline_chart import parse_time_window
from timeball.domain.forecast.timeline import MarkRow, TimelineMark, TimelineMarkKind
from timeball.domain.node import NodeKind
from timeball.domain.values.ids import format_job_id
from timeball.runtime import ServerRuntime
from timeball.store.store import Store
from timeball.testing import VirtualClock

NOW = datetime(2026, 11, 16, 10, 20, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
VIEWS = ("/timeline", "/timeline?view=table", "/timeline?rows=queues", "/timeline?rows=workers", "/forecast")


@pytest.fixture
async def busy_store(store: Store, clock: VirtualClock) -> Store:
    """One run past, one running, some to come."""
    worker = await make_node(store, NodeKind.WORKER, slots=2, name=HOSTILE)
    await enqueue(store)
    await record(store, [found(one) for one in await claim_all(store)])
    await make_job(store, name=HOSTILE, interval_seconds=600, queue=HOSTILE)
    await enqueue(store, queue=HOSTILE)
    await claim_all(store, worker=worker)
    clock.advance(seconds(60))
    return store


# what every view must bear


async def test_an_empty_database_is_drawn_too(browser: Browser) -> None:
    for path in VIEWS:
        answer = await browser.get(path)

        assert answer.status_code == 200, path
        assert "style=" not in answer.text


@pytest.mark.usefixtures("busy_store")
async def test_hostile_names_stay_text(browser: Browser) -> None:
    for path in VIEWS:
        answer = await browser.get(path)

        assert answer.status_code == 200, path
        assert "<img src=x" not in answer.text
        assert "&lt;img src=x" in answer.text


async def test_an_address_that_makes_no_sense_shows_the_usual_view(browser: Browser) -> None:
    for path in ("/timeline?from=nonsense&span=9y&rows=x", "/timeline?from=0001-01-01", "/forecast?measure=x&queue="):
        assert (await browser.get(path)).status_code == 200, path


@pytest.mark.usefixtures("busy_store")
async def test_all_addresses_lie_below_the_prefix(parts: ServerRuntime) -> None:
    async with open_browser(replace(parts, settings=Settings(url_prefix="/below"))) as browser:
        for path in VIEWS:
            page = (await browser.get(f"/below{path}")).text
            foreign = [
                href for href in re.findall(r'(?:href|action|hx-get)="(/[^"]*)"', page) if not href.startswith("/below")
            ]
            assert not foreign, path


# the timeline


@pytest.mark.usefixtures("busy_store")
async def test_past_running_and_predicted_are_drawn_apart(browser: Browser) -> None:
    page = (await browser.get("/timeline")).text

    for kind in ("past", "running", "predicted"):
        assert re.search(rf'<rect class="mark {kind} ', page), kind
    assert '<line class="now"' in page
    assert "1 running" in page


@pytest.mark.usefixtures("busy_store")
async def test_a_mark_of_one_execution_leads_to_it(browser: Browser) -> None:
    page = (await browser.get("/timeline")).text
    table = (await browser.get("/timeline?view=table")).text

    leads = re.search(r'data-go="/executions/(exe_\w+)"', page)
    assert leads
    assert f'href="/executions/{leads[1]}"' in table


@pytest.mark.usefixtures("busy_store")
async def test_only_a_part_comes_when_a_part_is_refreshed(browser: Browser) -> None:
    answer = await browser.get("/timeline", headers={"HX-Request": "true", "HX-Request-Type": "partial"})

    assert answer.text.lstrip().startswith('<section class="card timeline"')
    assert "<html" not in answer.text


async def test_a_shortage_of_slots_is_told(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1)
    for _ in range(3):
        await make_recurring(store, every=600)

    page = (await browser.get("/timeline")).text

    assert "needs 3 of 1 slots" in page


async def test_hours_are_in_the_zone_of_the_browser(browser: Browser) -> None:
    browser.cookies.set(ZONE_COOKIE, "Europe%2FBerlin")

    page = (await browser.get("/timeline?span=1d")).text

    assert '<span class="soft">Berlin</span>' in page


async def test_a_zone_that_does_not_exist_is_utc(browser: Browser) -> None:
    browser.cookies.set(ZONE_COOKIE, "../../etc/passwd")

    assert '<span class="soft">UTC</span>' in (await browser.get("/timeline")).text


@pytest.mark.parametrize("word", ["1h", "4h", "6h", "1d", "7d"])
def test_ticks_are_even_in_the_zone_of_the_browser_and_not_too_many(word: str) -> None:
    view = parse_time_window(NOW, "", word, BERLIN)

    ticks = view.ticks()

    assert 3 <= len(ticks) <= 11
    assert all(view.start <= tick.at < view.end for tick in ticks)
    if word == "7d":
        assert {tick.at.hour for tick in ticks} == {0}


def test_a_day_with_a_clock_change_still_has_its_ticks() -> None:
    view = parse_time_window(NOW, "2027-03-27T23:00:00Z", "1d", BERLIN)

    texts = [tick.text for tick in view.ticks()]

    assert texts[0] == "Sun 28 Mar"
    assert len(texts) == len(set(texts))


def test_a_view_that_was_moved_keeps_its_middle_when_it_comes_closer() -> None:
    view = parse_time_window(NOW, "2026-11-16T08:00:00Z", "4h", BERLIN)

    assert view.zoomed("1h") == "2026-11-16T09:30:00Z"
    assert view.shifted(0.5) == "2026-11-16T10:00:00Z"
    assert parse_time_window(NOW, "", "4h", BERLIN).zoomed("1h") is None


def test_what_lies_outside_ends_at_the_edge() -> None:
    view = parse_time_window(NOW, "2026-11-16T10:00:00Z", "1h", BERLIN)

    assert view.percent_of(NOW - timedelta(days=1)) == 0
    assert view.percent_of(NOW + timedelta(days=1)) == 100
    assert view.percent_of(NOW) == pytest.approx(33.33, abs=0.01)


def test_a_mark_of_many_runs_bears_the_colour_of_the_worst() -> None:
    mark = TimelineMark(kind=TimelineMarkKind.PAST, start=NOW, end=NOW, states={"succeeded": 40, "dead": 1})

    assert drawing.mark_tone(mark) == "tone-bad"
    assert drawing.mark_tone(replace(mark, states={"succeeded": 40})) == "tone-good"
    assert drawing.mark_tone(replace(mark, states={"skipped": 2})) == "tone-calm"


def test_a_mark_without_a_length_is_drawn() -> None:
    view = parse_time_window(NOW, "2026-11-16T10:00:00Z", "7d", BERLIN)
    skipped = TimelineMark(kind=TimelineMarkKind.SKIPPED, start=NOW, end=NOW, states={"overlap": 1})

    drawn = drawing.rows(view, [MarkRow(key="job_1", label="beat", kind="cron", marks=[skipped])])

    (width,) = re.findall(r'class="mark skipped[^>]* width="([0-9.]+)%"', drawn)
    assert float(width) > 0.1


# the forecast


async def test_the_forecast_has_seven_days_of_twenty_four_hours(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1)
    await make_recurring(store, every=600)

    page = (await browser.get("/forecast?measure=starts")).text

    rows = re.findall(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    assert len(rows) == 7
    assert all(row.count("<td") == 25 for row in rows)


@pytest.mark.parametrize("path", ["/forecast", "/timeline"])
async def test_the_age_of_remembered_durations_is_told(browser: Browser, clock: VirtualClock, path: str) -> None:
    await browser.get(path)
    clock.advance(timedelta(seconds=30))

    page = (await browser.get(path)).text

    at = (clock.now() - timedelta(seconds=30)).isoformat(timespec="milliseconds")[:23]
    assert f'durations as of <time datetime="{at}Z" data-mode="clock"' in page


@pytest.mark.parametrize("path", ["/timeline", "/forecast"])
async def test_jobs_without_history_are_counted_and_can_be_looked_at(browser: Browser, store: Store, path: str) -> None:
    await make_job(store, name="new report: daily", interval_seconds=600)

    text = (await browser.get(path)).text

    counted = re.search(r"<summary>1 job without history.*?</summary><a href=\"([^\"]+)\">new report: daily</a>", text)
    assert counted is not None
    assert "new report: daily" in (await browser.get(unescape(counted[1]))).text


async def test_collisions_name_the_jobs_that_collide(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1)
    jobs = [await make_recurring(store, every=3600) for _ in range(2)]

    page = (await browser.get("/forecast")).text

    assert "2 of 1" in page
    assert all(str(job.name) in page for job in jobs)


async def test_a_collision_is_spread_and_that_is_undone(browser: Browser, store: Store) -> None:
    await make_node(store, NodeKind.WORKER, slots=1)
    for name in ("a-job", HOSTILE):
        await make_job(store, name=name, schedule="0 3 * * *")

    closed = (await browser.get("/forecast")).text
    opened = await browser.get(spread_link(closed))

    assert "peak 2 → 1" not in closed
    assert "peak 2 → 1" in opened.text
    assert "<img src=x" not in opened.text
    preview = re.search(r'href="(/jobs/[^"]+/edit[^"]+)">Preview', opened.text)
    assert preview
    assert 'value="5 3 * * *"' in (await browser.get(html.unescape(preview[1]))).text
    path, fields = form_to(opened.text, "/move")
    applied = await browser.post(path, data=fields)
    assert "0 3 * * * → 5 3 * * *." in html.unescape(applied.text)
    assert "No collisions ahead" in applied.text
    entry = (await browser.get("/api/v1/audit")).json()["data"][0]
    assert (entry["action"], entry["reason"]) == ("job.update", "spread: 2 of 1 slots wanted at 03:00")
    # The page that was open before has the version before.
    assert (await browser.post(path, data=fields)).status_code == 412
    path, fields = form_to(applied.text[applied.text.index('id="toasts"') :], "/move")
    undone = await browser.post(path, data=fields)
    assert "2 of 1" in undone.text


async def test_who_only_looks_sees_what_could_be_moved(
    log_in: Callable[[str], Awaitable[Browser]], store: Store
) -> None:
    await make_node(store, NodeKind.WORKER, slots=1)
    jobs = [
        await make_job(store, name=name, schedule=when) for name, when in (("a", "0 3 * * *"), ("b", "*/30 3 * * *"))
    ]
    viewer, operator = await log_in("viewer"), await log_in("operator")

    page = (await viewer.get(spread_link((await viewer.get("/forecast")).text))).text

    assert "peak 2 → 1" in page
    assert "Apply" not in page
    assert "Preview" not in page
    for browser in (viewer, operator):
        refused = await browser.submit(f"/jobs/{jobs[0].name}/move", schedule="5 3 * * *", version="1")
        assert refused.status_code == 403


async def test_a_move_to_nowhere_changes_nothing(browser: Browser, store: Store) -> None:
    await make_job(store, name="a", schedule="0 3 * * *")

    for fields in ({}, {"schedule": ""}, {"scheduled_at": "2027-01-01T00:00:00Z"}):
        answer = await browser.submit("/jobs/a/move", version="1", **fields)
        assert "Nothing was selected." in answer.text
    assert (await browser.get("/api/v1/jobs/a")).json()["version"] == 1


def spread_link(page: str) -> str:
    """Where "Spread…" leads to."""
    link = re.search(r'href="([^"#]+)#spread"', page)
    assert link
    return html.unescape(link[1])


def form_to(page: str, end: str) -> tuple[str, dict[str, str]]:
    """The first form of a page that leads to such a path, with what it bears."""
    form = re.search(rf'action="([^"]+{end})"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form
    return form[1], {
        name: html.unescape(value) for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', form[2])
    }


async def test_a_clock_change_is_marked(browser: Browser, clock: VirtualClock) -> None:
    clock.advance(datetime(2027, 3, 25, 12, tzinfo=UTC) - clock.now())
    browser.cookies.set(ZONE_COOKIE, "Europe%2FBerlin")

    page = (await browser.get("/forecast")).text

    assert "02:00 does not exist (clock change)" in page


@pytest.mark.parametrize(
    ("value", "slots", "wanted"), [(0, 4, "0"), (0.1, 4, "1"), (4, 4, "5"), (4.1, 4, "over"), (3, 0, "0")]
)
def test_hours_are_as_dark_as_they_are_busy(value: float, slots: int, wanted: str) -> None:
    assert shade({"note": None, "value": value}, slots, "busy", 9) == wanted


def test_the_busiest_hour_is_the_darkest_when_starts_are_shown() -> None:
    assert shade({"note": None, "value": 900}, 4, "starts", 900) == "5"
    assert shade({"note": "past", "value": None}, 4, "starts", 900) == "past"


# calendars


async def test_a_forecast_and_a_schedule_can_be_taken_along(browser: Browser, store: Store) -> None:
    job = format_job_id((await make_job(store, name="nightly", schedule="0 3 * * *", queue="crm & co")).id)

    forecast = (await browser.get("/forecast?queue=crm+%26+co")).text
    schedule = (await browser.get(f"/jobs/{job}?tab=schedule")).text

    (of_queue,) = re.findall(r'href="(/calendar\.ics\?[^"]+)"', forecast)
    assert httpx.URL(unescape(of_queue)).params["queue"] == "crm & co"
    (of_job,) = re.findall(r'href="(/jobs/[^"]+\.ics)"', schedule)
    for address in (unescape(of_queue), of_job):
        answer = await browser.get(address)
        assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
        assert "SUMMARY:nightly" in answer.text


async def test_a_calendar_leads_back_below_the_prefix(parts: ServerRuntime, store: Store) -> None:
    job = format_job_id((await make_job(store, name="nightly", schedule="0 3 * * *")).id)

    async with open_browser(replace(parts, settings=Settings(url_prefix="/below"))) as browser:
        for path in ("/calendar.ics", f"/jobs/{job}/calendar.ics", "/api/v1/calendar.ics"):
            text = (await browser.get(f"/below{path}")).text.replace("\r\n ", "")

            assert f"URL:http://localhost:8080/below/jobs/{job}\r\n" in text, path
