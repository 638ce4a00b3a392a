"""Sessions, cookies and CSRF tokens: the caller of a page, and whether a form is one of our own."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from timeball.api.auth import LOCAL_CALLER, Caller, KeyAuthenticator, KeyIdentity, KeyLookup, Role, is_loopback, peer_of
from timeball.api.errors import HttpProblem
from timeball.api.limits import FailedKeyLimiter
from timeball.api.middleware import client_address as address_of
from timeball.telemetry.events import Emit, LoggedIn

SESSION_COOKIE = "timeball_session"
# In the address that a server prints where the kernel does not say which account a browser belongs to.
LOCAL_KEY_PARAMETER = "token"
BROWSER_COOKIE = "timeball_browser"
_IDENTIFIED = "timeball.identified"
_SESSION_SECONDS = 7 * 24 * 3600
_BROWSER_SECONDS = 365 * 24 * 3600


class SessionBackend(Protocol):
    """The sessions of the dashboard."""

    async def begin(self, key_id: str, audit: Any, ends: str | None = None) -> str: ...
    async def recognise(self, token: str, idle: timedelta, *, is_use: bool) -> KeyIdentity | None: ...
    async def end(self, token: str) -> None: ...
    async def signing_secret(self) -> bytes: ...


class SessionAuthenticator:
    """Identifies callers by their cookies."""

    def __init__(
        self,
        authenticator: KeyAuthenticator,
        keys: KeyLookup,
        sessions: SessionBackend,
        key_limiter: FailedKeyLimiter,
        emit: Emit,
        *,
        idle: timedelta,
    ) -> None:
        """Sessions end after *idle* without a request."""
        self._idle = idle
        self._key_limiter = key_limiter
        self._emit = emit
        self._authenticator = authenticator
        self._keys = keys
        self._sessions = sessions

    async def is_open(self) -> bool:
        """Whether the account that runs Timeball needs no key."""
        return await self._authenticator.is_open()

    async def identify(self, request: Request) -> Caller | None:
        """The caller; None if it has to log in."""
        request.scope[_IDENTIFIED] = True
        try:
            caller = await self._identify(request, is_use=True)
        except HttpProblem:
            await self._key_limiter.refused(address_of(request.scope), audit_origin(request))
            self._key_limiter.limit(address_of(request.scope))
            raise
        if caller is None and SESSION_COOKIE in request.cookies:
            self._key_limiter.limit(address_of(request.scope))
        return caller

    async def _identify(self, request: Request, *, is_use: bool) -> Caller | None:
        token = request.cookies.get(SESSION_COOKIE)
        origin = audit_origin(request)
        if token is not None:
            key = await self._sessions.recognise(token, self._idle, is_use=is_use)
            if key is not None:
                return _caller(key, origin)
            if await self._authenticator.knows_browser(request.scope, token):
                return Caller(LOCAL_CALLER, Role.ADMIN, origin)
        caller = await self._authenticator.identify(request.scope)
        return None if caller is None else replace(caller, place=caller.place or origin)

    async def is_still_allowed(self, request: Request, caller: Caller) -> bool:
        """Whether the caller of an open stream would still be identified; does not count as a use of the session."""
        try:
            current = await self._identify(request, is_use=False)
        except HttpProblem:
            return False
        return current is not None and current.name == caller.name

    def local_session(self, request: Request) -> str | None:
        """The session of a browser whose address contains the local key of this server; None for all others."""
        peer = peer_of(request.scope)
        token = request.query_params.get(LOCAL_KEY_PARAMETER, "")
        return peer.local_session() if peer is not None and peer.has_local_key(token) else None

    async def log_in(self, request: Request, api_key: str) -> str | None:
        """Begin a session with an API key, and end the one that this browser had; None if the key is not valid.

        HttpProblem (429) after too many logins from this address.
        """
        address, origin = address_of(request.scope), audit_origin(request)
        self._key_limiter.limit(address)
        key = await self._keys.recognise(api_key.strip())
        if key is None:
            await self._key_limiter.refused(address, origin)
            return None
        caller = _caller(key, origin)
        token = await self._sessions.begin(key.id, caller.as_actor().entry, request.cookies.get(SESSION_COOKIE))
        self._emit(LoggedIn(caller.name, origin))
        return token

    async def log_out(self, request: Request) -> None:
        """End the session of a request."""
        token = request.cookies.get(SESSION_COOKIE)
        if token is not None:
            await self._sessions.end(token)


def was_identified(request: Request) -> bool:
    """Whether this request was identified before: doing it again would count a failure twice."""
    return _IDENTIFIED in request.scope


def _caller(key: KeyIdentity, origin: str) -> Caller:
    return Caller(f"key:{key.id} {key.name}", Role(key.role), origin)


def audit_origin(request: Request) -> str:
    """The origin of a request, as the audit has it."""
    return "dashboard" if request.client is None else f"dashboard {request.client.host}"


class CookieSigner:
    """Signs the values that a browser keeps for us in cookies.

    Another port of the same host and a sibling domain can set cookies here; without the secret they cannot sign them.
    All processes share the secret, which each reads from the database once.
    """

    def __init__(self, read_secret: Callable[[], Awaitable[bytes]]) -> None:
        self._read_secret = read_secret
        self._secret: bytes | None = None

    async def prepare(self) -> None:
        """Read the secret, unless it was read."""
        if self._secret is None:
            self._secret = await self._read_secret()

    def sign(self, note: bytes, reader: str) -> str:
        """A note for one reader, as a cookie."""
        return f"{urlsafe_b64encode(note).decode()}.{self._signature(note, reader)}"

    def read(self, cookie: str, reader: str) -> bytes | None:
        """The note in a cookie; None if it was not signed here for this reader."""
        text, _, signature = cookie.rpartition(".")
        try:
            note = urlsafe_b64decode(text)
        except ValueError:
            return None
        is_ours = self._secret is not None and hmac.compare_digest(
            signature.encode(), self._signature(note, reader).encode()
        )
        return note if is_ours else None

    def _signature(self, note: bytes, reader: str) -> str:
        assert self._secret is not None
        return hmac.new(self._secret, reader.encode() + b"\0" + note, sha256).hexdigest()


def browser_id(request: Request) -> str:
    """The random name of a browser; a new one for a browser that has none."""
    name = request.cookies.get(BROWSER_COOKIE, "")
    return name if len(name) >= 32 and name.isascii() else secrets.token_urlsafe(32)


def csrf_token(browser: str, request: Request) -> str:
    """The token of forms; it is derived from two cookies that no other site can read."""
    session = request.cookies.get(SESSION_COOKIE, "")
    return sha256(f"form:{browser}:{session}".encode()).hexdigest()


def check_csrf(request: Request, token: str) -> None:
    """Refuse a form that does not come from one of our own pages."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    is_ours = site in ("same-origin", "none") and (origin is None or urlsplit(origin).netloc == host)
    expected = csrf_token(request.cookies.get(BROWSER_COOKIE, ""), request)
    if (
        not is_ours
        or BROWSER_COOKIE not in request.cookies
        or not hmac.compare_digest(token.encode(), expected.encode())
    ):
        raise HttpProblem(
            403,
            "cross_site",
            "this change did not come from one of our own pages",
            hint="go back, reload the page and try again; cookies must be allowed here",
        )


def set_cookie(response: Response, request: Request, name: str, value: str, seconds: int) -> None:
    """Set a cookie that scripts, other sites and unencrypted connections do not see."""
    response.set_cookie(name, value, max_age=seconds, **cookie_options(request))


def set_session_cookie(response: Response, request: Request, token: str) -> None:
    """Keep a browser logged in."""
    set_cookie(response, request, SESSION_COOKIE, token, _SESSION_SECONDS)


def set_browser_cookie(response: Response, request: Request, browser: str) -> None:
    """Keep the name of a browser."""
    if request.cookies.get(BROWSER_COOKIE) != browser:
        set_cookie(response, request, BROWSER_COOKIE, browser, _BROWSER_SECONDS)


def cookie_options(request: Request) -> dict[str, Any]:
    """Secure, except on the loopback address, which needs no TLS."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    is_secure = request.url.scheme == "https" or not is_loopback(host)
    path = request.scope.get("root_path", "") or "/"
    return {"path": path, "secure": is_secure, "httponly": True, "samesite": "lax"}
