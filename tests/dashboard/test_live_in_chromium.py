"""What a person sees happen by itself, and does to the machinery, in a real browser."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.dashboard.chromium import PATIENCE_MS, Up, find_chromium, stop_time, until_it_listens, window
from tests.dashboard.demo_process import PAGES
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def fresh(
    servers: Servers, template_of: Callable[[PostgresServer], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An unused Timeball, below a path as behind a proxy; gives its address."""
    try:
        find_chromium()
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    up = Up(server.dsn(name), Path(tmp_path_factory.mktemp("fresh")), TIMEBALL_URL_PREFIX="/below")
    yield up.address
    up.stop()
    server.drop_database(name)


@pytest_asyncio.fixture(loop_scope="session")
async def desk(chromium: Browser, lively: str) -> AsyncIterator[Page]:
    """A window before a furnished Timeball."""
    async with window(chromium, lively) as opened:
        yield opened


async def test_the_first_steps_end_in_a_job_that_is_seen_to_start(chromium: Browser, fresh: str) -> None:
    async with window(chromium, fresh) as page:
        await page.goto("/below/")
        await expect(page.locator(".steps-todo > .done")).to_have_count(2)
        await page.get_by_role("button", name="Run the demo job").click()

        await expect(page.locator(".toast")).to_contain_text("The demo job runs")
        first = page.locator("#ticker li", has_text="demo")
        await expect(first.first).to_contain_text(re.compile(r"\+|retry"))
        # The next one comes by itself, within the ten seconds of its rhythm.
        seen = await page.locator("#ticker li").first.get_attribute("data-id")
        await expect(page.locator("#ticker li").first).not_to_have_attribute("data-id", str(seen))
        await page.locator("#ticker a").first.click()
        await expect(page).to_have_url(re.compile(r"/below/executions/exe_"))


async def test_a_frozen_page_stands_still_and_goes_on_where_it_was(chromium: Browser, fresh: str) -> None:
    async with window(chromium, fresh) as page:
        await page.goto("/below/")
        if await page.get_by_role("button", name="Run the demo job").count():
            await page.get_by_role("button", name="Run the demo job").click()
            await expect(page.locator(".toast")).to_contain_text("The demo job runs")
            await until_it_listens(page)
        await page.keyboard.press(".")
        await expect(page.locator("#live")).to_contain_text("Frozen")
        await expect(page.locator("#freeze")).to_contain_text("new, go on")

        await page.locator("#freeze").click()

        await expect(page.locator("#live")).to_contain_text("Live")
        await expect(page.locator("#freeze")).to_contain_text("Freeze")


async def test_a_stream_that_is_cut_is_shown_and_heals(chromium: Browser, lively: str) -> None:
    # The console rightly complains of what cannot be loaded here, so this window is not asked.
    context = await chromium.new_context(base_url=lively)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.goto("/queues")
    await expect(page.locator("#live")).to_contain_text("Live")
    # What is open stays open here: the next word of the stream, perhaps at once, says that all is well.
    await page.evaluate(
        """() => {
            const live = document.querySelector("#live");
            new MutationObserver(() => (live.dataset.said += live.textContent)).observe(live, { childList: true, subtree: true });
        }"""
    )

    await context.set_offline(True)
    await expect(page.locator("#live")).to_have_attribute("data-said", re.compile("Offline since"))

    await context.set_offline(False)
    await expect(page.locator("#live")).to_contain_text("Live")
    await context.close()


async def test_without_any_stream_the_page_still_keeps_up(chromium: Browser, lively: str) -> None:
    context = await chromium.new_context(base_url=lively)
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    await page.route("**/parts/stream", lambda route: route.abort())
    await page.goto("/queues")

    async with page.expect_response(lambda answer: answer.url.endswith("/queues") and answer.ok):
        pass
    await expect(page.locator("#live")).to_contain_text("Live")
    await context.close()


