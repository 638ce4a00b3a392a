"""Every page can be used by everybody: axe finds nothing serious, in light and in dark."""

from __future__ import annotations

import tomllib
from base64 import b64encode
from hashlib import sha384
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.dashboard.chromium import chromium, window
from tests.dashboard.lively_process import PAGES, lively

__all__ = ["chromium", "lively"]

VENDOR = Path(__file__).parent / "vendor"
AXE = (VENDOR / "axe-4.10.3.min.js").read_text(encoding="utf-8")
_RULES = "['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']"
# In the dark only the colours are others.
_COLOURS = "{type: 'rule', values: ['color-contrast', 'link-in-text-block']}"
RUNS = {
    scheme: f"axe.run(document, {{resultTypes: ['violations'], runOnly: {rules}}})"
    for scheme, rules in (("light", _RULES), ("dark", _COLOURS))
}
GRAVE = ("serious", "critical")


def test_axe_is_what_its_makers_published() -> None:
    (known,) = tomllib.loads((VENDOR / "vendor.toml").read_text(encoding="utf-8"))["file"]

    digest = sha384((VENDOR / known["path"]).read_bytes()).digest()

    assert b64encode(digest).decode() == known["sha384"]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_has_a_serious_fault(chromium: Browser, lively: str, scheme: str) -> None:
    async with window(chromium, lively, color_scheme=scheme) as page:
        found = {path: await _faults(page, path, scheme) for path in (*PAGES, *await _single_pages(page))}

    assert {path: faults for path, faults in found.items() if faults} == {}


async def _single_pages(page: Page) -> list[str]:
    """A job, an execution, and why it is where it is."""
    await page.goto("/dead")
    job = (await (await page.request.get("/api/v1/jobs?limit=1")).json())["data"][0]["id"]
    run = (await (await page.request.get("/api/v1/executions?status=dead&limit=1")).json())["data"][0]["id"]
    return [f"/jobs/{job}", f"/jobs/{job}/edit", f"/executions/{run}", f"/executions/{run}/why"]


async def _faults(page: Page, path: str, scheme: str) -> list[str]:
    await page.goto(path)
    await page.evaluate(AXE)
    found: dict[str, Any] = await page.evaluate(RUNS[scheme])
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary'][:200]}"
        for fault in found["violations"]
        if fault["impact"] in GRAVE
        for node in fault["nodes"][:3]
    ]
