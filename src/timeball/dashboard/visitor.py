"""Who looks at a page: a session after a login with an API key, or the account that runs Timeball while there is no key.

A change must come from one of our own pages: the browser says that it comes from the same site, and the form bears a
token that only our pages can know. One of the two would do; browsers and proxies have failed at either.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import LOCAL, Caller, Gate, KeyRing, KnownKey, Role, is_loopback
from timeball.api.peers import peer_of
from timeball.api.problems import Refusal

SESSION_COOKIE = "timeball_session"
# In the address that a server prints where the kernel does not tell which account a browser belongs to.
LOCAL_KEY_PARAMETER = "token"
VISITOR_COOKIE = "timeball_visitor"
_SESSION_SECONDS = 7 * 24 * 3600
_VISITOR_SECONDS = 365 * 24 * 3600


class SessionRing(Protocol):
    """The sessions, as the dashboard sees them."""

    async def begin(self, key_id: str) -> str: ...
    async def recognise(self, token: str, idle: timedelta, *, is_use: bool) -> KnownKey | None: ...
    async def end(self, token: str) -> None: ...


class Reception:
    """Knows visitors by their cookies."""

    def __init__(self, gate: Gate, keys: KeyRing, sessions: SessionRing, idle: timedelta) -> None:
        """Sessions end after *idle* without a request."""
        self._idle = idle
        self._gate = gate
        self._keys = keys
        self._sessions = sessions

    async def is_open(self) -> bool:
        """Whether the account that runs Timeball needs no key."""
        return await self._gate.is_open()

    async def identify(self, request: Request) -> Caller | None:
        """The visitor; None if they have to log in."""
        return await self._identify(request, is_use=True)

    async def _identify(self, request: Request, *, is_use: bool) -> Caller | None:
        token = request.cookies.get(SESSION_COOKIE)
        place = place_of(request)
        if token is not None:
            key = await self._sessions.recognise(token, self._idle, is_use=is_use)
            if key is not None:
                return Caller(f"key:{key.id} {key.name}", Role(key.role), place)
            if await self._gate.knows_browser(request.scope, token):
                return Caller(LOCAL, Role.ADMIN, place)
        caller = await self._gate.identify(request.scope)
        return None if caller is None else replace(caller, place=caller.place or place)

    async def is_still_allowed(self, request: Request, caller: Caller) -> bool:
        """Whether a visitor that was identified before would be identified now; does not count as a use of the session."""
        try:
            known = await self._identify(request, is_use=False)
        except Refusal:
            return False
        return known is not None and known.name == caller.name

    def local_session(self, request: Request) -> str | None:
        """The session of a browser whose address bears the local key of this server; None for all others."""
        peer = peer_of(request.scope)
        token = request.query_params.get(LOCAL_KEY_PARAMETER, "")
        return peer.local_session() if peer is not None and peer.has_local_key(token) else None

    async def log_in(self, api_key: str) -> str | None:
        """Begin a session with an API key; None if the key opens nothing."""
        key = await self._keys.recognise(api_key.strip())
        return None if key is None else await self._sessions.begin(key.id)

    async def log_out(self, request: Request) -> None:
        """End the session of a request."""
        token = request.cookies.get(SESSION_COOKIE)
        if token is not None:
            await self._sessions.end(token)


def place_of(request: Request) -> str:
    """From where a page was asked for, as the audit has it."""
    return "dashboard" if request.client is None else f"dashboard {request.client.host}"


def visitor_of(request: Request) -> str:
    """The random name of a browser; a new one for a browser that has none."""
    known = request.cookies.get(VISITOR_COOKIE, "")
    return known if len(known) >= 32 and known.isascii() else secrets.token_urlsafe(32)


def form_token(visitor: str, request: Request) -> str:
    """What forms bear: it follows from two cookies that no other site can read."""
    session = request.cookies.get(SESSION_COOKIE, "")
    return sha256(f"form:{visitor}:{session}".encode()).hexdigest()


def refuse_foreign(request: Request, token: str) -> None:
    """Refuse a change that does not come from one of our own pages."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    is_ours = site in ("same-origin", "none") and (origin is None or urlsplit(origin).netloc == host)
    expected = form_token(request.cookies.get(VISITOR_COOKIE, ""), request)
    if (
        not is_ours
        or VISITOR_COOKIE not in request.cookies
        or not hmac.compare_digest(token.encode(), expected.encode())
    ):
        raise Refusal(
            403,
            "cross_site",
            "this change did not come from one of our own pages",
            hint="go back, reload the page and try again; cookies must be allowed here",
        )


def keep_cookie(response: Response, request: Request, name: str, value: str, seconds: int) -> None:
    """Give a browser something to bring along: out of reach of scripts, of other sites, and of the open network."""
    response.set_cookie(name, value, max_age=seconds, **cookie_settings(request))


def keep_session(response: Response, request: Request, token: str) -> None:
    """Let a browser stay logged in."""
    keep_cookie(response, request, SESSION_COOKIE, token, _SESSION_SECONDS)


def keep_visitor(response: Response, request: Request, visitor: str) -> None:
    """Let a browser keep its name."""
    if request.cookies.get(VISITOR_COOKIE) != visitor:
        keep_cookie(response, request, VISITOR_COOKIE, visitor, _VISITOR_SECONDS)


def cookie_settings(request: Request) -> dict[str, Any]:
    """Secure everywhere but on this machine itself, which may do without TLS."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    is_secure = request.url.scheme == "https" or not is_loopback(host)
    path = request.scope.get("root_path", "") or "/"
    return {"path": path, "secure": is_secure, "httponly": True, "samesite": "lax"}