async def test_a_queue_is_paused_with_a_reason_and_taken_back(desk: Page) -> None:
    await stop_time(desk)
    await desk.goto("/queues")
    row = desk.locator("tr", has_text="crm")
    await row.get_by_role("button", name="Pause").click()
    await desk.get_by_label("Reason").fill("their API is down")
    await desk.locator("#confirm .primary").click()

    await expect(desk.locator(".toast")).to_contain_text("Queue crm is paused")
    await expect(row).to_contain_text("their API is down")
    await desk.get_by_role("button", name="Undo").click()
    await expect(row).to_contain_text("open")


async def test_a_worker_is_drained_after_it_was_said_what_that_means(desk: Page) -> None:
    await desk.goto("/workers")
    row = desk.locator("tr", has_text="app-2/412")
    await row.get_by_role("button", name="Drain").click()
    await expect(desk.locator("#confirm")).to_contain_text("will be finished; then it ends")
    await desk.locator("#confirm .primary").click()

    await expect(desk.locator(".toast")).to_contain_text("app-2/412 takes nothing more")
    await expect(row).to_contain_text("draining")


async def test_the_time_line_is_walked_by_keys_and_opened_by_a_click(desk: Page) -> None:
    await desk.goto("/timeline")
    await expect(desk.locator(".mark.past").first).to_be_attached()
    await desk.keyboard.press("[")
    await desk.wait_for_url(re.compile("from="))
    await desk.keyboard.press("+")
    await desk.wait_for_url(re.compile("span=1h"))
    await desk.keyboard.press("0")
    await desk.wait_for_url(lambda url: "from=" not in url)
    await desk.goto("/timeline?queue=crm")

    await desk.locator(".mark.past[data-go]").last.click(force=True)

    await expect(desk).to_have_url(re.compile(r"/executions/exe_"))


async def test_the_forecast_leads_to_the_hour_on_the_time_line(desk: Page) -> None:
    await desk.goto("/forecast")
    await expect(desk.locator(".clashes")).to_contain_text("nightly-etl")
    await desk.locator(".heat td a").last.click()

    await expect(desk).to_have_url(re.compile(r"/timeline\?span=1h"))


async def test_the_zone_of_the_browser_is_that_of_the_drawings(desk: Page) -> None:
    await desk.goto("/timeline")
    await expect(desk.locator(".labels .zone")).to_have_text("Berlin")
    await desk.locator("#zone").select_option("utc")
    await expect(desk.locator(".labels .zone")).to_have_text("UTC")


async def test_a_tag_leads_from_a_job_to_its_jobs_and_their_executions(desk: Page) -> None:
    await desk.goto("/jobs/invoices")
    await desk.get_by_role("link", name="finance", exact=True).click()

    await expect(desk.locator("h1")).to_have_text("finance")
    await expect(desk.locator("#tag-jobs tbody tr")).to_have_count(3)
    # The executions are fetched once the page is there.
    await expect(desk.locator("#tag-runs h2").first).to_have_text("Latest executions")
    await expect(desk.locator("#tag-runs tbody tr").first).to_be_visible()


async def test_a_worker_leads_from_an_execution_to_all_that_it_ran(desk: Page) -> None:
    await desk.goto("/executions?status=succeeded&q=queue:batch")
    await desk.locator("#executions-list tbody tr td.name a").first.click()
    await desk.locator("dt:text-is('Worker') + dd a").click()

    await expect(desk.locator("h1")).to_have_text(re.compile(r"^(app-2/412|batch-1/97)$"))
    await expect(desk.locator("#worker")).to_contain_text("slots busy")
    await expect(desk.locator("#worker-history tbody tr").first).to_be_visible()
    await desk.locator("#worker-history").get_by_role("link", name="Older").click()
    await expect(desk).to_have_url(re.compile(r"cursor="))
    await expect(desk.locator("#worker-history").get_by_role("link", name="Newest")).to_be_visible()


async def test_on_a_phone_nothing_is_wider_than_the_screen(chromium: Browser, lively: str) -> None:
    async with window(chromium, lively, viewport={"width": 375, "height": 812}, color_scheme="dark") as page:
        for path in PAGES:
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 375, path
        await page.goto("/timeline")
        await expect(page.locator(".agenda")).to_be_visible()
        await expect(page.locator(".drawing")).to_be_hidden()
