"""Screenshots of every page of a furnished Timeball: light and dark, on a desk, a tablet and a phone.

`make screenshots` (or `python -m tools.screenshots [PAGE ...]`, for some pages) writes them to `build/screenshots/`, which git
ignores. The four that README and docs show are written to `docs/screenshots/` as well.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright
from tests.dashboard.chromium import FLAGS, find_chromium
from tests.dashboard.demo_process import running_lively
from tests.support.servers import running_servers

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "screenshots"
KEPT_FOLDER = ROOT / "docs" / "screenshots"
# The pictures in the repository.
KEPT = frozenset({"live-desk-light.png", "job-desk-light.png", "why-desk-dark.png", "execution-phone-dark.png"})
SIZES = {
    "desk": {"width": 1440, "height": 900},
    "tablet": {"width": 1024, "height": 768},
    "phone": {"width": 390, "height": 844},
}
PAGES = {
    "live": "/",
    "timeline": "/timeline",
    "forecast": "/forecast",
    "jobs": "/jobs",
    "job": "/jobs/sync-crm",
    "job-edit": "/jobs/morning-report/edit",
    "tag": "/tags/finance",
    "executions": "/executions",
    "execution": "/executions/{dead}",
    "failed-attempts": "/attempts",
    "why": "/executions/{queued}/why",
    "groups": "/groups",
    "group": "/groups/{group}",
    "group-why": "/groups/{group}/why",
    "dead-letters": "/dead",
    "queues": "/queues",
    "queue": "/queues/one?name=crm",
    "workers": "/workers",
    "worker": "/workers/app-2%2F412",
    "handlers": "/handlers",
    "handler": "/handlers/one?name=http.webhook",
    "templates": "/templates",
    "calendars": "/calendars",
    "freezes": "/freezes",
    "webhooks": "/webhooks",
    "keys": "/keys",
    "audit": "/audit",
    "operations": "/operations",
    "settings": "/settings",
    "doctor": "/doctor",
    "about": "/about",
    "login": "/login",
}
# Long enough for charts to fill and for the stream to send some starts.
_LIVE_FOR_SECONDS = 40
_COLOURS = 256


# Invented executions: the traceback of a real one would show the path of this file.
_RUNS = {"dead": "status:dead handler:app.mail*", "queued": "status:queued"}


async def take_all(address: str, names: Collection[str]) -> int:
    """Take the pictures of these pages; returns their size in bytes."""
    ids = {name: _execution_id(address, query) for name, query in _RUNS.items()}
    ids["group"] = httpx.get(f"{address}/api/v1/groups", timeout=30).json()["data"][-1]["id"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        written = [
            await _take(browser, address, names, ids, size, scheme) for size in SIZES for scheme in ("light", "dark")
        ]
        await browser.close()
    return sum(written)


def _execution_id(address: str, query: str) -> str:
    answer = httpx.get(f"{address}/api/v1/executions", params={"q": query, "limit": 1}, timeout=30)
    executions: list[dict[str, Any]] = answer.json()["data"]
    return str(executions[0]["id"])


async def _take(
    browser: Browser, address: str, names: Collection[str], ids: dict[str, str], size: str, scheme: str
) -> int:
    looks: dict[str, Any] = {"viewport": SIZES[size], "color_scheme": scheme, "reduced_motion": "reduce"}
    context = await browser.new_context(base_url=address, timezone_id="Europe/Berlin", **looks)
    page = await context.new_page()
    await page.goto("/about")
    written = 0
    for name in names:
        written += await _shoot(page, PAGES[name].format(**ids), FOLDER / f"{name}-{size}-{scheme}.png")
    await context.close()
    return written


async def _shoot(page: Page, path: str, file: Path) -> int:
    await page.goto(path)
    await page.wait_for_timeout(900)
    small = Image.open(BytesIO(await page.screenshot())).convert("RGB").quantize(_COLOURS, kmeans=2)
    small.save(file, optimize=True)
    if file.name in KEPT:
        small.save(KEPT_FOLDER / file.name, optimize=True)
    return file.stat().st_size


def _begin_groups(address: str) -> None:
    """A catalogue that is read page by page: some of it has ended, some waits for a queue that no worker serves."""
    page = {"handler": "app.crm:sync", "queue": "crm", "payload": {}}
    shelved = {"handler": "app.reports:customer", "queue": "exports", "payload": {"customer": 70_017}}
    parts = [page] * 6 + [
        {"handler": "app.prices:load", "queue": "crm", "max_retries": 0},
        {"chain": [page, shelved, page]},
    ]
    parts.append({"group": [page, shelved, shelved]})
    work = {"group": parts, "then": shelved, "meta": {"tenant": "acme"}}
    for body in (work, {"group": [page] * 3}, {"chain": [page, page]}, {"group": [shelved] * 250}):
        httpx.post(f"{address}/api/v1/groups", json=body, timeout=30).raise_for_status()


async def _run_and_take(address: str, names: Collection[str]) -> int:
    await asyncio.to_thread(_begin_groups, address)
    await asyncio.sleep(_LIVE_FOR_SECONDS)
    return await take_all(address, names)


def main() -> None:
    """Furnish a Timeball, let it run for a while, and take its pictures."""
    names = sys.argv[1:] or list(PAGES)
    FOLDER.mkdir(parents=True, exist_ok=True)
    KEPT_FOLDER.mkdir(parents=True, exist_ok=True)
    with running_servers() as servers:
        server = servers.postgres("pg15")
        # As in production: the settings page and the doctor show these.
        server.execute("ALTER SYSTEM SET fsync = on")
        server.execute("ALTER SYSTEM SET synchronous_commit = on")
        server.execute("SELECT pg_reload_conf()")
        with running_lively(server.dsn(server.create_database())) as address:
            size = asyncio.run(_run_and_take(address, names))
    print(f"{size / 1024 / 1024:.1f} MB in {FOLDER}")


if __name__ == "__main__":
    main()
