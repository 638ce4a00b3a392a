"""In which database the tasks of a Django project are kept, and whose transactions an enqueue joins.

A project that says nothing and has PostgreSQL keeps them there, so that a task is enqueued if and only if the transaction
around it commits. TIMEBALL_DATABASE_URL and `timeball.toml` go before; should they name another database than Django's, an
enqueue is committed by itself, and a rollback does not take it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from django.db import DEFAULT_DB_ALIAS, connections

from timeball.errors import InvalidInput
from timeball.settings import load_settings
from timeball.store.database_url import PARAMETERS, DatabaseUrl

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class _Unsaid:
    """No word about the database: None is one, it means "none of Django's"."""


UNSAID = _Unsaid()


@dataclass(frozen=True, slots=True)
class Home:
    """Where tasks are kept: the URL, or None for the embedded PostgreSQL; and the alias of the Django database that it is, if it is one."""

    url: str | None
    alias: str | None


def find_home(said: Iterable[object]) -> Home:
    """The one home of all backends, by what the OPTIONS of each say of `database` (or UNSAID)."""
    word, *others = list(said) or [UNSAID]
    if any(other != word for other in others):
        raise InvalidInput(
            f"the backends in TASKS name several databases, expected one and the same: {_listed([word, *others])}"
        )
    given = load_settings().database_url
    if word is None:
        return Home(given, None)
    if isinstance(word, _Unsaid):
        return _found(given)
    own = _url_of(_checked(word))
    # Another way into the same database, past a pooler for example: whoever names both says that they are the same.
    return Home(given or own, str(word))


def home_of(alias: str) -> Home:
    """Django's database of this *alias*, whatever Timeball's own settings say."""
    return Home(_url_of(_checked(alias)), alias)


def _found(given: str | None) -> Home:
    """The home of those who say nothing: Django's own database, if nothing speaks against it."""
    if DEFAULT_DB_ALIAS not in connections or connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
        return Home(given, None)
    own = _url_of(DEFAULT_DB_ALIAS)
    if given is not None and _place(given) != _place(own):
        return Home(given, None)
    return Home(given or own, DEFAULT_DB_ALIAS)


def _checked(alias: object) -> str:
    if not isinstance(alias, str) or alias not in connections:
        known = ", ".join(map(repr, connections))
        raise InvalidInput(f"OPTIONS has the database {alias!r}, expected None or one of DATABASES: {known}")
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        raise InvalidInput(f"OPTIONS has the database {alias!r}, which is {vendor}, expected a PostgreSQL")
    return alias


def _url_of(alias: str) -> str:
    """A database of Django's as a URL."""
    found: Mapping[str, Any] = connections[alias].settings_dict
    options: Mapping[str, Any] = found.get("OPTIONS") or {}
    host, port = str(found.get("HOST") or ""), str(found.get("PORT") or "")
    # What Django hands to libpq; the rest is for Django itself, or for its driver.
    query = {name: options[name] for name in PARAMETERS if name in options}
    if host.startswith("/") or "," in host:
        query |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    return f"postgresql://{_login(found)}{place}/{quote(str(found.get('NAME') or ''), safe='')}" + (
        f"?{urlencode(query, quote_via=quote, safe=',')}" if query else ""
    )


def _login(found: Mapping[str, Any]) -> str:
    user, password = str(found.get("USER") or ""), str(found.get("PASSWORD") or "")
    if not user:
        return ""
    return quote(user, safe="") + (f":{quote(password, safe='')}" if password else "") + "@"


def _place(url: str) -> tuple[list[tuple[str, int]], str | None]:
    """Hosts, ports and name of a database, as far as two URLs can be compared by them."""
    parsed = DatabaseUrl.parse(url)
    hosts = ((host.name, host.port) for host in parsed.hosts())
    return sorted(("localhost" if name in _LOCAL else name, port) for name, port in hosts), parsed.database


def _listed(words: Iterable[object]) -> str:
    return ", ".join(sorted("nothing" if isinstance(word, _Unsaid) else repr(word) for word in words))
