"""Every address of the dashboard, by every caller: what SECURITY.md's table counts, repeated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.routing import Match, Route

from tests.dashboard.conftest import Browser, open_browser, token_of
from tests.support.factories import table
from timeball.api.auth import Role
from timeball.client.in_process import InProcessTransport
from timeball.config.settings import ApiSettings, Settings
from timeball.dashboard.app import _ROUTERS, every_page, make_web_app
from timeball.runtime import ServerRuntime
from timeball.store.store import Store

LogIn = Callable[[str], Awaitable[Browser]]
ROLES = [role.value for role in Role]


def routes(method: str) -> list[Route]:
    return [route for router in _ROUTERS for route in router.routes if method in (route.methods or ())]


def address(route: Route) -> str:
    """An address of the route; its parameters name things that do not exist."""
    return re.sub(r"\{[^}]+\}", "nothing", route.path)


def role_of(route: Route) -> Role:
    """The role that a route was given when it was added."""
    cells: dict[str, Any] = dict(
        zip(
            route.endpoint.__code__.co_freevars,
            (cell.cell_contents for cell in route.endpoint.__closure__),
            strict=True,
        )
    )
    return Role(cells["role"])


async def test_every_page_is_for_its_role(parts: ServerRuntime, log_in: LogIn) -> None:
    browsers = {role: await log_in(role) for role in ROLES}
    async with open_browser(parts) as stranger:
        tried = 0
        for route in routes("GET"):
            if route.path == "/parts/stream":  # without an end; the stream's own tests have it
                continue
            path, least = address(route), role_of(route)
            for cookie in ({}, {"Cookie": "timeball_session=guessed"}, {"Authorization": "Bearer tb_x_y"}):
                refused = await stranger.get(path, headers=cookie, follow_redirects=False)
                assert refused.status_code in (303, 401), path
                assert "/login" in refused.headers.get("location", "/login")
                tried += 1
            for role, browser in browsers.items():
                seen = await browser.get(path, follow_redirects=False)
                assert (seen.status_code == 403) == (not Role(role).includes(least)), (path, role)
                assert seen.status_code < 500
                tried += 1
    assert tried == 7 * (len(routes("GET")) - 1)


async def test_every_form_is_for_its_role_and_from_our_own_pages(
    parts: ServerRuntime, log_in: LogIn, store: Store
) -> None:
    browsers = {role: await log_in(role) for role in ROLES}
    pages = {role: token_of((await browser.get("/")).text) for role, browser in browsers.items()}
    before = await table(store, "audit")
    async with open_browser(parts) as stranger:
        for route in routes("POST"):
            path, least = address(route), role_of(route)
            assert (await stranger.post(path, follow_redirects=False)).status_code == 401, path
            for role, browser in browsers.items():
                for headers, token in _forgeries(pages, role):
                    refused = await browser.post(path, data={"token": token}, headers=headers, follow_redirects=False)
                    assert refused.status_code == 403, (path, role, headers)
                if not Role(role).includes(least):
                    refused = await browser.post(path, data={"token": pages[role]}, follow_redirects=False)
                    assert refused.status_code == 403, (path, role)

    assert await table(store, "audit") == before


def _forgeries(pages: dict[str, str], role: str) -> list[tuple[dict[str, str], str]]:
    """A form of another site, and one of ours without its token."""
    other = next(token for name, token in pages.items() if name != role)
    return [
        ({}, ""),
        ({}, "0" * 64),
        ({}, other),
        ({"Origin": "https://evil.example"}, pages[role]),
        ({"Sec-Fetch-Site": "cross-site"}, pages[role]),
        ({"Sec-Fetch-Site": "same-site"}, pages[role]),
    ]


async def test_a_page_that_shows_something_does_not_call_the_api(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages read through the queries. The API is for writes, and for downloads that it answers itself."""
    calls: list[Any] = []
    monkeypatch.setattr("timeball.dashboard.internal_api.InternalApi._write", lambda *call: calls.append(call))

    for route in routes("GET"):
        if route.path != "/parts/stream":
            for headers in ({}, {"HX-Request-Type": "partial"}):
                assert (await browser.get(address(route), headers=headers)).status_code < 500, route.path

    assert calls == []


async def test_pages_count_against_the_limits_of_their_caller(parts: ServerRuntime) -> None:
    settings = Settings(api=ApiSettings(request_burst=3, requests_per_second=0.001))
    async with open_browser(replace(parts, settings=settings)) as browser:
        seen = [(await browser.get("/jobs")).status_code for _ in range(5)]

    assert seen == [200, 200, 200, 429, 429]


@pytest.mark.parametrize("path", ["/timeline", "/forecast"])
async def test_pages_that_are_much_work_take_turns_with_the_api(parts: ServerRuntime, path: str) -> None:
    """While two such requests are under way in the process, a third waits for one of them."""
    app: Any = make_web_app(parts)
    heavy = app._pages.state.site.heavy
    assert heavy is app._api.state.context.heavy_requests
    async with Browser(transport=InProcessTransport(app), base_url="http://localhost:8080") as browser:
        async with heavy.of("one"), heavy.of("two"):
            page = asyncio.ensure_future(browser.get(path))
            done, _ = await asyncio.wait([page], timeout=0.3)
            assert not done

        assert (await page).status_code == 200


def test_a_fixed_path_comes_before_every_route_with_a_parameter() -> None:
    """`/jobs/new` would be the job `new` otherwise."""
    paths = [route.path for route in every_page()]
    first_with_parameter = next(number for number, path in enumerate(paths) if "{" in path)

    assert not [path for path in paths[first_with_parameter:] if "{" not in path]
    for route in every_page():
        method = "POST" if "POST" in (route.methods or ()) else "GET"
        fixed = {"type": "http", "path": re.sub(r"\{[^}]+\}", "nothing", route.path), "method": method}
        first = next(other for other in every_page() if other.matches(fixed)[0] is Match.FULL)
        assert first.path == route.path


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/%0d%0aX: y"]
)
async def test_a_login_does_not_lead_away(log_in: LogIn, wanted: str) -> None:
    browser = await log_in("viewer")
    browser.follow_redirects = False

    led: httpx.Response = await browser.get("/login/done", params={"next": wanted})

    assert led.headers["location"].startswith("/")
    assert not led.headers["location"].startswith(("//", "/\\"))
    assert "\n" not in led.headers["location"]
