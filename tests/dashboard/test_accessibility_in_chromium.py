"""Accessibility: axe finds nothing serious on any page, in light and in dark."""

from __future__ import annotations

import tomllib
from base64 import b64encode
from hashlib import sha384
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.dashboard.chromium import window
from tests.dashboard.demo_process import PAGES

VENDOR = Path(__file__).parent / "vendor"
AXE = (VENDOR / "axe-4.10.3.min.js").read_text(encoding="utf-8")
_RULES = "['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']"
# In the dark only the colours are others; and what stands around every page is looked at once.
_COLOURS = "{type: 'rule', values: ['color-contrast', 'link-in-text-block']}"
_CONTENT = "(location.pathname === '/' ? null : document.querySelector('main')) ?? document"
_RUN = "axe.run({place}, {{resultTypes: ['violations'], runOnly: {rules}}})"
SCANS = {"light": _RUN.format(place="document", rules=_RULES), "dark": _RUN.format(place=_CONTENT, rules=_COLOURS)}
# Of rows, marks and choices that are made alike, two tell of all the others; every kind of them stays.
_THIN_OUT = """
const kind = (one) => [one, ...one.querySelectorAll("*")].map((part) => part.tagName + part.getAttribute("class")).join();
for (const whole of document.querySelectorAll("tbody, svg, svg g, ol, ul, select, datalist, :has(> .change)")) {
  const seen = {};
  for (const one of [...whole.children]) if ((seen[kind(one)] = (seen[kind(one)] ?? 0) + 1) > 2) one.remove();
}
"""
GRAVE = ("serious", "critical")


def test_axe_is_what_its_makers_published() -> None:
    (known,) = tomllib.loads((VENDOR / "vendor.toml").read_text(encoding="utf-8"))["file"]

    digest = sha384((VENDOR / known["path"]).read_bytes()).digest()

    assert b64encode(digest).decode() == known["sha384"]


@pytest.mark.asyncio(loop_scope="session")
async def test_no_page_has_a_serious_fault_in_light_or_dark(chromium: Browser, lively: str) -> None:
    async with window(chromium, lively, color_scheme="light", reduced_motion="reduce") as page:
        # The stream would put rows back while axe looks at them.
        await page.route("**/parts/stream", lambda route: route.fulfill(status=204))
        # So would what is fetched instead of it, every ten seconds.
        await page.route("**/parts/ping", lambda _unanswered: None)
        found = {path: await _faults(page, path) for path in (*PAGES, *await _single_pages(page))}
        # A phone shows what a desk hides: the agenda, and a bar without words.
        await page.set_viewport_size({"width": 390, "height": 844})
        found["/timeline on a phone"] = await _faults(page, "/timeline")

    assert {path: faults for path, faults in found.items() if faults} == {}


async def _single_pages(page: Page) -> list[str]:
    """A job with its tabs and forms, a group, a calendar, and an execution with the reason of its state; a freeze is on most of them."""
    await page.goto("/dead")
    job = (await (await page.request.get("/api/v1/jobs?limit=1")).json())["data"][0]["id"]
    run = (await (await page.request.get("/api/v1/executions?status=dead&limit=1")).json())["data"][0]["id"]
    await page.request.post("/api/v1/calendars", data={"name": "closing", "days": ["12-25"]})
    await page.request.patch("/api/v1/calendars/closing", data={"days": ["12-25", "01-01"]})
    await page.request.post("/api/v1/freezes", data={"queue": "crm", "until": "2099-01-01T00:00:00Z"})
    webhook = await (await page.request.post("/api/v1/webhooks", data={"url": "https://example.com/hook"})).json()
    delivery = await (await page.request.post(f"/api/v1/webhooks/{webhook['id']}/test")).json()
    of_job = [
        f"/jobs/{job}{rest}"
        for rest in ("", "?tab=ledger", "?tab=schedule", "/edit", "/backfill", "/why?at=2026-11-17T12:00")
    ]
    parts: list[dict[str, Any]] = [
        {"handler": "report"},
        {"chain": [{"handler": "report"}] * 2},
        {"group": [{"handler": "report"}] * 3},
    ]
    group = (
        await (await page.request.post("/api/v1/groups", data={"group": parts, "meta": {"tenant": "acme"}})).json()
    )["id"]
    of_group = [f"/groups/{group}", f"/groups/{group}/why"]
    of_webhook = ["/webhooks/new", f"/webhooks/{webhook['id']}", f"/webhooks/deliveries/{delivery['id']}"]
    of_run = [f"/executions/{run}", f"/executions/{run}/why"]
    return [*of_job, *of_group, *of_webhook, "/calendars/new", "/calendars/closing", *of_run]


async def _faults(page: Page, path: str) -> list[str]:
    """What axe finds on a page: everything in light, then the colours in dark."""
    await page.goto(path)
    await page.evaluate(_THIN_OUT)
    await page.evaluate(AXE)
    faults: list[str] = []
    for scheme, scan in SCANS.items():
        await page.emulate_media(color_scheme=scheme)
        faults += [f"{scheme}: {fault}" for fault in _grave(await page.evaluate(scan))]
    return faults


def _grave(found: dict[str, Any]) -> list[str]:
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"][:3]
    ]
