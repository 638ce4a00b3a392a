"""A page does not move under the hand: new rows wait, searches complete themselves, what changes is said politely."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, Route, expect

from tests.dashboard.chromium import PATIENCE_MS, held_back, stop_time, until_it_listens
from tests.dashboard.test_pages_in_chromium import Make

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)
LIST = "/executions?q=job:counted"


async def test_new_rows_wait_behind_their_number(page: Page, make: Make) -> None:
    make("/jobs", name="counted", handler="test.echo", schedule="manual")
    make("/jobs/counted/trigger")
    await page.goto(LIST)
    rows, pill = page.locator("tbody tr"), page.locator("[data-new]")
    await expect(rows).to_have_count(1)
    await page.keyboard.press(".")
    await expect(page.locator("#live")).to_contain_text("Frozen")

    make("/jobs/counted/trigger")
    make("/jobs/counted/trigger")

    await expect(pill).to_have_text("2 new")
    await expect(rows).to_have_count(1)
    await pill.click()
    await expect(rows).to_have_count(3)
    await expect(pill).to_be_hidden()


async def test_a_list_that_is_scrolled_does_not_move(page: Page, make: Make) -> None:
    make("/jobs", name="scrolled", handler="test.echo", schedule="manual")
    for _ in range(3):
        make("/jobs/scrolled/trigger")
    await page.set_viewport_size({"width": 1280, "height": 260})
    await page.goto("/executions?q=job:scrolled")
    await expect(page.locator("tbody .badge", has_text="succeeded")).to_have_count(3)
    await page.locator("tbody tr").last.scroll_into_view_if_needed()
    await page.evaluate("scrollTo(0, document.body.scrollHeight)")

    make("/jobs/scrolled/trigger")

    await expect(page.locator("[data-new]")).to_have_text("1 new")
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.evaluate("scrollTo(0, 0)")
    await expect(page.locator("tbody tr")).to_have_count(4)


@pytest.mark.parametrize("way", ["frozen", "selected", "scrolled"])
async def test_what_was_asked_for_before_does_not_move_a_page_that_has_to_stand_still(
    page: Page, make: Make, way: str
) -> None:
    name = f"late-{way}"
    make("/jobs", name=name, handler="test.echo", schedule="manual")
    for _ in range(3):
        make(f"/jobs/{name}/trigger")
    await page.set_viewport_size({"width": 1280, "height": 260})
    rows = page.locator("tbody tr")

    # When the stream opens, everything is asked for once.
    async with held_back(page, "**/executions?q=job*") as asked:
        await page.goto(f"/executions?q=job:{name}")
        await expect(rows).to_have_count(3)
        await asked.wait()
        match way:
            case "frozen":
                await page.keyboard.press(".")
            case "selected":
                await rows.locator("[name=ids]").first.check()
            case _:
                await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        make(f"/jobs/{name}/trigger")

    await expect(page.locator("[data-new]")).to_have_text("1 new")
    await expect(rows).to_have_count(3)
    await page.locator("[data-new]").click()
    await expect(rows).to_have_count(4)


async def test_a_search_completes_itself_and_stands_still_meanwhile(page: Page, make: Make) -> None:
    make("/jobs", name="completed", handler="test.echo", schedule="manual")
    await page.goto("/executions?q=job:completed")
    await page.keyboard.press("/")
    await page.get_by_label("Search", exact=True).fill("status:succ")
    await expect(page.locator("#search-ends option").first).to_have_attribute("value", "status:succeeded")
    await page.get_by_label("Search", exact=True).fill("status:succeeded job:compl")
    await expect(page.locator("#search-ends option")).to_have_attribute("value", "status:succeeded job:completed")

    make("/jobs/completed/trigger")

    await expect(page.locator("#live")).to_contain_text("Paused while you select")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=status*")


async def test_what_changes_is_announced_only_to_who_asked_and_not_often(page: Page, make: Make) -> None:
    make("/jobs", name="announced", handler="test.echo", schedule="manual")
    announcer = page.locator("#announcer")
    now = datetime(2026, 11, 17, 12, tzinfo=UTC)
    # Time moves only where it is said: until something is seen here, much of it may pass elsewhere.
    await page.clock.set_fixed_time(now)
    await page.goto("/executions?q=job:announced")
    await expect(announcer).to_have_attribute("aria-live", "polite")
    await expect(announcer).to_be_empty()
    await page.keyboard.press("?")
    await page.get_by_label("Announce what changes").check()
    await expect(announcer).to_have_text("0 executions shown")
    await page.get_by_role("button", name="Close").click()

    make("/jobs/announced/trigger")
    await page.clock.set_fixed_time(now + timedelta(seconds=5))
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(announcer).to_have_text("0 executions shown")
    await page.clock.set_fixed_time(now + timedelta(seconds=45))

    await expect(announcer).to_contain_text("1 execution shown, the latest announced")


async def test_an_undo_is_a_key_away(page: Page, make: Make) -> None:
    make("/jobs", name="undone", handler="test.echo", interval_seconds=3600)
    await stop_time(page)
    await page.goto("/jobs/undone")
    await page.keyboard.press("p")
    await expect(page.locator(".toast")).to_contain_text("undone is paused")
    await until_it_listens(page)

    await page.keyboard.press("z")

    await expect(page.locator(".toast")).to_contain_text("undone is resumed")


async def test_what_is_sent_is_not_overtaken_by_a_part_that_leads_elsewhere(page: Page, make: Make) -> None:
    """The first steps do, once there is a job: the page becomes another, while the form that made the job waits for its answer."""
    make("/jobs", name="overtaken", handler="test.echo", interval_seconds=3600)

    async def lead_away(route: Route) -> None:
        is_part = "hx-request" in route.request.headers
        await (route.fulfill(status=204, headers={"HX-Refresh": "true"}) if is_part else route.continue_())

    renew = "document.querySelector('#job-body').dispatchEvent(new Event('refresh'))"
    await stop_time(page)
    await page.goto("/jobs/overtaken")
    await page.clock.run_for(1_000)  # until it is ready; from here on nothing is fetched by itself
    await page.route("**/jobs/overtaken", lead_away)
    await page.evaluate("window.isTheSame = true; window.dispatchEvent(new Event('beforeunload'))")
    async with page.expect_response(lambda answer: answer.status == 204):
        await page.evaluate(renew)
    await page.clock.run_for(1_000)
    assert await page.evaluate("window.isTheSame")

    # A form without a response does not block the page for long: the next refresh may navigate, perhaps within these seconds.
    async with page.expect_event("framenavigated"):
        with suppress(PlaywrightError):
            await page.clock.run_for(11_000)
            await page.evaluate(renew)


async def test_a_queue_is_purged_only_by_typing_its_name(page: Page, make: Make) -> None:
    make("/queues/heavy/pause", reason="too much")
    for _ in range(2):
        make("/jobs", handler="test.echo", queue="heavy")
    await page.goto("/queues/one?name=heavy")
    await page.get_by_role("button", name="Purge").click()
    dialog = page.locator("#confirm")
    await expect(dialog).to_contain_text("Cancel 2 executions waiting in heavy?")
    await expect(dialog.locator(".primary")).to_be_disabled()
    await dialog.get_by_label("Type heavy to confirm").fill("heavy")

    await dialog.locator(".primary").click()

    await expect(page.locator(".toast")).to_contain_text("2 executions cancelled")
