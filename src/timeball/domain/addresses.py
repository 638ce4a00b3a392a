"""What is wrong with the address of a server; never repeats it, because it may hold a password.

Neither does it repeat what looks like a host or a port: where a password has a `/` or an `@` in it, they are parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import parse_qsl, urlsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=://)")
_HOST = re.compile(r"(?P<name>\[[^\[\]]+\]|[^\[\]:]*)(:(?P<port>[0-9]{0,5}))?")
_ESCAPES = "in a user or password, / is written %2F, @ %40, : %3A, ? %3F and # %23"
_LAST_PORT = 65535


def address_problem(url: str, schemes: Collection[str], example: str) -> str | None:
    """What keeps an address from being used, what was expected, and what may be the reason."""
    return _problem(url, schemes, example) or _problem_of_hosts([_server(url).rpartition("@")[2]], example)


def database_problem(url: str) -> str | None:
    """The same for a PostgreSQL: it may have several hosts, or none, which is then named by the query or the driver's variables."""
    example = "postgresql://user:password@host:5432/database"
    if problem := _problem(url, ("postgresql", "postgres"), example):
        return problem
    # The driver takes the first @ for the end of the password; others take the last.
    _, _, hosts = _server(url).rpartition("@")
    if _server(url).count("@") > 1:
        return f"has more than one @ before its path, expected one like {example}; {_ESCAPES}"
    return _problem_of_hosts(hosts.split(",") if hosts else (), example)


def _problem(url: str, schemes: Collection[str], example: str) -> str | None:
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[0].lower() not in schemes:
        found = "does not begin with a scheme" if scheme is None else f"begins with {scheme[0]}://"
        return f"{found}, expected {' or '.join(f'{each}://' for each in schemes)}, as in {example}"
    try:
        query = urlsplit(url).query
    except ValueError:
        return f"cannot be read as a URL, expected one like {example}; {_ESCAPES}"
    if query and not _is_query(query):
        return f"has a query that cannot be read, expected name=value behind the ?, and & between several; {_ESCAPES}"
    return None


def _server(url: str) -> str:
    return urlsplit(url).netloc


def _problem_of_hosts(hosts: Iterable[str], example: str) -> str | None:
    for host in map(_HOST.fullmatch, hosts):
        if host is None or not _is_port(host["port"]):
            return f"has a port that is no number from 1 to {_LAST_PORT}, expected one like {example}; {_ESCAPES}"
        if not host["name"]:
            return f"names no host, expected one like {example}"
    return None


def _is_port(text: str | None) -> bool:
    return not text or 1 <= int(text) <= _LAST_PORT


def _is_query(text: str) -> bool:
    try:
        parse_qsl(text, strict_parsing=True)
    except ValueError:
        return False
    return True
