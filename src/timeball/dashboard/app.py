"""API and dashboard under one roof: what belongs to the API goes there, every other address is a page."""

from __future__ import annotations

from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timeball.api.app import make_api, make_tries
from timeball.api.auth import Gate, KeyRing
from timeball.api.desk import ApiParts
from timeball.api.limits import KeyTries
from timeball.api.problems import Refusal
from timeball.dashboard.assets import Assets
from timeball.dashboard.inner_api import ApiProblem
from timeball.dashboard.pages import every_page
from timeball.dashboard.pages.problem import show_failure, show_missing, show_problem, show_refusal
from timeball.dashboard.shared_reads import SharedReads
from timeball.dashboard.site import KeyCupboard, Site, make_templates
from timeball.dashboard.visitor import Reception, SessionRing, Signer
from timeball.errors import TimeballError

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# What the API answers; everything else is a page.
_API_PATHS = ("/api", "/docs", "/openapi.json", "/metrics")


class _Keys(KeyRing, KeyCupboard, Protocol):
    """The keys: to be recognised, and to be made."""


class FrontParts(ApiParts, Protocol):
    """What API and dashboard are made of."""

    @property
    def keys(self) -> _Keys: ...
    @property
    def sessions(self) -> SessionRing: ...


def make_front(parts: FrontParts, gate: Gate | None = None) -> ASGIApp:
    """API and dashboard over the parts of an open process; keys open their gate, unless another one is given."""
    tries = make_tries(parts)
    api = make_api(parts, gate, tries)
    return _Front(api, make_dashboard(parts, api, tries, gate), parts.settings.url_prefix)


def make_dashboard(parts: FrontParts, api: ASGIApp, tries: KeyTries, gate: Gate | None = None) -> Starlette:
    """The pages, over an API of the same process."""
    assets = Assets()
    keeper = gate or Gate(parts.keys, parts.settings.host)
    reception = Reception(keeper, parts.keys, parts.sessions, tries, parts.emit, idle=parts.settings.api.session_idle)
    routes = [Route("/static/{address:path}", assets.serve), *every_page()]
    handlers = {
        ApiProblem: show_problem,
        Refusal: show_refusal,
        TimeballError: show_failure,
        HTTPException: show_missing,
        Exception: show_failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.site = Site(
        api=api,
        insights=parts.insights,
        reception=reception,
        cupboard=parts.keys,
        live=parts.live,
        settings=parts.settings,
        assets=assets,
        templates=make_templates(assets),
        reads=SharedReads(parts.env.clock.monotonic),
        signer=Signer(parts.sessions.signing_secret),
    )
    app.add_middleware(_SafeHeaders)
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4)
    return app


class _Front:
    """Sends a request where it belongs, below the prefix that a proxy shows us under."""

    def __init__(self, api: ASGIApp, pages: ASGIApp, prefix: str) -> None:
        self._api = api
        self._pages = pages
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        root, path = scope.get("root_path", ""), scope["path"]
        if self._prefix:
            # Some proxies take the prefix off, some leave it on.
            own = path.removeprefix(root)
            kept = own == self._prefix or own.startswith(f"{self._prefix}/")
            root, path = root + self._prefix, path if kept else root + self._prefix + own
            scope = {**scope, "root_path": root, "path": path}
        own = path.removeprefix(root)
        is_for_api = any(own == known or own.startswith(f"{known}/") for known in _API_PATHS)
        await (self._api if is_for_api else self._pages)(scope, receive, send)


class _SafeHeaders:
    """Every answer says what a browser may do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_marked if scope["type"] == "http" else send)
