"""What a page function is given (caller, API, form, addresses, responses), and the router that calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from zoneinfo import ZoneInfo

import orjson
from jinja2 import Environment
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from timeball.api.auth import Caller, Role
from timeball.api.errors import HttpProblem
from timeball.application.events import EventHub
from timeball.application.queries.lookup import Queries
from timeball.config.settings import Settings
from timeball.dashboard.assets import Assets
from timeball.dashboard.components import Components, form_fields
from timeball.dashboard.formatting import search_term
from timeball.dashboard.internal_api import InternalApi, ReadCache
from timeball.dashboard.session import (
    LOCAL_KEY_PARAMETER,
    CookieSigner,
    SessionAuthenticator,
    browser_id,
    check_csrf,
    cookie_options,
    csrf_token,
    set_browser_cookie,
    set_cookie,
    set_session_cookie,
)
from timeball.domain.node import NodeKind
from timeball.domain.scheduling.civil_time import load_zone
from timeball.domain.values.json_text import parse_json
from timeball.errors import InvalidInput

# What all pages share: the templates, the files, the API, and who is at the reception.


class KeyManager(Protocol):
    """Where API keys are made, listed and revoked."""

    async def create(self, role: str, name: str, expires_in: timedelta | None, audit: Any) -> tuple[Any, str]: ...
    async def list(self) -> Sequence[Any]: ...
    async def revoke(self, key_id: str, audit: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The dashboard of one process."""

    api: ASGIApp
    queries: Queries
    authenticator: SessionAuthenticator
    key_manager: KeyManager
    live: EventHub
    settings: Settings
    assets: Assets
    templates: Environment
    read_cache: ReadCache
    signer: CookieSigner
    # How many there are of what the side of every page names: as they were last counted, by the page each stands beside.
    counts: dict[str, str] = field(default_factory=dict)
    # How many streams the browsers of each caller hold open now.
    streams: Counter[str] = field(default_factory=Counter)

    def render(self, template: str, /, **variables: Any) -> str:
        """A template, filled in."""
        return self.templates.get_template(template).render(**variables)


# One request for a page, and all that its page has at hand: who looks, the API in their name, forms, addresses, answers.

# Who has not logged in: may see the login and the pages that say no.
ANONYMOUS = Caller("stranger", Role.VIEWER)
TOAST_COOKIE = "timeball_toast"
_TOAST_SECONDS = 30
_MAX_FORM_BYTES = 1024 * 1024
_MAX_FORM_FIELDS = 2_000


@dataclass(frozen=True, slots=True)
class Undo:
    """The way back: a path to post to, and what to post."""

    path: str
    fields: Mapping[str, str]


