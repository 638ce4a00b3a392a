"""The HTTP client of webhooks: pooled connections, checked addresses, capped responses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from timeball.handlers.builtin.egress import EgressPolicy, Endpoint, literal_address, parse_endpoint

_CONNECT_SECONDS = 10.0
_CONNECTIONS = 1_000
_KEPT_ALIVE_SECONDS = 30.0
_LARGEST_HEADER = 16 * 1024

# The addresses of a name at a port; raises OSError if it has none.
Resolve = Callable[[str, int], Awaitable[list[tuple[socket.AddressFamily, str]]]]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server said; *body* may be the beginning of something larger."""

    status: int
    reason: str
    headers: Mapping[str, str]
    charset: str
    body: bytes
    is_whole: bool


class HttpClient:
    """Sends requests wherever *egress* lets them go. To be used on one event loop, and closed."""

    def __init__(self, egress: EgressPolicy, resolve: Resolve | None = None) -> None:
        self._check_literal = lru_cache(maxsize=1024)(partial(_check_literal, egress))
        # One for each scheme: a resolver is told the port, but not whether the connection will be encrypted.
        self._sessions = {scheme: _session(egress, scheme, resolve or lookup) for scheme in ("https", "http")}

    async def send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, seconds: float, keep: int
    ) -> HttpResponse:
        """One request and its answer, of whose body at most *keep* bytes are read. Redirects are not followed."""
        target = parse_endpoint(url)
        self._check_literal(target)
        async with self._sessions[target.scheme].request(
            method,
            url,
            headers=headers,
            data=body,
            allow_redirects=False,
            timeout=_timeout(seconds),
        ) as response:
            return await _response(response, keep)

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()


def _check_literal(egress: EgressPolicy, target: Endpoint) -> None:
    """Refuse an address as a resolver would: the client asks none about what is an address already."""
    address = literal_address(target.host)
    if address is not None:
        egress.check_addresses(target, [address])


@lru_cache(maxsize=128)
def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)


async def lookup(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Ask the system for the addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, str(address[0])) for family, _, _, _, address in found]


class EgressResolver(AbstractResolver):
    """Hands out addresses only if every one of them may be reached."""

    def __init__(self, egress: EgressPolicy, scheme: str, resolve: Resolve) -> None:
        self._egress = egress
        self._scheme = scheme
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolve(host, port)
        target = Endpoint(self._scheme, host.lower().removesuffix("."), port)
        self._egress.check_addresses(target, [address for _, address in found])
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in found
        ]

    async def close(self) -> None:
        """There is nothing to free."""


def _session(egress: EgressPolicy, scheme: str, resolve: Resolve) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        resolver=EgressResolver(egress, scheme, resolve),
        # Each new connection asks anew; most requests go over one that is there.
        use_dns_cache=False,
        limit=_CONNECTIONS,
        keepalive_timeout=_KEPT_ALIVE_SECONDS,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # A compressed body could be a thousand times what it was on the way.
        auto_decompress=False,
        trust_env=False,
        max_line_size=_LARGEST_HEADER,
        max_field_size=_LARGEST_HEADER,
    )


async def _response(response: aiohttp.ClientResponse, keep: int) -> HttpResponse:
    body, is_whole = await _read(response.content, keep)
    if not is_whole:
        # Or the connection would be kept, with the rest of the body in it.
        response.close()
    return HttpResponse(
        status=response.status,
        reason=response.reason or "",
        headers={name.lower(): value for name, value in response.headers.items()},
        charset=response.charset or "utf-8",
        body=body,
        is_whole=is_whole,
    )


async def _read(content: Any, keep: int) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    size = 0
    while part := await content.readany():
        parts.append(part)
        size += len(part)
        if size > keep:
            return b"".join(parts)[:keep], False
    return b"".join(parts), True
