"""What a person does with the work pages, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from tests.dashboard.chromium import PATIENCE_MS, Up, held_back, stop_time, until_it_listens, window
from tests.support.servers import PostgresServer, Servers
from timeball.domain.explain.explanation import GATES

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)
Make = Callable[..., dict[str, Any]]


async def test_a_cron_job_is_made_with_the_editor_and_seen_in_the_list(page: Page) -> None:
    await page.goto("/jobs")
    await page.get_by_role("link", name="New job").first.click()
    await page.get_by_label("Name", exact=True).fill("made-by-hand")
    await page.get_by_label("Handler").fill("test.echo")
    await page.get_by_label("Zone", exact=True).fill("Europe/Berlin")
    await page.get_by_label("Cron expression").fill("30 2 * * *")

    preview = page.locator("#preview")
    await expect(preview).to_contain_text("At 02:30 every day")
    await expect(preview).to_contain_text("does not exist")
    await expect(preview.locator("tbody").first.locator("tr")).to_have_count(10)
    await page.locator(".choices label", has_text="Every").click()
    await page.locator("#f-interval").fill("90s")
    await expect(preview).to_contain_text("Every 1 minute 30 seconds")
    await page.locator(".choices label", has_text="Cron").click()
    await page.get_by_role("button", name="Create").click()

    await expect(page.locator(".toast")).to_contain_text("made-by-hand is created")
    await page.goto("/jobs?q=made-by")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody")).to_contain_text("At 02:30 every day")


async def test_what_was_typed_last_is_what_is_answered(page: Page) -> None:
    await page.goto("/jobs/new")
    await page.evaluate(
        """() => {
            const { dataset } = document.documentElement;
            const preview = document.querySelector("#preview");
            let asked = 0;
            preview.addEventListener("htmx:config:request", () => (dataset.asked = ++asked));
        }"""
    )
    html, cron = page.locator("html"), page.get_by_label("Cron expression")

    async with held_back(page, "**/parts/schedule") as asked:
        for number, words in enumerate(("0 1 * * *", "0 2 * * *", "0 3 * * *"), 1):
            await cron.fill(words)
            await expect(html).to_have_attribute("data-asked", str(number))
        await asked.wait()

    await expect(page.locator("#preview")).to_contain_text("At 03:00 every day")


async def test_an_edit_shows_what_would_move(page: Page, make: Make) -> None:
    # Days ahead, and at hours in which no clock changes: whatever the moment, both rules run once on each day.
    starts_at = (datetime.now(UTC) + timedelta(days=3)).date().isoformat()
    make(
        "/jobs", name="moves", handler="test.echo", schedule="0 5 * * *", timezone="Europe/Berlin", starts_at=starts_at
    )
    await page.goto("/jobs/moves/edit")
    await page.get_by_label("Cron expression").fill("30 4 * * *")

    await expect(page.locator("#preview")).to_contain_text("10 of 10 move 30 min earlier")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator(".toast")).to_contain_text("Saved")
    await page.get_by_role("link", name="Activity").click()
    await expect(page.locator("main")).to_contain_text("30 4 * * *")


async def test_a_triggered_job_is_watched_until_its_log_is_there(page: Page, make: Make) -> None:
    make(
        "/jobs",
        name="talks",
        handler="test.log",
        schedule="manual",
        payload={"message": "hello <b>world</b>", "lines": 3},
    )
    await page.goto("/jobs/talks")
    await page.get_by_role("button", name="Trigger").click()

    await expect(page.locator("#execution-body")).to_contain_text("succeeded")
    log = page.locator(".log li")
    await expect(log).to_have_count(3)
    await expect(log.first).to_contain_text("hello <b>world</b> 1")
    await page.get_by_label("Find in the log").fill("world</b> 2")
    await expect(page.locator(".log li:visible")).to_have_count(1)
    await page.get_by_label("Find in the log").fill("")
    await page.get_by_label("Least level").select_option("error")
    await expect(page.locator(".log li:visible")).to_have_count(0)


async def test_what_is_logged_last_is_shown_even_if_it_is_written_after_the_end(page: Page, make: Make) -> None:
    make("/jobs", name="mumbles", handler="test.log", schedule="manual", payload={"message": "hello", "lines": 2})
    execution = make("/jobs/mumbles/trigger")
    here = f"/executions/{execution['id']}"
    await page.goto(here)
    await expect(page.locator(".log li")).to_have_count(2)
    await expect(page.locator("#execution-body")).to_contain_text("succeeded")

    await page.goto("about:blank")
    # As if this came before the lines were written.
    await page.route(f"**{here}/log*", lambda route: route.fulfill(body=""), times=1)
    await page.goto(here)

    await expect(page.locator(".log li")).to_have_count(2)


async def test_a_list_shows_by_itself_what_happens(page: Page, make: Make) -> None:
    make("/jobs", name="appears", handler="test.echo", schedule="manual")
    await page.goto("/executions?q=job:appears")
    await expect(page.locator("main")).to_contain_text("Nothing matches")

    make("/jobs/appears/trigger")

    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody tr")).to_contain_text("succeeded")


async def test_nothing_moves_while_rows_are_selected(page: Page, make: Make) -> None:
    make("/jobs", name="still", handler="test.echo", schedule="manual")
    make("/jobs/still/trigger")
    await page.goto("/executions?q=job:still")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.locator("[name=ids]").check()

    make("/jobs/still/trigger")

    await expect(page.locator("#live")).to_contain_text("Paused while you select")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="None").click()
    await expect(page.locator("tbody tr")).to_have_count(2)


async def test_a_running_execution_is_cancelled_with_a_reason(page: Page, make: Make, timeball_up: str) -> None:
    make("/jobs", name="long", handler="test.delay", schedule="manual", payload={"durationMs": 600_000})
    execution = make("/jobs/long/trigger")
    await page.goto(f"/executions/{execution['id']}")
    await expect(page.locator("#execution-body")).to_contain_text("running")

    await page.keyboard.press("c")
    dialog = page.locator("#confirm")
    await expect(dialog).to_contain_text("Cancel this execution?")
    await dialog.get_by_role("textbox").first.fill("taking too long")
    await dialog.get_by_role("button", name="Cancel it").click()

    await expect(page.locator("#execution-body .badge").first).to_contain_text("cancelled")
    answer = httpx.get(f"{timeball_up}/api/v1/executions/{execution['id']}", timeout=60)
    assert answer.json()["reason"] == "taking too long"


async def test_a_dead_one_is_retried_with_another_payload(page: Page, make: Make) -> None:
    failing = {"durationMs": 0, "shouldFail": True, "failMessage": "no such user"}
    make("/jobs", name="fails", handler="test.delay", payload=failing, max_retries=0)
    execution = make("/jobs/fails/trigger")
    await page.goto(f"/executions/{execution['id']}")
    await expect(page.locator("#execution-body")).to_contain_text("dead after 1 attempt")

    await page.get_by_role("link", name="Retry with changes").click()
    await page.get_by_label("Payload").fill('{"durationMs": 0}')
    await page.get_by_role("button", name="Retry", exact=True).click()

    await expect(page.locator("#execution-body")).to_contain_text("succeeded")
    await expect(page.locator("#execution-body")).to_contain_text("retry of")
    await page.goto("/dead")
    await expect(page.locator("main")).to_contain_text("no such user")


async def test_a_pause_is_undone_from_its_toast(page: Page, make: Make) -> None:
    make("/jobs", name="pauses", handler="test.echo", interval_seconds=3600)
    await stop_time(page)
    await page.goto("/jobs/pauses")
    await page.keyboard.press("p")
    await expect(page.locator(".toast")).to_contain_text("pauses is paused")
    await expect(page.locator("main .banner")).to_contain_text("Paused")

    await page.get_by_role("button", name="Undo").click()

    await expect(page.locator(".head .badge")).to_contain_text("active")


async def test_many_jobs_are_paused_until_the_instant_that_the_dialog_asks_for(page: Page, make: Make) -> None:
    for number in range(2):
        make("/jobs", name=f"rests-{number}", handler="test.echo", interval_seconds=3600)
    await page.goto("/jobs?q=rests-")
    await page.locator("[data-pick-all]").click()
    await page.locator(".bulk").get_by_role("button", name="Pause until…").click()
    await expect(page.locator("#confirm")).to_contain_text("Pause 2 jobs?")
    await expect(page.locator("#confirm")).to_contain_text("Berlin time")

    await page.locator("#confirm [name=until]").fill("2033-01-04T06:00")
    await page.locator("#confirm").get_by_role("button", name="Pause").click()

    await expect(page.locator(".toast")).to_contain_text("2 jobs paused")
    until = page.locator("tbody tr").first.locator("td[data-label=Next]")
    await expect(until).to_contain_text("resumes")
    await expect(until.locator("time")).to_have_attribute("datetime", "2033-01-04T05:00:00.000Z")


async def test_a_calendar_is_read_from_a_file(page: Page) -> None:
    await page.goto("/calendars/new")
    await page.get_by_text("An iCalendar file").click()

    await page.get_by_label("File", exact=True).set_input_files(
        {"name": "days.ics", "mimeType": "text/calendar", "buffer": b"BEGIN:VCALENDAR"}
    )

    await expect(page.get_by_label("The text of the file")).to_have_value("BEGIN:VCALENDAR")


async def test_many_are_cancelled_by_range_after_their_number_was_said(page: Page, make: Make) -> None:
    for number in range(4):
        make("/jobs", name=f"far-{number}", handler="test.echo", scheduled_at="2033-01-01T00:00:00Z")
    await page.goto("/executions?q=far-")
    boxes = page.locator("[name=ids]")
    await expect(boxes).to_have_count(4)
    await boxes.nth(0).click()
    await boxes.nth(2).click(modifiers=["Shift"])
    await expect(page.locator(".bulk output")).to_have_text("3 selected")

    await page.locator(".bulk").get_by_role("button", name="Cancel").click()
    await expect(page.locator("#confirm")).to_contain_text("Cancel 3 executions?")
    await page.locator("#confirm").get_by_role("button", name="Cancel").click()
    await expect(page.locator(".toast")).to_contain_text("3 executions cancelled")

    await page.goto("/executions?q=far-&status=scheduled")
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_all_that_match_are_asked_about_with_their_number(page: Page, make: Make) -> None:
    for number in range(3):
        make("/jobs", name=f"crowd-{number}", handler="test.echo", interval_seconds=3600)
    await page.goto("/jobs?q=crowd-")
    await page.locator("[name=ids]").first.check()
    await page.keyboard.press("a")
    await expect(page.locator(".bulk output")).to_have_text("All that match are selected")
    await page.locator(".bulk").get_by_role("button", name="Pause", exact=True).click()

    await expect(page.locator("main")).to_contain_text("Pause 3 jobs?")
    await page.get_by_role("button", name="Pause 3 jobs").click()
    await expect(page.locator(".toast")).to_contain_text("3 jobs paused")


async def test_why_is_told(page: Page, make: Make) -> None:
    make("/jobs", name="waits", handler="test.echo", scheduled_at="2033-01-01T00:00:00Z")
    await page.goto("/jobs/waits")
    await page.keyboard.press("w")

    await expect(page.locator(".verdict")).to_contain_text("NOT STARTED: it is due")
    await expect(page.locator(".gates li")).to_have_count(len(GATES))


async def test_a_template_is_used(page: Page, make: Make) -> None:
    make("/templates", name="greeting", job={"handler": "test.echo", "payload": {"to": "{{who}}"}})
    await page.goto("/templates")
    await page.get_by_role("link", name="greeting").click()
    await page.get_by_label("who").fill("ana")
    await page.get_by_role("button", name="Create the job").click()

    await expect(page.locator("#execution-body")).to_contain_text('"to": "ana"')


async def test_the_keyboard_is_enough(page: Page, make: Make) -> None:
    make("/jobs", name="keyed", handler="test.echo", interval_seconds=3600)
    await stop_time(page)
    await page.goto("/")
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await page.clock.resume()
    await page.wait_for_url("**/jobs")
    await page.keyboard.press("/")
    await page.keyboard.type("keyed")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**q=keyed*")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(page.locator(".bulk output")).to_have_text("1 selected")
    await page.keyboard.press("x")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("keyed")
    await until_it_listens(page)
    await page.keyboard.press("?")
    await expect(page.locator("#help")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("keyed")
    await expect(page.locator("#palette-found li").first).to_contain_text("keyed")
    # It leads to where we are: only the navigation tells that it was opened.
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("keyed")
    await page.keyboard.press("T")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_theme_is_kept_and_follows_the_system_until_one_is_chosen(chromium: Browser, timeball_up: str) -> None:
    async with window(chromium, timeball_up, color_scheme="dark") as page:
        await page.goto("/jobs")
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.keyboard.press("T")
        await page.reload()
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert (dark, light) == ("rgb(16, 19, 24)", "rgb(246, 247, 249)")


async def test_on_a_phone_nothing_is_cut_off(chromium: Browser, timeball_up: str, make: Make) -> None:
    make("/jobs", name="a-rather-long-name-for-a-job-on-a-small-screen", handler="test.echo", schedule="0 9 * * *")
    run = make("/jobs/a-rather-long-name-for-a-job-on-a-small-screen/trigger")
    here = f"/executions/{run['id']}"
    async with window(chromium, timeball_up, viewport={"width": 375, "height": 812}, has_touch=True) as page:
        for path in (
            "/jobs",
            "/jobs/new",
            f"/jobs/{run['job_id']}",
            "/executions",
            here,
            f"{here}/why",
            "/dead",
            "/audit",
        ):
            await page.goto(path)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 375, path
        await page.goto("/jobs")
        await page.get_by_role("navigation", name="Main pages").get_by_role("link", name="Runs").click()
        await expect(page.locator("h1")).to_have_text("Executions")


async def test_times_are_shown_in_the_zone_that_is_chosen(page: Page, make: Make) -> None:
    make("/jobs", name="zoned", handler="test.echo", scheduled_at="2033-06-01T10:00:00Z")
    await page.goto("/jobs/zoned")
    stamp = page.locator("time[data-mode=full]").first
    await expect(stamp).to_contain_text("12:00:00 CEST")
    await page.locator("#zone").select_option("utc")
    await expect(stamp).to_contain_text("10:00:00 UTC")


async def test_a_new_start_reaches_every_window_of_a_browser(chromium: Browser, timeball_up: str, make: Make) -> None:
    make("/jobs", name="shared-news", handler="test.echo", schedule="manual")
    async with window(chromium, timeball_up) as one:
        other = await one.context.new_page()
        for page in (one, other):
            await page.goto("/executions?q=job:shared-news")

        make("/jobs/shared-news/trigger")

        for page in (one, other):
            await page.bring_to_front()
            await expect(page.locator("tbody tr")).to_have_count(1)


async def test_a_viewer_logs_in_below_a_prefix_and_sees_no_button(
    chromium: Browser, servers: Servers, template_of: Callable[[PostgresServer], str], tmp_path: Path
) -> None:
    server = servers.postgres("pg15")
    name = server.create_database(template_of(server))
    up = Up(server.dsn(name), tmp_path, TIMEBALL_URL_PREFIX="/tools")
    async with window(chromium, up.address) as page:
        await page.clock.install()
        await page.goto("/tools/keys")
        await page.get_by_label("Name", exact=True).fill("ana")
        await page.get_by_label("Role").select_option("viewer")
        await page.get_by_role("button", name="Create key").click()
        key = await page.locator(".command code").first.inner_text()
        # It is shown this once, and whatever the page asked for now would lead to the login.
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.clock.run_for(60_000)
        assert [address for address in asked if "/parts/" in address] == []

        await page.goto("/tools/jobs")
        await page.wait_for_url("**/tools/login*")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url("**/tools/jobs")

        await expect(page.locator("h1")).to_have_text("Jobs")
        await expect(page.get_by_role("link", name="New job")).to_have_count(0)
        await expect(page.locator("main form[method=post]")).to_have_count(0)
        await page.locator(".top .menu summary").click()
        await page.get_by_role("button", name="Log out").click()
        await page.wait_for_url("**/tools/login")
    up.stop()
    server.drop_database(name)
