"""What a page function is given (caller, API, form, addresses, responses), and the router that calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
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
from timeball.api.limits import HeavyRequestLimiter, RateLimiter
from timeball.api.params import CatalogueReader
from timeball.application.events import EventHub
from timeball.config.settings import Settings
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
from timeball.domain.scheduling.civil_time import load_zone, parse_instant
from timeball.domain.search import PageRequest
from timeball.domain.values.ids import format_id
from timeball.domain.values.json_text import parse_json
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.application.queries import Queries
    from timeball.dashboard.app import Assets

Answer = TypeVar("Answer")


class KeyManager(Protocol):
    """Creates, lists and revokes API keys."""

    async def create(self, role: str, name: str, expires_in: timedelta | None, audit: Any) -> tuple[Any, str]: ...
    async def list(self) -> Sequence[Any]: ...
    async def revoke(self, key_id: str, audit: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Site:
    """The dashboard of one process."""

    api: ASGIApp
    queries: Queries
    catalogue: CatalogueReader
    authenticator: SessionAuthenticator
    limits: RateLimiter
    heavy: HeavyRequestLimiter
    key_manager: KeyManager
    live: EventHub
    settings: Settings
    assets: Assets
    templates: Environment
    read_cache: ReadCache
    signer: CookieSigner
    # The numbers beside the links of the sidebar, by path, as they were last counted.
    counts: dict[str, str] = field(default_factory=dict)
    # How many event streams each caller holds open now.
    streams: Counter[str] = field(default_factory=Counter)

    def render(self, template: str, /, **variables: Any) -> str:
        """The text of a template with these variables."""
        return self.templates.get_template(template).render(**variables)


# A caller that has not logged in: it sees the login page and error pages only.
ANONYMOUS = Caller("anonymous", Role.VIEWER)
TOAST_COOKIE, SEEN_COOKIE = "timeball_toast", "timeball_seen"
_TOAST_SECONDS = 30
# What was missed is reported for a day; the hours at its edges count whole.
_SEEN_SECONDS = 26 * 3_600
_MAX_SEEN = 50
_MAX_FORM_BYTES = 1024 * 1024
_MAX_FORM_FIELDS = 2_000


@dataclass(frozen=True, slots=True)
class Undo:
    """How an action is undone: a path to post to, and what to post."""

    path: str
    fields: Mapping[str, str]


class PageContext:
    """One request for a page: its caller, what it asks for, and the means to read, write and respond.

    A page reads through `site.queries` and writes through `api`.
    """

    def __init__(self, request: Request, site: Site, caller: Caller) -> None:
        self.request = request
        self.site = site
        self.caller = caller
        self.form: dict[str, str] = {}
        self.form_pairs: list[tuple[str, str]] = []
        self.is_anonymous = caller.name == ANONYMOUS.name
        # A page that shows something only once must not refresh itself or its parts.
        self.is_static = False
        self._is_toast_shown = False

    # the request

    @property
    def path(self) -> Mapping[str, Any]:
        """The parameters of the route."""
        return self.request.path_params

    def query(self, name: str, default: str = "") -> str:
        """A query parameter, stripped."""
        return self.request.query_params.get(name, default).strip()[:1_000]

    def page_request(self, limit: int) -> PageRequest:
        """The page of a list that the address asks for."""
        return PageRequest(limit=limit, cursor=self.query("cursor") or None)

    async def read_form(self) -> None:
        """Read the submitted form."""
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
        """All values of the form's fields of one name."""
        return [value for key, value in self.form_pairs if key == name]

    @property
    def is_partial(self) -> bool:
        """Whether the request asks only for the part of the page that refreshes."""
        return self.request.headers.get("hx-request-type") == "partial"

    # reads

    async def shared(self, key: Hashable, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """What *read* returns; browsers that refresh the same part at the same moment share one read."""
        return await (self.site.read_cache.get(key, read) if self.is_partial else read())

    # addresses

    def url(self, path: str, /, **params: Any) -> str:
        """An address of the dashboard with query parameters."""
        return self.site_url(path) + _query_text(params)

    def site_url(self, path: str) -> str:
        """A path of the dashboard, below the prefix that it is mounted under."""
        return self._prefix + path

    @cached_property
    def api(self) -> InternalApi:
        """The API on behalf of the caller: how a page writes."""
        return InternalApi(self.site.api, self.caller, self.site.read_cache)

    @cached_property
    def _prefix(self) -> str:
        return str(self.request.scope.get("root_path", ""))

    def here(self, **changes: Any) -> str:
        """This address with some parameters changed; None removes one. `part` is for refreshes, and goes by itself."""
        left_out = {"part", *changes}
        pairs = [(name, value) for name, value in self.request.query_params.multi_items() if name not in left_out]
        pairs += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        path = quote(self.request.scope["path"])
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def tag_url(self, tag: str) -> str:
        """The page of a tag."""
        # A browser resolves these two as steps of a path, however they are written.
        if tag in (".", ".."):
            return self.url("/jobs", q=search_term(tag, "tag"))
        return self.site_url(f"/tags/{quote(tag, safe='')}")

    def worker_url(self, worker: str) -> str:
        """The page of a worker, by its id or its name."""
        return self.site_url(f"/workers/{quote(worker, safe='')}")

    # components of pages

    @cached_property
    def components(self) -> Components:
        """The HTML components, for this caller and this address."""
        sprite = self.site_url(f"/static/{self.site.assets['icons.svg'].address}")
        return Components(sprite, form_fields(self._token, self.here()), self.site_url, self.can)

    @cached_property
    def _browser(self) -> str:
        return browser_id(self.request)

    @cached_property
    def _token(self) -> str:
        return csrf_token(self._browser, self.request)

    # responses

    def can(self, role: str) -> bool:
        """Whether the caller has this role."""
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
            self._delete_cookie(response, TOAST_COOKIE)
        return response

    def go(self, path: str, toast: str | None = None, *, undo: Undo | None = None, kind: str = "done") -> Response:
        """Redirect the browser, and show a toast on the page it goes to."""
        response = RedirectResponse(path, 303)
        if toast is not None:
            reverse = None if undo is None else {"path": undo.path, "fields": dict(undo.fields)}
            note = orjson.dumps({"text": toast[:500], "kind": kind, "undo": reverse})
            signed = self.site.signer.sign(note, self._reader)
            set_cookie(response, self.request, TOAST_COOKIE, signed, _TOAST_SECONDS)
        return response

    def back(self, otherwise: str) -> str:
        """The address that the form returns to, if it is one of the dashboard's pages; *otherwise* if not."""
        target = self.form.get("back", "")
        parts = urlsplit(target)
        prefix = self.site_url("/")
        is_ours = not parts.scheme and not parts.netloc and target.startswith(prefix) and not target.startswith("//")
        return target if is_ours and "\\" not in target and target.isprintable() else self.site_url(otherwise)

    def pop_toast(self) -> Any:
        """The toast of the last action; None if there is none, or if it was not signed for this caller and browser.

        Only whole pages call it: a part that the previous page fetches meanwhile must not use the toast up.
        """
        cookie = self.request.cookies.get(TOAST_COOKIE)
        if cookie is None:
            return None
        self._is_toast_shown = True
        note = self.site.signer.read(cookie, self._reader)
        return None if note is None else orjson.loads(note)

    @cached_property
    def seen(self) -> list[str]:
        """The marks of what this caller has put away in this browser."""
        note = self.site.signer.read(self.request.cookies.get(SEEN_COOKIE, ""), f"seen {self._reader}")
        return [] if note is None else note.decode().split()

    def note_seen(self, response: Response, mark: str) -> None:
        """Keep the mark of something that is put away."""
        marks = [*(one for one in self.seen if one != mark), mark][-_MAX_SEEN:]
        signed = self.site.signer.sign(" ".join(marks).encode(), f"seen {self._reader}")
        set_cookie(response, self.request, SEEN_COOKIE, signed, _SEEN_SECONDS)

    @property
    def _reader(self) -> str:
        """The reader that a note is signed for: this caller in this browser."""
        return f"{self._browser} {self.caller.name}"

    def _delete_cookie(self, response: Response, name: str) -> None:
        response.delete_cookie(name, **cookie_options(self.request))


def _query_text(params: Mapping[str, Any]) -> str:
    given = {name: value for name, value in params.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


PageFunction: TypeAlias = Callable[[PageContext], Awaitable[Response]]


class PageRouter:
    """The pages of one module; each names the role it requires."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, role: Role = Role.VIEWER) -> Callable[[PageFunction], PageFunction]:
        """Register a page that shows something."""
        return self._add(path, "GET", role)

    def post(self, path: str, role: Role) -> Callable[[PageFunction], PageFunction]:
        """Register an action."""
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
        # Before the form is read: a caller without the role must not make the server read a large one.
        caller.needs(role, f"{request.method} {request.url.path[:200]}")
        if request.method == "POST":
            # The API counts the write against the caller's limits.
            await context.read_form()
            check_csrf(request, context.form.get("token", ""))
            return await page(context)
        site.limits.begin(caller.name)
        try:
            return await page(context)
        finally:
            site.limits.end(caller.name)

    return endpoint


def _begin_local_session(request: Request, session: str) -> Response:
    """Replace the local key in the address, where it would be seen and stored, by a cookie."""
    address = request.url.remove_query_params(LOCAL_KEY_PARAMETER)
    response = RedirectResponse(f"{address.path}?{address.query}" if address.query else address.path, 303)
    set_session_cookie(response, request, session)
    return response


def _redirect_to_login(request: Request) -> Response:
    """Send the browser to the login page, and back afterwards. A part or a stream cannot show a login, so its whole page goes there."""
    prefix = request.scope.get("root_path", "")
    is_page = "text/html" in request.headers.get("accept", "text/html") or "*/*" in request.headers["accept"]
    if request.method != "GET" or request.headers.get("hx-request") or not is_page:
        return Response(status_code=401, headers={"HX-Redirect": f"{prefix}/login"})
    path = request.scope["path"].removeprefix(prefix)
    query = request.url.query
    params = request.url.replace_query_params(next=f"{path}?{query}" if query else path).query
    return RedirectResponse(f"{prefix}/login?{params}", 303)


_TARGET_PATHS = {
    "job": "/jobs/{id}",
    "execution": "/executions/{id}",
    "worker": "/workers/{id}",
    "scheduler": "/workers/{id}",
    "dead": "/dead",
    "dead_letters": "/dead",
    "keys": "/keys",
    "timeline": "/timeline?span=1d",
    "database": "/doctor",
}


def target_url(context: PageContext, target: tuple[str, str] | None) -> str | None:
    """The page of a thing that the doctor names by kind and id; None if there is none."""
    if target is None:
        return None
    kind, name = target
    if kind == "queue":
        return context.url("/queues/one", name=name)
    if kind == "ledger":
        return context.url(f"/jobs/{name}", tab="ledger", verdict="skipped")
    if kind == "handler":
        return context.url("/jobs", q=search_term(name, "handler"))
    path = _TARGET_PATHS.get(kind)
    return None if path is None else context.site_url(path.format(id=name))


ZONE_COOKIE = "timeball_zone"


def browser_zone(request: Request) -> ZoneInfo:
    """The time zone that the browser reports in a cookie; UTC if it has not, or if the zone is unknown."""
    try:
        return load_zone(unquote(request.cookies.get(ZONE_COOKIE, "UTC")))
    except InvalidInput:
        return load_zone("UTC")


def typed_instant(context: PageContext, field: str) -> str:
    """The instant in a field of the form, on the clock that the page shows; what is not one is left for the API to refuse."""
    text = context.form.get(field, "").strip()
    try:
        return parse_instant(text, browser_zone(context.request).key, field).isoformat() if text else ""
    except InvalidInput:
        return text


def zone_label(zone: ZoneInfo) -> str:
    """`Berlin` for Europe/Berlin."""
    return zone.key.rpartition("/")[2].replace("_", " ")


async def worker_names(context: PageContext) -> dict[str, str]:
    """The names of the living workers by their ids."""
    nodes = await context.shared("nodes", context.site.queries.nodes)
    return {format_id("wrk", node.incarnation): node.name for node in nodes if node.kind is NodeKind.WORKER}


async def known_handlers(queries: Queries) -> list[str]:
    """The handlers that a living worker has, or that workers have published."""
    nodes = await queries.nodes(NodeKind.WORKER)
    return sorted({*(name for node in nodes for name in node.handlers), *await queries.handlers.names()})


def parse_json_field(text: str, field: str) -> Any:
    """The value of a form field that holds JSON."""
    return parse_json(text, field, field=field, hint='such as {"to": "a@b.co"}')
