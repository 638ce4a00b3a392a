"""Who may do what: roles, callers, authentication, and the role that each route requires.

Open mode exists only on loopback, and only until the first key is created. It serves programs of the account that the server
runs under, and of root (see `peers`), but no request that a proxy has passed on. Browsers of that account also open other
sites, so the Host must be a loopback name (DNS rebinding), and another site's page may not send a request here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import Scope

from timeball.api.errors import HttpProblem
from timeball.application.commands.requests import Actor
from timeball.domain.values.ids import IdempotentRequest
from timeball.errors import InvalidInput

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# The caller of open mode, as the audit names it.
LOCAL_CALLER = "local"
# The key of the peer in the state of a request. Only the server that accepted the connection can put it there.
PEER = "timeball.peer"
_FORWARDING = frozenset({"forwarded", "via", "x-real-ip"})
_OUR_SITES = frozenset({"none", "same-origin"})


class Role(StrEnum):
    """What a key may do; each role includes the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    EDITOR = "editor"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether this role may do what the other may."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(other)


class KeyIdentity(Protocol):
    """A key that the store knows."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def expires_at(self) -> datetime | None: ...


class KeyLookup(Protocol):
    """The API keys in the store."""

    async def recognise(self, token: str) -> KeyIdentity | None: ...
    async def any_made(self) -> bool: ...
    async def any_usable(self) -> bool: ...
    async def note_refused(self, place: str, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    name: str
    role: Role
    place: str | None = None
    # Set if the request has an Idempotency-Key.
    idempotency: IdempotentRequest | None = None

    def needs(self, role: Role, what: str) -> None:
        """Raise HttpProblem (403) unless the caller's role includes *role*."""
        if not self.role.includes(role):
            raise HttpProblem(
                403,
                "forbidden",
                f"{what} needs the role {role}, this key has {self.role}",
                hint="ask an administrator for another key",
            )

    def as_actor(self, reason: str | None = None) -> Actor:
        """The caller as the audit records it."""
        return Actor(self.name, reason, self.place, is_administrator=self.role is Role.ADMIN, author=self.name)


class ConnectionPeer(Protocol):
    """The other end of a connection that a server accepted."""

    def is_own_account(self, scope: Scope) -> bool:
        """Whether it belongs to the account of this process, or to root."""

    def has_local_key(self, token: str) -> bool:
        """Whether this is the server's local key."""

    def has_local_session(self, cookie: str) -> bool:
        """Whether the cookie is that of a browser that has sent the local key before."""

    def local_session(self) -> str:
        """The cookie for a browser that has sent the local key."""


def peer_of(scope: Scope) -> ConnectionPeer | None:
    """The other end of a request's connection; None if none of our servers accepted it."""
    peer: ConnectionPeer | None = scope.get("state", {}).get(PEER)
    return peer


class Authenticator(Protocol):
    """Identifies the caller of a request; None means that it has no identity."""

    async def identify(self, scope: Scope) -> Caller | None: ...


