"""Which addresses the built-in handlers may connect to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from timeball.errors import InvalidInput
from timeball.handlers.binding import HandlerRefused

if TYPE_CHECKING:
    from yarl import URL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

DEFAULT_PORTS = (80, 443, 8080, 8443)
_NAT64 = IPv6Network("64:ff9b::/96")
# Addresses that are ::a.b.c.d, long out of use but still understood.
_COMPATIBLE = IPv6Network("::/96")
# Ranges that older Pythons take for public (CVE-2024-4032), and those that lead into a private network by translation or tunnel.
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        *("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4"),
        *(
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "5f00::/16",
            "fec0::/10",
        ),
    )
)
_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean and others
        "169.254.170.2",  # AWS: credentials of containers
        "169.254.170.23",
        "169.254.169.253",  # AWS: DNS
        "169.254.0.23",  # Tencent
        "169.254.10.10",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure: wire server
        "192.0.0.192",  # Oracle
    )
)
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST_NAME = 253


class EgressRefused(HandlerRefused):
    """A target may not be reached from here."""

    code = "egress_refused"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a URL leads."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One entry of the administrator's list: a network or a name, on one port or on the usual ones."""

    place: Network | str
    port: int | None

    def admits(self, target: Endpoint, address: Address, ports: Iterable[int]) -> bool:
        """Whether this entry lets *target* be reached at *address*."""
        if target.port not in (ports if self.port is None else (self.port,)):
            return False
        return self.place == target.host if isinstance(self.place, str) else address in self.place


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The rules for addresses."""

    openings: tuple[EgressRule, ...] = ()
    ports: tuple[int, ...] = DEFAULT_PORTS
    allows_http: bool = False

    def check_addresses(self, target: Endpoint, addresses: Iterable[str]) -> None:
        """Refuse the target unless each of its addresses may be reached."""
        found = [ip_address(text.partition("%")[0]) for text in addresses]
        if not found:
            raise EgressRefused(f"{target.host} has no address")
        for address in found:
            self._check_address(target, address)

    def _check_address(self, target: Endpoint, address: Address) -> None:
        inner = unmapped(address)
        # Also at the end of any IPv6 address: networks choose prefixes of their own for NAT64.
        if inner in _METADATA or IPv4Address(int(address) & 0xFFFF_FFFF) in _METADATA:
            raise EgressRefused(f"{target} leads to {inner}, a cloud's metadata service, which is never reached")
        if any(opening.admits(target, inner, self.ports) for opening in self.openings):
            return
        if not is_public(inner):
            raise EgressRefused(
                f"{target} leads to {inner}, which is not public; an administrator may allow it: TIMEBALL_WEBHOOK_ALLOW"
            )
        if target.port not in self.ports:
            raise EgressRefused(
                f"port {target.port} of {target.host} is not among those allowed: {_listed(self.ports)}"
            )
        if target.scheme != "https" and not self.allows_http:
            raise EgressRefused(f"{target} is not https; an administrator may allow it: TIMEBALL_WEBHOOK_HTTP")


def unmapped(address: Address) -> Address:
    """The address that is really reached: the IPv4 address inside of a mapped, NAT64 or 6to4 one."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    is_embedded = address in _NAT64 or (address in _COMPATIBLE and int(address) > 0xFFFF)
    return IPv4Address(int(address) & 0xFFFF_FFFF) if is_embedded else address


def is_public(address: Address) -> bool:
    """Whether an address, unmapped, belongs to the public internet."""
    is_special = address.is_multicast or address.is_reserved or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not is_special


@lru_cache(maxsize=1024)
def read_url(text: str) -> URL:
    """A URL as the client will read it that calls it; ValueError if it is none."""
    # Imported here: a worker that makes no requests needs no memory for it.
    from yarl import URL

    return URL(text)


def parse_endpoint(url: URL) -> Endpoint:
    """Where a URL leads; `EgressRefused` for what no list could allow."""
    if url.scheme not in ("http", "https"):
        raise EgressRefused(f"the scheme is {url.scheme or 'missing'}, expected https or http")
    if url.raw_user is not None or url.raw_password is not None:
        raise EgressRefused("the URL carries a user name or password; send a header with a secret reference instead")
    host = (url.raw_host or "").lower()
    if not host:
        raise EgressRefused("the URL names no host")
    if not url.port:
        raise EgressRefused(f"the port is {url.explicit_port}, expected 1 to 65535")
    _check_host(host)
    return Endpoint(url.scheme, host.removesuffix("."), url.port)


@lru_cache(maxsize=1024)
def literal_address(host: str) -> str | None:
    """The host itself if it is an address already, which needs no resolving."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _check_host(host: str) -> None:
    if "%" in host:
        raise EgressRefused("the host names a network zone")
    if literal_address(host) is not None:
        return
    name = host.removesuffix(".")
    if name in _METADATA_NAMES:
        raise EgressRefused(f"{name} is a cloud's metadata service, which is never reached")
    # 2130706433, 0x7f.1, 0177.0.0.1: what some parsers take for an address and others for a name.
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        raise EgressRefused(f"{name[:60]} is neither a name nor an address in its usual form")
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise EgressRefused(f"{name[:60]!r} is not a host name")


def parse_egress_rule(text: str) -> EgressRule:
    """Read an entry of the administrator's list: `10.0.0.0/8`, `10.1.2.3:8080`, `[fd00::/8]:443` or `billing.internal:9000`."""
    place, port = _split_port(text.strip())
    try:
        return EgressRule(ip_network(place), port)
    except ValueError:
        name = place.lower().removesuffix(".")
    if not _NAME.fullmatch(name) or _NUMBER.fullmatch(name.rpartition(".")[2]):
        raise InvalidInput(
            f"{text[:60]!r} is not an entry of the allow-list, expected CIDR or host name, each with or without :port",
            field="webhook_allow",
        )
    return EgressRule(name, port)


def endpoint_rule(url: str) -> str:
    """The entry of the list that opens the host and port of a URL."""
    target = parse_endpoint(read_url(url))
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


def _split_port(text: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"\[([^\]]+)\](?::([0-9]{1,5}))?|([^:]+):([0-9]{1,5})", text)
    if found is None:
        return text, None
    place, port = found[1] or found[3], found[2] or found[4]
    if port is not None and not 1 <= int(port) <= 65535:
        raise InvalidInput(f"{text[:60]!r}: the port is {port}, expected 1 to 65535", field="webhook_allow")
    return place, None if port is None else int(port)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
