"""The web application: API and dashboard under one address, static files, security headers, error pages.

The address of a static file contains a hash of its content, so that browsers may cache it for ever.
"""

from __future__ import annotations

import logging
import mimetypes
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256, sha384
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from timeball.api.app import make_api, make_key_limiter
from timeball.api.auth import KeyAuthenticator, KeyLookup
from timeball.api.errors import HttpProblem
from timeball.api.limits import FailedKeyLimiter
from timeball.api.params import ApiContext, ApiParts
from timeball.dashboard import charts
from timeball.dashboard.components import time_tag
from timeball.dashboard.context import ANONYMOUS, KeyManager, PageContext, Site
from timeball.dashboard.formatting import FILTERS, STATES
from timeball.dashboard.internal_api import ApiProblem, ReadCache
from timeball.dashboard.pages import (
    alerts,
    backfill,
    calendars,
    channels,
    cluster,
    dead_letters,
    executions,
    forecast,
    freezes,
    groups,
    job_form,
    jobs,
    live,
    login,
    navigation,
    operations,
    system,
    templates,
    timeline,
    webhooks,
)
from timeball.dashboard.session import CookieSigner, SessionAuthenticator, SessionBackend, was_identified
from timeball.domain.job_fields import SPEC_FIELDS, Section
from timeball.errors import InvalidInput, NotFound, StoreUnavailable, TimeballError, quote_text
from timeball.version import __version__

_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMPORT = re.compile(r'(from\s+|import\s+)"\./([a-z_]+\.js)"')
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file with its address."""

    address: str
    body: bytes
    media_type: str

    @property
    def integrity(self) -> str:
        """The hash that a page states, so that a browser accepts no other file."""
        return f"sha384-{b64encode(sha384(self.body).digest()).decode()}"


class Assets:
    """All static files, by their names in the source."""

    def __init__(self) -> None:
        raw = _read(files("timeball.dashboard") / "static", "")
        self._by_name = _addressed(raw)
        self._by_address = {asset.address: asset for asset in self._by_name.values()}

    def __getitem__(self, name: str) -> Asset:
        return self._by_name[name]

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    async def serve(self, request: Request) -> Response:
        """Serve a file by its address; needs no login."""
        asset = self._by_address.get(request.path_params["address"])
        if asset is None:
            return Response("no such file", 404, media_type="text/plain")
        return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _FOR_EVER})


def _read(folder: Any, prefix: str) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            contents |= _read(entry, f"{prefix}{entry.name}/")
        elif PurePosixPath(entry.name).suffix in _KINDS:
            contents[prefix + entry.name] = entry.read_bytes()
    return contents


def _addressed(raw: Mapping[str, bytes]) -> dict[str, Asset]:
    """The files with their addresses. An imported module gets its address first, because its importers contain it."""
    assets: dict[str, Asset] = {}

    def make(name: str) -> Asset:
        if name not in assets:
            text = _IMPORT.sub(lambda match: f'{match[1]}"./{make(match[2]).address}"', raw[name].decode())
            assets[name] = _asset(name, text.encode())
        return assets[name]

    for name in raw:
        make(name)
    return assets


def _asset(name: str, body: bytes) -> Asset:
    path = PurePosixPath(name)
    address = str(path.with_suffix(f".{sha256(body).hexdigest()[:12]}{path.suffix}"))
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(address, body, kind)


class _TemplateEnvironment(Environment):
    """Looks `row.name` up among the fields of a document first: most values are documents, and this is many times as quick."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj:
            return obj[attribute]
        try:
            return getattr(obj, attribute)
        except AttributeError:
            return super().getattr(obj, attribute)


