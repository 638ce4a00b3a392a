"""A real browser before a real Timeball: one of each for all tests of a process.

Whatever a page writes to the console as an error, and whatever the content policy stops, fails the test that saw it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Route, async_playwright

from tests.support.broker_servers import free_port
from tests.support.pace import patience
from tests.support.servers import PostgresServer, Servers, ServiceMissing, give_up_on, wait_until

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# A busy machine is no reason to fail.
PATIENCE_MS = patience(30) * 1_000


def find_chromium() -> str:
    """The browser of the system."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise ServiceMissing("Chromium is not installed: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def timeball_up(
    servers: Servers, template_of: Callable[[PostgresServer], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """`timeball up` in a process of its own, on a database of its own; gives its address."""
    try:
        find_chromium()
        server = servers.postgres("pg15")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    up = Up(server.dsn(name), tmp_path_factory.mktemp("up"))
    yield up.address
    up.stop()
    server.drop_database(name)


class Up:
    """A running Timeball."""

    def __init__(self, dsn: str, folder: Path, **settings: str) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        environment = {"TIMEBALL_DATABASE_URL": dsn, "TIMEBALL_PORT": str(port), "TIMEBALL_LOG_LEVEL": "warning"}
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "timeball", "up"],
            env=os.environ | environment | settings,
            cwd=folder,
            stderr=self._log,
            stdout=self._log,
        )
        wait_until(self._answers, "Timeball answers", 180)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "Timeball has ended"
        try:
            return httpx.get(f"{self.address}/api/v1/health/live").is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._log.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """The browser; its pages are opened one by one."""
    try:
        program = find_chromium()
    except ServiceMissing as error:
        give_up_on(error)
        raise
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        await opened.close()


@asynccontextmanager
async def window(chromium: Browser, address: str, **settings: Any) -> AsyncIterator[Page]:
    """A window of its own, with cookies of its own, that complains of every error in the console."""
    complaints: list[str] = []
    context = await _context(chromium, address, settings)
    page = await context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if _is_error(message) else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    await context.close()
    assert complaints == [], complaints


async def _context(chromium: Browser, address: str, settings: dict[str, Any]) -> BrowserContext:
    given = {
        "viewport": {"width": 1280, "height": 800},
        "timezone_id": "Europe/Berlin",
        # Without a graphics card a dot that pulses keeps a processor busy.
        "reduced_motion": "reduce",
        "base_url": address,
        **settings,
    }
    context = await chromium.new_context(**given)
    context.set_default_timeout(PATIENCE_MS)
    return context


def _is_error(message: ConsoleMessage) -> bool:
    # A form that was refused is answered by a page under the status 422, and an expired session gets a 401;
    # the console takes both for a failure to load.
    return message.type == "error" and not any(status in message.text for status in ("422", "401"))


async def until_it_listens(page: Page) -> None:
    """Waits for the scripts of a page that is seen already: what is pressed before they are there is pressed in vain."""
    await page.wait_for_load_state()


async def stop_time(page: Page) -> None:
    """Lets no timer of its pages run out: toasts stay, and two keys belong together, however long the test takes."""
    await page.clock.install(time=0)
    await page.clock.pause_at(1)


@asynccontextmanager
async def held_back(page: Page, address: str) -> AsyncIterator[asyncio.Event]:
    """Keeps what parts of the page ask for there from the server until the end; tells when one has asked."""
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        if "hx-request" in route.request.headers:
            asked.set()
            await goes_on.wait()
        await route.continue_()

    await page.route(address, hold)
    yield asked
    goes_on.set()


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, timeball_up: str) -> AsyncIterator[Page]:
    """A window before Timeball."""
    async with window(chromium, timeball_up) as opened:
        yield opened


@pytest.fixture
def make(timeball_up: str) -> Callable[..., dict[str, Any]]:
    """Asks the API for something, as a program would."""

    def post(path: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"{timeball_up}/api/v1{path}", json=body, timeout=30)
        assert answer.is_success, answer.text
        made: dict[str, Any] = answer.json()
        return made

    return post
