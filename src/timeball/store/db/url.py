"""The database URL, read as libpq reads it, and what it means for asyncpg and psycopg."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from timeball.errors import SettingsError

# The parameters of libpq, and the environment variable of each.
PARAMETERS: Mapping[str, str | None] = {
    "service": "PGSERVICE",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "channel_binding": "PGCHANNELBINDING",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "dbname": "PGDATABASE",
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "client_encoding": "PGCLIENTENCODING",
    "options": "PGOPTIONS",
    "application_name": "PGAPPNAME",
    "fallback_application_name": None,
    "keepalives": None,
    "keepalives_idle": None,
    "keepalives_interval": None,
    "keepalives_count": None,
    "tcp_user_timeout": None,
    "sslmode": "PGSSLMODE",
    "sslnegotiation": "PGSSLNEGOTIATION",
    "sslcompression": "PGSSLCOMPRESSION",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcertmode": "PGSSLCERTMODE",
    "sslpassword": None,
    "sslrootcert": "PGSSLROOTCERT",
    "sslcrl": "PGSSLCRL",
    "sslcrldir": "PGSSLCRLDIR",
    "sslsni": "PGSSLSNI",
    "sslkeylogfile": None,
    "requirepeer": "PGREQUIREPEER",
    "require_auth": "PGREQUIREAUTH",
    "min_protocol_version": "PGMINPROTOCOLVERSION",
    "max_protocol_version": "PGMAXPROTOCOLVERSION",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
    "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
    "gssencmode": "PGGSSENCMODE",
    "krbsrvname": "PGKRBSRVNAME",
    "gsslib": "PGGSSLIB",
    "gssdelegation": "PGGSSDELEGATION",
    "replication": None,
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "load_balance_hosts": "PGLOADBALANCEHOSTS",
    "scram_client_key": None,
    "scram_server_key": None,
    "oauth_issuer": None,
    "oauth_client_id": None,
    "oauth_client_secret": None,
    "oauth_scope": None,
}

_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# The supported values of some parameters, and what to do about others. Parameters that are neither here nor in _NEVER take any value.
_VALUES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "sslmode": (_MODES, "verify-full is the safe one"),
    "channel_binding": (("disable", "prefer", "require"), ""),
    "load_balance_hosts": (("disable", "random"), ""),
    "target_session_attrs": (("any", "read-write", "primary"), "Timeball writes to its database"),
    "gssencmode": (("disable", "prefer"), "asyncpg has no GSSAPI encryption; encrypt with sslmode=verify-full"),
    "gssdelegation": (("0",), "asyncpg does not forward Kerberos credentials"),
    "sslnegotiation": (("postgres", "direct"), ""),
    "sslcertmode": (("allow",), "asyncpg sends the certificate that sslcert names whenever the server asks for one"),
    "sslsni": (("1",), "asyncpg always names the host in the TLS handshake"),
    "min_protocol_version": (("3.0",), "asyncpg speaks version 3.0 of the protocol"),
    "keepalives": (("0", "1"), ""),
    "client_encoding": (("utf8", "utf-8", "unicode", "auto"), "Timeball always speaks UTF8; leave it out"),
}
# Parameters that asyncpg does not support, and what to do instead.
_NEVER: Mapping[str, str] = {
    "sslcrldir": "put the revocation lists into one file and name it in sslcrl",
    "sslkeylogfile": "set the variable SSLKEYLOGFILE instead",
    "requirepeer": "restrict who may create the socket by the rights of its folder",
    "require_auth": "leave it out, and let sslmode=verify-full prove which server it is",
    "replication": "leave it out: Timeball's connections are ordinary ones",
    "scram_client_key": "use password or passfile",
    "scram_server_key": "use password or passfile",
    "oauth_issuer": "use a password or a client certificate",
    "oauth_client_id": "use a password or a client certificate",
    "oauth_client_secret": "use a password or a client certificate",
    "oauth_scope": "use a password or a client certificate",
}
_NUMBERS = frozenset(
    ("connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
)
# Parameters of other drivers, and what Timeball has instead.
_ELSEWHERE: Mapping[str, str] = {
    "database": "libpq calls it dbname",
    "username": "libpq calls it user",
    "timeout": "libpq calls it connect_timeout",
    "sslca": "libpq calls it sslrootcert",
    "ssl_ca": "libpq calls it sslrootcert",
    "pgbouncer": "set TIMEBALL_BEHIND_PGBOUNCER=true instead",
    "pool_size": "set TIMEBALL_DATABASE_POOL instead",
    "connection_limit": "set TIMEBALL_DATABASE_POOL instead",
    "schema": "leave it out: Timeball's tables are always in the schema timeball",
}
_SETTING_HINT = "a setting of the session is given as options=-c%20NAME%3DVALUE"
# Parameters that may be left out for an older libpq: their effect is its default, or only the order of hosts differs.
_DISPENSABLE = frozenset(
    ("load_balance_hosts", "sslcertmode", "sslsni", "min_protocol_version", "max_protocol_version", "gssdelegation")
)
_OF_TLS = (
    "sslmode",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslrootcert",
    "sslcrl",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
)
_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
_SYSTEM = "system"
_PORT = 5432
_LAST_PORT = 65535
_SOCKET_FOLDERS = ("/run/postgresql", "/var/run/postgresql", "/tmp")  # noqa: S108  (where PostgreSQL puts them)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    """The TCP settings of the URL; None leaves a setting to Timeball.

    0 means the default of the operating system, as in PostgreSQL.
    """

    keepalives: bool = True
    keepalives_idle_seconds: int | None = None
    keepalives_interval_seconds: int | None = None
    keepalives_count: int | None = None
    user_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """One address of the server: a name or an IP address with its port, or the folder of a socket."""

    name: str
    port: int
    address: str | None = None

    @property
    def is_socket(self) -> bool:
        """Whether it is a socket in the file system, without TLS and TCP."""
        return (self.address or self.name).startswith("/")


@dataclass(frozen=True)
class DatabaseUrl:
    """A URL that both drivers support; *parameters* have the names of libpq, and include those of the service and the environment."""

    text: str = field(repr=False)
    parameters: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> DatabaseUrl:
        """Read a URL; SettingsError names every unsupported parameter, and what to do about it."""
        surroundings = os.environ if environment is None else environment
        written = dict(_written(text))
        problems = list(_unknown(text, written))
        of_service = _service(written, surroundings) if not problems else {}
        inherited = {
            name: surroundings[variable]
            for name, variable in PARAMETERS.items()
            if variable is not None and surroundings.get(variable)
        }
        parameters = {**inherited, **of_service, **written}
        parameters.pop("service", None)
        places = {name: f"the variable {PARAMETERS[name]}" for name in inherited}
        places |= dict.fromkeys(of_service, "the service file") | dict.fromkeys(written, "the URL of the database")
        problems += _refused(parameters, places)
        if problems:
            raise SettingsError(problems)
        url = cls(text, parameters)
        url._check_hosts()
        return url

    @property
    def database(self) -> str | None:
        """The name of the database; without it the driver takes the name of the user."""
        return self.parameters.get("dbname")

    @property
    def connect_timeout_seconds(self) -> int | None:
        """How long one host may take to answer; None if the URL has no limit."""
        seconds = self._number("connect_timeout")
        return seconds if seconds is not None and seconds > 0 else None

    @cached_property
    def tcp(self) -> TcpOptions:
        """The settings of keepalive and unacknowledged data."""
        return TcpOptions(
            keepalives=self.parameters.get("keepalives") != "0",
            keepalives_idle_seconds=self._number("keepalives_idle"),
            keepalives_interval_seconds=self._number("keepalives_interval"),
            keepalives_count=self._number("keepalives_count"),
            user_timeout_ms=self._number("tcp_user_timeout"),
        )

    @property
    def application_name(self) -> str | None:
        """The name of the sessions in pg_stat_activity; None if the URL has none."""
        return self.parameters.get("application_name") or self.parameters.get("fallback_application_name")

    def hosts(self) -> list[Host]:
        """The hosts, in the order of the URL."""
        names = self.parameters.get("host", "").split(",")
        addresses = self.parameters.get("hostaddr", "").split(",")
        count = max(len(names), len(addresses))
        ports = self.parameters.get("port", "").split(",")
        if len(ports) == 1:
            ports *= count
        names += [""] * (count - len(names))
        addresses += [""] * (count - len(addresses))
        if len(ports) != count:
            raise SettingsError(
                [
                    f"the URL of the database has {len(ports)} ports for {count} hosts, expected one for all or one for each"
                ]
            )
        return [_host(*each) for each in zip(names, addresses, ports, strict=True)]

    @property
    def balances_load(self) -> bool:
        """Whether the hosts are to be tried in a random order (load_balance_hosts)."""
        return self.parameters.get("load_balance_hosts") == "random"

    def for_asyncpg(self, host: Host) -> dict[str, Any]:
        """The arguments of asyncpg.connect for one of the hosts."""
        self._check_files()
        parameters = self.parameters
        options = {
            "host": host.address or host.name,
            "port": host.port,
            "user": parameters.get("user"),
            "password": parameters.get("password"),
            "passfile": parameters.get("passfile"),
            "database": parameters.get("dbname"),
            "target_session_attrs": parameters.get("target_session_attrs"),
            "krbsrvname": parameters.get("krbsrvname"),
            "gsslib": parameters.get("gsslib"),
        }
        options = {name: value for name, value in options.items() if value is not None}
        settings = {"options": parameters.get("options"), "application_name": self.application_name}
        options["server_settings"] = {name: value for name, value in settings.items() if value}
        if parameters.get("sslnegotiation") == "direct":
            options["direct_tls"] = True
        if self._trusts_system and not host.is_socket:
            return {**options, "ssl": self._system_tls()}
        tls = {name: parameters[name] for name in _OF_TLS if name in parameters}
        if self.binds_channel:
            # asyncpg has no channel binding. A verified certificate proves the identity of the server as well.
            tls["sslmode"] = "verify-full"
        return {**options, "dsn": f"postgresql://?{urlencode(tls, quote_via=quote)}"} if tls else options

    def for_psycopg(self) -> dict[str, Any]:
        """The arguments of psycopg.connect."""
        import psycopg

        supported = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
        unsupported = sorted(set(self.parameters) - supported - _DISPENSABLE)
        if unsupported:
            raise SettingsError(
                [f'the installed libpq does not know {unsupported[0]}: pip install --upgrade "psycopg[binary]"']
            )
        options = {name: value for name, value in self.parameters.items() if name in supported}
        if "host" not in options and "hostaddr" not in options:
            # The driver looks in one folder, which was chosen at its build.
            host = self.hosts()[0]
            options |= {"host": host.name, "port": str(host.port)}
        # The libpq of psycopg does not find the certificates of this machine.
        bundle = _system_bundle() if self._names_system else None
        if self._names_system:
            options |= {"sslmode": "verify-full", "sslrootcert": bundle or _SYSTEM}
        return {**options, "client_encoding": "UTF8"}

    def _number(self, name: str) -> int | None:
        return int(self.parameters[name]) if name in self.parameters else None

    @property
    def _names_system(self) -> bool:
        return self.parameters.get("sslrootcert") == _SYSTEM

    @property
    def binds_channel(self) -> bool:
        """Whether the URL requires channel binding."""
        return self.parameters.get("channel_binding") == "require"

    @property
    def _trusts_system(self) -> bool:
        """Whether an authority that this machine trusts must have signed the certificate of the server."""
        has_own = "sslrootcert" in self.parameters or Path("~/.postgresql/root.crt").expanduser().exists()
        return self._names_system or (self.binds_channel and not has_own)

    def _system_tls(self) -> ssl.SSLContext:
        parameters = self.parameters
        context = ssl.create_default_context(cafile=_system_bundle())
        context.set_alpn_protocols(["postgresql"])
        if "sslcert" in parameters:
            context.load_cert_chain(
                parameters["sslcert"], parameters.get("sslkey"), lambda: parameters.get("sslpassword", "")
            )
        if "sslcrl" in parameters:
            context.load_verify_locations(cafile=parameters["sslcrl"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        lowest = parameters.get("ssl_min_protocol_version", "TLSv1.2")
        context.minimum_version = ssl.TLSVersion[lowest.replace(".", "_")]
        if "ssl_max_protocol_version" in parameters:
            context.maximum_version = ssl.TLSVersion[parameters["ssl_max_protocol_version"].replace(".", "_")]
        return context

    def _check_hosts(self) -> None:
        hosts = self.hosts()
        mode = self.parameters.get("sslmode")
        if self._names_system and mode not in (None, "verify-full"):
            raise SettingsError(
                [
                    f"the URL of the database has sslrootcert=system and sslmode={mode}, expected sslmode=verify-full with it"
                ]
            )
        if self.binds_channel and any(host.is_socket for host in hosts):
            raise SettingsError(
                [
                    "the URL of the database has channel_binding=require, which needs TLS, and leads to a socket, which has none"
                ]
            )
        is_checked = mode == "verify-full" or self._names_system or self.binds_channel
        if is_checked and any(host.address not in (None, host.name) for host in hosts):
            problem = (
                "the URL of the database has hostaddr beside host, and asyncpg can only check the name that it connects to: "
                "leave hostaddr out, or give the name that address in /etc/hosts"
            )
            raise SettingsError([problem])

    def _check_files(self) -> None:
        """An error that names the missing file, which OpenSSL does not."""
        missing = [
            f'{name} names the file "{self.parameters[name]}", which cannot be read by this account'
            for name in _FILES
            if self.parameters.get(name) not in (None, _SYSTEM) and not os.access(self.parameters[name], os.R_OK)
        ]
        if missing:
            raise SettingsError([f"the URL of the database: {problem}" for problem in missing])


def _written(text: str) -> Iterator[tuple[str, str]]:
    """The parameters of the URL itself, in the order in which libpq lets later ones win."""
    parts = urlsplit(text)
    login, at, place = parts.netloc.rpartition("@")
    if at:
        user, _, password = login.partition(":")
        yield from _unless_empty(user=unquote(user), password=unquote(password))
    hosts = [_host_and_port(each) for each in place.split(",")] if place else []
    ports = [port for _, port in hosts]
    yield from _unless_empty(
        host=",".join(unquote(host) for host, _ in hosts), port=",".join(ports) if any(ports) else ""
    )
    yield from _unless_empty(dbname=unquote(parts.path.removeprefix("/")))
    for pair in parts.query.split("&"):
        # Unlike in a form, a + in a URL of libpq is a plus.
        name, _, value = map(unquote, pair.partition("="))
        if name == "ssl" and value == "true":
            name, value = "sslmode", "require"
        if value:
            yield name, value


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port


def _unless_empty(**values: str) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in values.items() if value)


def _host(name: str, address: str, port: str) -> Host:
    number = int(port) if port else _PORT
    if not name and not address:
        return Host(_local_socket(number) or "localhost", number)
    return Host(name or address, number, address or None)


def _local_socket(port: int) -> str | None:
    """The socket folder of a server of this machine."""
    return next((each for each in _SOCKET_FOLDERS if Path(each, f".s.PGSQL.{port}").exists()), None)


def _unknown(text: str, written: Mapping[str, str]) -> Iterator[str]:
    for name in written:
        if name in PARAMETERS:
            continue
        if not name.isidentifier() or ("@" in urlsplit(text).query and "@" not in urlsplit(text).netloc):
            # Text after a ? in a password is not a parameter, and must not be shown.
            yield "the URL of the database has a parameter that is not a name; in a user or password, ? is written %3F and & %26"
            return
        yield f'the URL of the database has the parameter "{name}", which libpq does not know: {_instead(name)}'


def _instead(name: str) -> str:
    import difflib  # for a mistyped one

    if advice := _ELSEWHERE.get(name.lower()):
        return advice
    alike = difflib.get_close_matches(name.lower(), PARAMETERS, 1, 0.7)
    return f"did you mean {alike[0]}?" if alike else _SETTING_HINT


def _refused(parameters: Mapping[str, str], places: Mapping[str, str]) -> Iterator[str]:
    for name, value in parameters.items():
        place = places[name]
        if name in _NEVER:
            yield f"{place} has {name}, which asyncpg cannot honour: {_NEVER[name]}"
        elif name in _NUMBERS and not value.removeprefix("-").isdecimal():
            yield f'{place} has {name} "{value}", expected a whole number'
        elif name == "port" and not all(each == "" or _is_port(each) for each in value.split(",")):
            yield f"{place} has a port that is not a number from 1 to {_LAST_PORT}"
        elif name in ("ssl_min_protocol_version", "ssl_max_protocol_version") and not _is_tls_version(value):
            yield f'{place} has {name} "{value}", expected TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3'
        elif name in _VALUES and value.lower() not in _VALUES[name][0]:
            expected, advice = _VALUES[name]
            yield f'{place} has {name} "{value}", expected {_either(expected)}' + (f": {advice}" if advice else "")


def _is_port(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= _LAST_PORT


def _is_tls_version(text: str) -> bool:
    return text in ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")


def _either(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


def _service(written: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a service in the connection service file."""
    name = written.get("service") or environment.get("PGSERVICE")
    if not name:
        return {}
    own = environment.get("PGSERVICEFILE") or Path.home() / ".pg_service.conf"
    shared = Path(environment.get("PGSYSCONFDIR") or "/etc/postgresql-common") / "pg_service.conf"
    for file in (Path(own), shared):
        if (parameters := _section(file, name)) is not None:
            return parameters
    raise SettingsError([f'the connection service "{name}" stands neither in {own} nor in {shared}'])


def _section(file: Path, name: str) -> dict[str, str] | None:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    parameters: dict[str, str] | None = None
    for line in map(str.strip, lines):
        if line.startswith("["):
            if parameters is not None:
                return parameters
            parameters = {} if line == f"[{name}]" else None
        elif parameters is not None and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            if key not in PARAMETERS:
                raise SettingsError([f'the connection service "{name}" in {file} has "{key}": {_instead(key)}'])
            parameters[key] = value
    return parameters


def _system_bundle() -> str | None:
    """The file of the certificate authorities that this machine trusts, if there is one."""
    return ssl.get_default_verify_paths().cafile
