"""Fixtures of the dashboard: browsers that send whole requests to the web application."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from tests.api.conftest import fresh_database, make_key, parts
from tests.dashboard.chromium import chromium, make, page, timeball_up
from tests.dashboard.demo_process import lively
from timeball.client.in_process import InProcessTransport
from timeball.dashboard.app import make_web_app
from timeball.runtime import ServerRuntime

# Here and nowhere else: each module that imports a fixture has a server and a browser of its own.
__all__ = ["chromium", "fresh_database", "lively", "make", "make_key", "page", "parts", "timeball_up"]


class Browser(httpx.AsyncClient):
    """A browser without eyes: it keeps cookies, follows redirects, and fills forms with the token they bear."""

    async def submit(self, path: str, *, seen_on: str | None = None, **fields: object) -> httpx.Response:
        """Send a form, as the page that holds it would."""
        page = await self.get(seen_on or "/")
        return await self.post(path, data={"token": token_of(page.text), **fields})


def token_of(page: str) -> str:
    """The token that the forms of a page bear."""
    found = re.search(r'name="form-token" content="([0-9a-f]+)"', page)
    return found[1] if found else ""


def open_browser(parts: ServerRuntime, address: str = "http://localhost:8080") -> Browser:
    transport = InProcessTransport(make_web_app(parts))
    return Browser(transport=transport, base_url=address, follow_redirects=True)


@pytest.fixture
async def browser(parts: ServerRuntime) -> AsyncIterator[Browser]:
    """A browser on this machine, without any API key in the database."""
    async with open_browser(parts) as opened:
        yield opened


@pytest.fixture
async def log_in(
    parts: ServerRuntime, make_key: Callable[[str], Awaitable[dict[str, str]]]
) -> AsyncIterator[Callable[[str], Awaitable[Browser]]]:
    """Opens a browser that has logged in with a key of this role."""
    opened: list[Browser] = []

    async def enter(role: str) -> Browser:
        key = (await make_key(role))["Authorization"].removeprefix("Bearer ")
        browser = open_browser(parts)
        opened.append(browser)
        answer = await browser.submit("/login", seen_on="/login", key=key)
        assert answer.status_code == 200
        return browser

    yield enter
    for browser in opened:
        await browser.aclose()