class PageContext:
    """A request for a page."""

    def __init__(self, request: Request, site: Site, caller: Caller) -> None:
        self.request = request
        self.site = site
        self.caller = caller
        self.api = InternalApi(site.api, caller, site.read_cache, use_cache=self.is_partial)
        self.form: dict[str, str] = {}
        self.form_pairs: list[tuple[str, str]] = []
        # Strangers are shown nothing that only visitors may see.
        self.is_anonymous = caller.name == ANONYMOUS.name
        # A page that shows something only this once must not fetch itself anew, nor its parts.
        self.is_static = False
        self._is_toast_shown = False

    # what is asked

    @property
    def path(self) -> Mapping[str, Any]:
        """What stands in the places of the route."""
        return self.request.path_params

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the address, without blanks around it."""
        return self.request.query_params.get(name, default).strip()[:1_000]

    async def read_form(self) -> None:
        """Read what a form sent."""
        body = bytearray()
        try:
            async for chunk in self.request.stream():
                body += chunk
                if len(body) > _MAX_FORM_BYTES:
                    raise HttpProblem(413, "body_too_large", f"the form has more than {_MAX_FORM_BYTES} bytes")
        except ClientDisconnect:
            raise HttpProblem(400, "disconnected", "the request ended before its form did") from None
        try:
            self.form_pairs = parse_qsl(
                body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS
            )
        except ValueError:
            raise HttpProblem(413, "too_many_fields", f"the form has more than {_MAX_FORM_FIELDS} fields") from None
        self.form = dict(self.form_pairs)

    def form_list(self, name: str) -> list[str]:
        """All values that a form gave under one name."""
        return [value for key, value in self.form_pairs if key == name]

    @property
    def is_partial(self) -> bool:
        """Whether only the part that refreshes is wanted."""
        return self.request.headers.get("hx-request-type") == "partial"

    # addresses

    def url(self, path: str, /, **params: Any) -> str:
        """An address of ours, below the prefix we are mounted under."""
        return self.site_url(path) + _query_text(params)

    def site_url(self, path: str) -> str:
        """A path of ours, below the prefix we are mounted under."""
        return self._prefix + path

    @cached_property
    def _prefix(self) -> str:
        return str(self.request.scope.get("root_path", ""))

    def here(self, **changes: Any) -> str:
        """This very address with some parameters changed; None takes one away."""
        pairs = [(name, value) for name, value in self.request.query_params.multi_items() if name not in changes]
        pairs += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        path = quote(self.request.scope["path"])
        return f"{path}?{urlencode(pairs)}" if pairs else path

    # components of pages

    @cached_property
    def components(self) -> Components:
        """What the pages are put together from."""
        sprite = self.site_url(f"/static/{self.site.assets['icons.svg'].address}")
        return Components(sprite, form_fields(self._token, self.here()), self.site_url, self.can)

    @cached_property
    def _browser(self) -> str:
        return browser_id(self.request)

    @cached_property
    def _token(self) -> str:
        return csrf_token(self._browser, self.request)

    # answers

    def can(self, role: str) -> bool:
        """Whether the visitor may do what needs this role."""
        return role in self._roles

    @cached_property
    def _roles(self) -> frozenset[str]:
        return frozenset(role for role in Role if self.caller.role.includes(role))

    def page(self, template: str, /, *, part: str | None = None, http_status: int = 200, **variables: Any) -> Response:
        """A whole page; or, when it is being refreshed, only its *part*."""
        wants_part = part is not None and self.is_partial
        text = self.site.render(
            part if wants_part and part is not None else template,
            context=self,
            token=self._token,
            **variables,
        )
        response = HTMLResponse(text, http_status, headers={"Vary": "HX-Request-Type"})
        set_browser_cookie(response, self.request, self._browser)
        if self._is_toast_shown:
            self._drop_cookie(response, TOAST_COOKIE)
        return response

    def go(self, path: str, toast: str | None = None, *, undo: Undo | None = None, kind: str = "done") -> Response:
        """Send the browser on to an address of ours, and tell there what was done."""
        response = RedirectResponse(path, 303)
        if toast is not None:
            way_back = None if undo is None else {"path": undo.path, "fields": dict(undo.fields)}
            note = orjson.dumps({"text": toast[:500], "kind": kind, "undo": way_back})
            signed = self.site.signer.sign(note, self._reader)
            set_cookie(response, self.request, TOAST_COOKIE, signed, _TOAST_SECONDS)
        return response

    def back(self, otherwise: str) -> str:
        """Where a form wants to return to, if that is one of our own pages."""
        wanted = self.form.get("back", "")
        parts = urlsplit(wanted)
        prefix = self.site_url("/")
        is_ours = not parts.scheme and not parts.netloc and wanted.startswith(prefix) and not wanted.startswith("//")
        return wanted if is_ours and "\\" not in wanted and wanted.isprintable() else self.site_url(otherwise)

    def pop_toast(self) -> Any:
        """What was done just now, for the page that tells it: a part, fetched meanwhile by the page before, must not take it away.

        None if nothing was done, or if the note about it was not written here for this visitor.
        """
        cookie = self.request.cookies.get(TOAST_COOKIE)
        if cookie is None:
            return None
        self._is_toast_shown = True
        note = self.site.signer.read(cookie, self._reader)
        return None if note is None else orjson.loads(note)

    @property
    def _reader(self) -> str:
        """For whom a note is signed: this visitor in this browser."""
        return f"{self._browser} {self.caller.name}"

    def _drop_cookie(self, response: Response, name: str) -> None:
        response.delete_cookie(name, **cookie_options(self.request))


def _query_text(params: Mapping[str, Any]) -> str:
    given = {name: value for name, value in params.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


# From a request to a page: who looks, whether they may, whether a change comes from one of our own forms.

PageFunction: TypeAlias = Callable[[PageContext], Awaitable[Response]]


class PageRouter:
    """The pages of one topic; each names the role it needs."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, role: Role = Role.VIEWER) -> Callable[[PageFunction], PageFunction]:
        """A page to look at."""
        return self._add(path, "GET", role)

    def post(self, path: str, role: Role) -> Callable[[PageFunction], PageFunction]:
        """Something to do."""
        return self._add(path, "POST", role)

    def _add(self, path: str, method: str, role: Role) -> Callable[[PageFunction], PageFunction]:
        def add(page: PageFunction) -> PageFunction:
            self.routes.append(Route(path, _endpoint(page, role), methods=[method]))
            return page

        return add


