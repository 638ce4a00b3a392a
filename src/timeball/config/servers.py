"""The servers that a process calls: what is wrong with a URL, and the local key of an API on this machine.

A message about a URL never repeats the URL, which may contain a password. It repeats neither host nor port: if the password contains a
`/` or an `@`, they are parts of it.

The local key identifies programs of one account to an API on the same machine where the kernel does not tell who is calling (see
`api.peers`). The API writes a new key for its port into the data directory at every start, and removes it when it stops. Clients of
the same account send it to that port. An old key is worthless, so a foreign program that takes the port later learns nothing.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=://)")
_HOST = re.compile(r"(?P<name>\[[^\[\]]+\]|[^\[\]:]*)(:(?P<port>[0-9]{0,5}))?")
_ESCAPES = "in a user or password, / is written %2F, @ %40, : %3A, ? %3F and # %23"
_LAST_PORT = 65535


def server_url_problem(url: str, schemes: Collection[str], example: str) -> str | None:
    """What is wrong with a URL, what was expected, and the likely reason; None if nothing is."""
    return _problem(url, schemes, example) or _host_problem([_server(url).rpartition("@")[2]], example)


def database_url_problem(url: str) -> str | None:
    """The same for PostgreSQL: the URL may have several hosts, or none if the query or the driver's variables name one."""
    example = "postgresql://user:password@host:5432/database"
    if problem := _problem(url, ("postgresql", "postgres"), example):
        return problem
    # For asyncpg the password ends at the first @, for others at the last.
    _, _, hosts = _server(url).rpartition("@")
    if _server(url).count("@") > 1:
        return f"has more than one @ before its path, expected one like {example}; {_ESCAPES}"
    return _host_problem(hosts.split(",") if hosts else (), example)


# The query parameters that the clients of the brokers read. Others are set by Timeball, or unknown to the clients.
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
# The parameters that name a file.
BROKER_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "cafile", "certfile", "keyfile")


def broker_parameter_problem(url: str) -> str | None:
    """What is wrong with the query of a broker's URL: an unknown parameter, or one of TLS without TLS."""
    parts = urlsplit(url)
    is_redis = parts.scheme.startswith("redis")
    plain, of_tls = (_REDIS, _REDIS_TLS) if is_redis else (_RABBITMQ, _RABBITMQ_TLS)
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name in of_tls and parts.scheme not in ("rediss", "amqps"):
            return f"has {name}, which needs TLS, and begins with {parts.scheme}://, expected {parts.scheme}s://"
        if name not in (*plain, *of_tls):
            if not name.isidentifier() or ("@" in parts.query and "@" not in parts.netloc):
                return f"has a parameter that is not a name; {_ESCAPES}"
            return f'has the parameter "{name}", which is unknown: {_suggestion(name, (*plain, *of_tls))}'
    return None


def _suggestion(name: str, parameters: Collection[str]) -> str:
    import difflib

    matches = difflib.get_close_matches(name.lower(), parameters, 1, 0.6)
    return f"did you mean {matches[0]}?" if matches else f"expected one of {', '.join(parameters)}"


def _problem(url: str, schemes: Collection[str], example: str) -> str | None:
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[0].lower() not in schemes:
        start = "does not begin with a scheme" if scheme is None else f"begins with {scheme[0]}://"
        return f"{start}, expected {' or '.join(f'{name}://' for name in schemes)}, as in {example}"
    try:
        query = urlsplit(url).query
    except ValueError:
        return f"cannot be read as a URL, expected one like {example}; {_ESCAPES}"
    if query and not _is_query(query):
        return f"has a query that cannot be read, expected name=value after the ?, with & between them; {_ESCAPES}"
    return None


def _server(url: str) -> str:
    return urlsplit(url).netloc


def _host_problem(hosts: Iterable[str], example: str) -> str | None:
    for host in map(_HOST.fullmatch, hosts):
        if host is None or not _is_port(host["port"]):
            return f"has a port that is not a number from 1 to {_LAST_PORT}, expected one like {example}; {_ESCAPES}"
        if not host["name"]:
            return f"has no host, expected one like {example}"
    return None


def _is_port(text: str | None) -> bool:
    return not text or 1 <= int(text) <= _LAST_PORT


def _is_query(text: str) -> bool:
    try:
        parse_qsl(text, strict_parsing=True)
    except ValueError:
        return False
    return True


_KEY_PREFIX = "tblocal_"
_MAX_KEY_LENGTH = 200


def _key_file(data_dir: Path, port: int) -> Path:
    return data_dir / f"api-{port}.key"


def write_local_key(data_dir: Path, port: int) -> str:
    """Create the key of an API that starts; only its account can read the file."""
    key = _KEY_PREFIX + secrets.token_urlsafe(32)
    path = _key_file(data_dir, port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_local_key(data_dir, port)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return key


def remove_local_key(data_dir: Path, port: int) -> None:
    """Remove the key of an API that stops."""
    with suppress(OSError):
        _key_file(data_dir, port).unlink(missing_ok=True)


def find_local_key(url: str, data_dir: Path | None = None) -> str | None:
    """The local key of the API at this URL, if it is on this machine and the key file belongs to this account."""
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or ""):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    folder = data_dir or Path(os.environ.get("TIMEBALL_DATA_DIR") or ".timeball")
    with suppress(OSError):
        descriptor = os.open(_key_file(folder, port), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor) as file:
            status = os.fstat(descriptor)
            is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
            if is_private and status.st_uid in (0, os.geteuid()):
                key = file.read(_MAX_KEY_LENGTH)
                return key if key.startswith(_KEY_PREFIX) and key.isascii() and key.isprintable() else None
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