class TrustedAuthenticator:
    """Takes every request for one caller's: for an API without a socket, such as the command line's own."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def identify(self, _scope: Scope) -> Caller:
        return self._caller


class KeyAuthenticator:
    """Identifies callers by API key; in open mode, by the account at the other end of the connection."""

    def __init__(self, keys: KeyLookup, host: str) -> None:
        self._keys = keys
        self._is_on_loopback = is_loopback(host)

    async def is_open(self) -> bool:
        """Whether requests without a key are served."""
        return self._is_on_loopback and not await self._keys.any_made()

    async def refuse_to_start_open(self, host: str) -> None:
        """Raise InvalidInput if the address is not loopback and there is no usable key."""
        if not self._is_on_loopback and not await self._keys.any_usable():
            raise InvalidInput(
                f"the API would listen on {host} without any key",
                field="host",
                hint="create one with: timeball keys create --role admin; or listen on 127.0.0.1",
            )

    async def identify(self, scope: Scope) -> Caller | None:
        """The caller of a request; None if it has no key and keys are required."""
        headers = Headers(scope=scope)
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._bearer(authorization, scope)
        if not await self.is_open():
            return None
        _check_origin(scope["method"], headers)
        _refuse_proxied(headers)
        peer = peer_of(scope)
        if peer is None or not peer.is_own_account(scope):
            raise _unauthenticated(
                "without a key, Timeball serves only programs of its own account, on the same machine"
            )
        return Caller(LOCAL_CALLER, Role.ADMIN)

    async def knows_browser(self, scope: Scope, cookie: str) -> bool:
        """Whether a browser has sent the local key of this server before, while no other key exists."""
        peer = peer_of(scope)
        if peer is None or not peer.has_local_session(cookie) or not await self.is_open():
            return False
        _check_origin(scope["method"], Headers(scope=scope))
        return True

    async def _bearer(self, authorization: str, scope: Scope) -> Caller:
        scheme, _, token = authorization.partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        peer = peer_of(scope)
        if peer is not None and peer.has_local_key(token) and await self.is_open():
            return Caller(LOCAL_CALLER, Role.ADMIN)
        key = await self._keys.recognise(token)
        if key is None:
            raise _unauthenticated("this key is unknown, expired or revoked")
        return Caller(f"key:{key.id} {key.name}", Role(key.role))


def _refuse_proxied(headers: Headers) -> None:
    """A proxy runs under an account of this machine, but passes on requests of others."""
    for name in headers:
        if name in _FORWARDING or name.startswith("x-forwarded-"):
            raise _unauthenticated(f"a request that came through a proxy ({name}) needs a key")


def _check_origin(method: str, headers: Headers) -> None:
    """In open mode, refuse a Host that is not a loopback name and requests from another site's page."""
    host = headers.get("host", "")
    if not is_loopback(_host_name(host)):
        raise HttpProblem(
            403,
            "forbidden_host",
            "without keys, the Host must be a loopback name such as localhost",
            hint="use http://localhost, or create a key with: timeball keys create --role admin",
        )
    site = headers.get("sec-fetch-site", "none")
    if method in SAFE_METHODS:
        # A link may lead here from any site; the other site cannot read the response.
        is_ours = site in _OUR_SITES or headers.get("sec-fetch-mode") == "navigate"
    else:
        origin = headers.get("origin")
        is_ours = site in _OUR_SITES and (origin is None or urlsplit(origin).netloc == host)
    if not is_ours:
        raise HttpProblem(
            403, "cross_site", "a page of another site may not send this request", hint="send no Origin, or use a key"
        )


def _host_name(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine itself."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _unauthenticated(detail: str) -> HttpProblem:
    return HttpProblem(
        401,
        "unauthenticated",
        detail,
        hint="send Authorization: Bearer <key>; create one with: timeball keys create --role admin",
        headers={"WWW-Authenticate": "Bearer"},
    )


def require_role(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that gives the caller if its role includes *role*."""

    async def admitted(request: Request) -> Caller:
        return admit(request.state.caller, role, f"{request.method} {request.url.path[:200]}")

    return admitted


def admit(caller: Caller | None, role: Role, what: str) -> Caller:
    """The caller, if there is one and its role includes *role*; HttpProblem (401 or 403) otherwise."""
    if caller is None:
        raise _unauthenticated("this request needs a key")
    caller.needs(role, what)
    return caller


async def _caller(request: Request) -> Any:
    return request.state.caller


# For routes with a role: it has been checked before, so there is a caller.
CurrentCaller = Annotated[Caller, Depends(_caller)]


@dataclass(frozen=True, slots=True)
class RouteRequirement:
    """What a route requires of its caller; a role of None means that it needs no key."""

    role: Role | None


class RouteRequirements:
    """Finds what the route of a request requires of its caller, before the body is read."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._table: list[tuple[re.Pattern[str], frozenset[str], RouteRequirement]] | None = None

    def find(self, method: str, path: str) -> RouteRequirement | None:
        """What the route requires; None if there is no route for this method and path."""
        # Built by the first request: reading the signatures of all routes takes long.
        if self._table is None:
            self._table = [_entry(route) for route in iter_route_contexts(self._routes)]
        return next(
            (requirement for regex, methods, requirement in self._table if method in methods and regex.match(path)),
            None,
        )

    def methods_at(self, path: str) -> list[str]:
        """Every method that has a route at this path."""
        self.find("", path)
        return sorted({method for regex, methods, _ in self._table or () if regex.match(path) for method in methods})


def _entry(route: Any) -> tuple[re.Pattern[str], frozenset[str], RouteRequirement]:
    role = route.openapi_extra["x-role"]
    return route.path_regex, frozenset(route.methods), RouteRequirement(None if role == "none" else Role(role))