def _endpoint(page: PageFunction, role: Role) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        site: Site = request.app.state.site
        session = site.authenticator.local_session(request)
        if session is not None and request.method == "GET":
            return _begin_local_session(request, session)
        caller = await site.authenticator.identify(request)
        if caller is None:
            return _redirect_to_login(request)
        await site.signer.prepare()
        context = PageContext(request, site, caller)
        request.state.context = context
        # Before the form is read: its size is not for callers to choose who may not send it.
        caller.needs(role, f"{request.method} {request.url.path[:200]}")
        if request.method == "POST":
            await context.read_form()
            check_csrf(request, context.form.get("token", ""))
        return await page(context)

    return endpoint


def _begin_local_session(request: Request, session: str) -> Response:
    """Keep the local key out of the address, where it would be seen and stored: the browser gets a cookie instead."""
    address = request.url.remove_query_params(LOCAL_KEY_PARAMETER)
    response = RedirectResponse(f"{address.path}?{address.query}" if address.query else address.path, 303)
    set_session_cookie(response, request, session)
    return response


def _redirect_to_login(request: Request) -> Response:
    """Log in first, then come back; a part or a stream cannot ask for a key, so its whole page goes."""
    prefix = request.scope.get("root_path", "")
    is_page = "text/html" in request.headers.get("accept", "text/html") or "*/*" in request.headers["accept"]
    if request.method != "GET" or request.headers.get("hx-request") or not is_page:
        return Response(status_code=401, headers={"HX-Redirect": f"{prefix}/login"})
    wanted = request.scope["path"].removeprefix(prefix)
    query = request.url.query
    target = request.url.replace_query_params(next=f"{wanted}?{query}" if query else wanted).query
    return RedirectResponse(f"{prefix}/login?{target}", 303)


# Where to look: the page of a thing that a read names by its kind and its id.

_TARGET_PATHS = {
    "job": "/jobs/{id}",
    "execution": "/executions/{id}",
    "worker": "/workers",
    "scheduler": "/workers",
    "node": "/workers",
    "dead": "/dead",
    "dead_letters": "/dead",
    "keys": "/keys",
    "database": "/doctor",
}


def target_url(context: PageContext, target: Mapping[str, str] | None) -> str | None:
    """The address of what is meant; None if no page shows it."""
    if target is None:
        return None
    kind, name = target["kind"], target["id"]
    if kind == "queue":
        return context.url("/queues/one", name=name)
    if kind == "handler":
        return context.url("/jobs", q=search_term(name, "handler"))
    path = _TARGET_PATHS.get(kind)
    return None if path is None else context.site_url(path.format(id=name))


# The zone a visitor chose: their browser says it, and pages that draw hours and days keep to it.

ZONE_COOKIE = "timeball_zone"


def browser_zone(request: Request) -> ZoneInfo:
    """The zone of a visitor; UTC if their browser has not said it yet, or said nonsense."""
    try:
        return load_zone(unquote(request.cookies.get(ZONE_COOKIE, "UTC")))
    except InvalidInput:
        return load_zone("UTC")


def zone_label(zone: ZoneInfo) -> str:
    """`Berlin` for Europe/Berlin."""
    return zone.key.rpartition("/")[2].replace("_", " ")


async def known_handlers(queries: Queries) -> list[str]:
    """The handlers that some live worker knows, or that workers have published."""
    nodes = await queries.nodes(NodeKind.WORKER)
    return sorted({*(name for node in nodes for name in node.handlers), *await queries.contracts.names()})


def parse_json_field(text: str, field: str) -> Any:
    """JSON from a field of a form."""
    return parse_json(text, field, field=field, hint='such as {"to": "a@b.co"}')
