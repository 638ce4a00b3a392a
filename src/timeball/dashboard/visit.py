"""One request for a page, and all that its page has at hand: who looks, the API in their name, forms, addresses, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from timeball.api.auth import Caller, Role
from timeball.api.problems import Refusal
from timeball.dashboard.inner_api import InnerApi
from timeball.dashboard.pieces import Pieces, form_fields
from timeball.dashboard.site import Site
from timeball.dashboard.visitor import cookie_settings, form_token, keep_cookie, keep_visitor, visitor_of

# Who has not logged in: may see the login and the pages that say no.
STRANGER = Caller("stranger", Role.VIEWER)
TOAST_COOKIE = "timeball_toast"
_TOAST_SECONDS = 30
_LARGEST_FORM = 1024 * 1024
_MOST_FIELDS = 2_000


@dataclass(frozen=True, slots=True)
class Undo:
    """The way back: a path to post to, and what to post."""

    path: str
    fields: Mapping[str, str]


class Visit:
    """A request for a page."""

    def __init__(self, request: Request, site: Site, caller: Caller) -> None:
        self.request = request
        self.site = site
        self.caller = caller
        self.api = InnerApi(site.api, caller, site.reads, may_share=self.is_partial)
        self.form: dict[str, str] = {}
        self.form_pairs: list[tuple[str, str]] = []
        # Strangers are shown nothing that only visitors may see.
        self.is_stranger = caller.name == STRANGER.name
        # A page that shows something only this once must not fetch itself anew, nor its parts.
        self.stands_still = False
        self._is_toast_told = False

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
                if len(body) > _LARGEST_FORM:
                    raise Refusal(413, "body_too_large", f"the form has more than {_LARGEST_FORM} bytes")
        except ClientDisconnect:
            raise Refusal(400, "disconnected", "the request ended before its form did") from None
        try:
            self.form_pairs = parse_qsl(
                body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS
            )
        except ValueError:
            raise Refusal(413, "too_many_fields", f"the form has more than {_MOST_FIELDS} fields") from None
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

    # pieces of pages

    @cached_property
    def pieces(self) -> Pieces:
        """What the pages are put together from."""
        sprite = self.site_url(f"/static/{self.site.assets['icons.svg'].address}")
        return Pieces(sprite, form_fields(self._token, self.here()), self.site_url, self.can)

    @cached_property
    def _visitor(self) -> str:
        return visitor_of(self.request)

    @cached_property
    def _token(self) -> str:
        return form_token(self._visitor, self.request)

    # answers

    def can(self, role: str) -> bool:
        """Whether the visitor may do what needs this role."""
        return role in self._roles

    @cached_property
    def _roles(self) -> frozenset[str]:
        return frozenset(role for role in Role if self.caller.role.includes(role))

    def page(self, template: str, /, *, part: str | None = None, http_status: int = 200, **context: Any) -> Response:
        """A whole page; or, when it is being refreshed, only its *part*."""
        wants_part = part is not None and self.is_partial
        text = self.site.render(
            part if wants_part and part is not None else template,
            visit=self,
            token=self._token,
            **context,
        )
        response = HTMLResponse(text, http_status, headers={"Vary": "HX-Request-Type"})
        keep_visitor(response, self.request, self._visitor)
        if self._is_toast_told:
            self._drop_cookie(response, TOAST_COOKIE)
        return response

    def go(self, path: str, toast: str | None = None, *, undo: Undo | None = None, kind: str = "done") -> Response:
        """Send the browser on to an address of ours, and tell there what was done."""
        response = RedirectResponse(path, 303)
        if toast is not None:
            way_back = None if undo is None else {"path": undo.path, "fields": dict(undo.fields)}
            note = orjson.dumps({"text": toast[:500], "kind": kind, "undo": way_back})
            signed = self.site.signer.sign(note, self._reader)
            keep_cookie(response, self.request, TOAST_COOKIE, signed, _TOAST_SECONDS)
        return response

    def back(self, otherwise: str) -> str:
        """Where a form wants to return to, if that is one of our own pages."""
        wanted = self.form.get("back", "")
        parts = urlsplit(wanted)
        prefix = self.site_url("/")
        is_ours = not parts.scheme and not parts.netloc and wanted.startswith(prefix) and not wanted.startswith("//")
        return wanted if is_ours and "\\" not in wanted and wanted.isprintable() else self.site_url(otherwise)

    def tell_toast(self) -> Any:
        """What was done just now, for the page that tells it: a part, fetched meanwhile by the page before, must not take it away.

        None if nothing was done, or if the note about it was not written here for this visitor.
        """
        cookie = self.request.cookies.get(TOAST_COOKIE)
        if cookie is None:
            return None
        self._is_toast_told = True
        note = self.site.signer.read(cookie, self._reader)
        return None if note is None else orjson.loads(note)

    @property
    def _reader(self) -> str:
        """For whom a note is signed: this visitor in this browser."""
        return f"{self._visitor} {self.caller.name}"

    def _drop_cookie(self, response: Response, name: str) -> None:
        response.delete_cookie(name, **cookie_settings(self.request))


def _query_text(params: Mapping[str, Any]) -> str:
    given = {name: value for name, value in params.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""