def make_templates(assets: Assets) -> Environment:
    """The templates: all values are escaped, and a missing name is an error."""
    environment = _TemplateEnvironment(
        loader=PackageLoader("timeball.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Templates do not change while the process runs; a page would check thirty files otherwise.
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(
        assets=assets,
        charts=charts,
        states=STATES,
        version=__version__,
        a_time=time_tag,
        job_fields=SPEC_FIELDS,
        job_sections=tuple(Section),
    )
    return environment


CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# The API answers these paths; all others are pages.
_API_PATHS = ("/api", "/docs", "/openapi.json", "/metrics")


class _KeyAccess(KeyLookup, KeyManager, Protocol):
    """Recognises and manages API keys."""


class WebDependencies(ApiParts, Protocol):
    """The parts of a process that API and dashboard need."""

    @property
    def keys(self) -> _KeyAccess: ...
    @property
    def sessions(self) -> SessionBackend: ...


def make_web_app(parts: WebDependencies, authenticator: KeyAuthenticator | None = None) -> ASGIApp:
    """API and dashboard over the parts of an open process; API keys identify callers, unless *authenticator* does."""
    key_limiter = make_key_limiter(parts)
    api = make_api(parts, authenticator, key_limiter)
    return _PrefixDispatcher(api, make_dashboard(parts, api, key_limiter, authenticator), parts.settings.url_prefix)


def make_dashboard(
    parts: WebDependencies,
    api: Starlette,
    key_limiter: FailedKeyLimiter,
    authenticator: KeyAuthenticator | None = None,
) -> Starlette:
    """The pages, over an API of the same process."""
    assets = Assets()
    api_context: ApiContext = api.state.context
    sessions = SessionAuthenticator(
        authenticator or KeyAuthenticator(parts.keys, parts.settings.host),
        parts.keys,
        parts.sessions,
        key_limiter,
        parts.emit,
        idle=parts.settings.api.session_idle,
    )
    routes = [Route("/static/{address:path}", assets.serve), *every_page()]
    handlers = {
        ApiProblem: show_api_problem,
        HttpProblem: show_refusal,
        TimeballError: show_failure,
        HTTPException: show_missing,
        Exception: show_failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.site = Site(
        api=api,
        queries=parts.queries,
        catalogue=parts.catalogue,
        authenticator=sessions,
        limits=key_limiter.limits,
        # Shared with the API: heavy requests take turns in the whole process.
        heavy=api_context.heavy_requests,
        key_manager=parts.keys,
        live=parts.live,
        settings=parts.settings,
        assets=assets,
        templates=make_templates(assets),
        read_cache=ReadCache(parts.env.clock.monotonic),
        signer=CookieSigner(parts.sessions.signing_secret),
    )
    app.add_middleware(_SecurityHeaders)
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4)
    return app


class _PrefixDispatcher:
    """Sends a request to the API or to a page, below the prefix under which a proxy shows us."""

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
            # Some proxies remove the prefix, some keep it.
            own = path.removeprefix(root)
            has_prefix = own == self._prefix or own.startswith(f"{self._prefix}/")
            root, path = root + self._prefix, path if has_prefix else root + self._prefix + own
            scope = {**scope, "root_path": root, "path": path}
        own = path.removeprefix(root)
        is_for_api = any(own == prefix or own.startswith(f"{prefix}/") for prefix in _API_PATHS)
        await (self._api if is_for_api else self._pages)(scope, receive, send)


class _SecurityHeaders:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_marked if scope["type"] == "http" else send)


_log = logging.getLogger("timeball.dashboard")
_ERROR_TITLES = {
    401: "An API key is needed",
    403: "You may not do this",
    404: "Not found",
    409: "That is not possible now",
    412: "It was changed meanwhile",
    422: "Invalid input",
    429: "Too many requests",
    503: "The database does not answer",
}


async def _error_context(request: Request) -> PageContext:
    """The context of an error before a page was reached: its caller may not have been identified yet."""
    site: Site = request.app.state.site
    caller = None
    with suppress(HttpProblem, TimeballError):
        if not was_identified(request):
            caller = await site.authenticator.identify(request)
        await site.signer.prepare()
    return PageContext(request, site, caller or ANONYMOUS)


async def show_api_problem(request: Request, error: Any) -> Response:
    """A refusal of the API."""
    assert isinstance(error, ApiProblem)
    return await _show_error(request, error.status, error.detail, error.hint)


async def show_refusal(request: Request, error: Any) -> Response:
    """A refusal of the dashboard itself."""
    assert isinstance(error, HttpProblem)
    return await _show_error(request, error.status, str(error), error.hint, error.headers)


async def show_missing(request: Request, error: Any) -> Response:
    """An address without a page."""
    assert isinstance(error, HTTPException)
    return await _show_error(
        request, error.status_code, f"no page has the address {quote_text(request.url.path, 200)}", None
    )


async def show_failure(request: Request, error: Exception) -> Response:
    """An error of the program; the log has its traceback."""
    if isinstance(error, InvalidInput):
        return await _show_error(request, 422, str(error), error.hint)
    if isinstance(error, NotFound):
        return await _show_error(request, 404, str(error), "it may have been deleted; look for it in the list")
    if isinstance(error, StoreUnavailable):
        return await _show_error(
            request, 503, "the database cannot be reached, or took too long", "try again in a moment"
        )
    _log.error("page failed: %s %s", request.method, quote_text(request.url.path), exc_info=error)
    return await _show_error(request, 500, "something went wrong here", "the server's log says more")


async def _show_error(
    request: Request, status: int, detail: str, hint: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    context = getattr(request.state, "context", None) or await _error_context(request)
    title = _ERROR_TITLES.get(status, "That did not work")
    response = context.page(
        "problem.html", part="partials/problem.html", http_status=status, title=title, detail=detail, hint=hint
    )
    response.headers.update(headers or {})
    return response


_ROUTERS = (
    backfill.router,
    calendars.router,
    channels.router,
    cluster.router,
    dead_letters.router,
    executions.router,
    forecast.router,
    freezes.router,
    alerts.router,
    groups.router,
    job_form.router,
    jobs.router,
    live.router,
    navigation.router,
    operations.router,
    system.router,
    templates.router,
    timeline.router,
    webhooks.router,
)


def every_page() -> list[Route]:
    """All routes of the dashboard. Fixed paths come before parameters: `/jobs/new` is not the job `new`."""
    routes = [route for router in _ROUTERS for route in router.routes]
    return [*login.ROUTES, *sorted(routes, key=lambda route: "{" in route.path)]
