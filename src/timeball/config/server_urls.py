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


def server_url_problem(url: str, schemes: Collection[str], example: str) -> str | None:
    """What keeps an address from being used, what was expected, and what may be the reason."""
    return _problem(url, schemes, example) or _problem_of_hosts([_server(url).rpartition("@")[2]], example)


def database_url_problem(url: str) -> str | None:
    """The same for a PostgreSQL: it may have several hosts, or none, which is then named by the query or the driver's variables."""
    example = "postgresql://user:password@host:5432/database"
    if problem := _problem(url, ("postgresql", "postgres"), example):
        return problem
    # The driver takes the first @ for the end of the password; others take the last.
    _, _, hosts = _server(url).rpartition("@")
    if _server(url).count("@") > 1:
        return f"has more than one @ before its path, expected one like {example}; {_ESCAPES}"
    return _problem_of_hosts(hosts.split(",") if hosts else (), example)


# What the clients of the brokers read behind the `?`; what is not here, Timeball sets by itself or they do not know.
_REDIS = (
    *("db", "username", "password", "client_name", "protocol"),
    *("health_check_interval", "socket_connect_timeout", "socket_keepalive"),
)
_REDIS_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password"),
    *("ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_min_version"),
)
_RABBITMQ = ("name", "heartbeat", "auth")
_RABBITMQ_TLS = ("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl")
# Those that name a file.
BROKER_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "cafile", "certfile", "keyfile")


def broker_parameter_problem(url: str) -> str | None:
    """What is wrong with the parameters of a broker's URL: one that is unknown, or of TLS where there is none."""
    parts = urlsplit(url)
    is_redis = parts.scheme.startswith("redis")
    plain, of_tls = (_REDIS, _REDIS_TLS) if is_redis else (_RABBITMQ, _RABBITMQ_TLS)
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name in of_tls and parts.scheme not in ("rediss", "amqps"):
            return f"has {name}, which needs TLS, and begins with {parts.scheme}://, expected {parts.scheme}s://"
        if name not in (*plain, *of_tls):
            if not name.isidentifier() or ("@" in parts.query and "@" not in parts.netloc):
                return f"has a parameter that is not a name; {_ESCAPES}"
            return f'has the parameter "{name}", which is unknown: {_meant(name, (*plain, *of_tls))}'
    return None


def _meant(name: str, known: Collection[str]) -> str:
    import difflib  # for a mistyped one

    alike = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    return f"did you mean {alike[0]}?" if alike else f"known are {', '.join(known)}"


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
