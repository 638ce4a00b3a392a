"""The database URL: read as libpq reads it, the same for both drivers; unsupported parameters are refused by name."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.conftest import FreshDatabase
from tests.support.broker_servers import free_port
from tests.support.certificates import Authority
from tests.support.servers import (
    VERSIONS,
    PgBouncer,
    PostgresServer,
    ServiceMissing,
    _private_folder,
    give_up_on,
    quickest_place,
    service_account,
    system_programs,
)
from timeball.env import Env
from timeball.errors import SettingsError, StoreUnavailable
from timeball.store.db.database import Database
from timeball.store.db.url import DatabaseUrl, Host, TcpOptions

PLAIN = "postgresql://user:canary@db.internal/orders"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGSERVICE", "PGSSLMODE", "PGOPTIONS"):
        monkeypatch.delenv(name, raising=False)


def parsed(url: str, **environment: str) -> DatabaseUrl:
    return DatabaseUrl.parse(url, environment)


def asyncpg_options(url: DatabaseUrl) -> dict[str, Any]:
    return url.for_asyncpg(url.hosts()[0])


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://db", [Host("db", 5432)]),
        ("postgresql://a:1,b:2/x", [Host("a", 1), Host("b", 2)]),
        ("postgresql://a,b/x?port=7", [Host("a", 7), Host("b", 7)]),
        ("postgresql:///x?host=a,b&port=1,2", [Host("a", 1), Host("b", 2)]),
        ("postgresql://[::1]:99/x", [Host("::1", 99)]),
        ("postgresql://a/x?host=b", [Host("b", 5432)]),
        ("postgresql:///x?host=%2Fsockets", [Host("/sockets", 5432)]),
        ("postgresql://%2Fsockets/x", [Host("/sockets", 5432)]),
        ("postgresql://a/x?hostaddr=10.0.0.1", [Host("a", 5432, "10.0.0.1")]),
        ("postgresql:///x?hostaddr=10.0.0.1", [Host("10.0.0.1", 5432, "10.0.0.1")]),
    ],
)
def test_hosts_are_read_as_libpq_reads_them(url: str, hosts: list[Host]) -> None:
    assert parsed(url).hosts() == hosts


def test_user_password_and_database_are_unescaped_and_a_plus_stays() -> None:
    url = parsed("postgresql://us%40er:p%2Fw+x@h/my%20db?application_name=a+b")

    assert url.parameters["user"] == "us@er"
    assert url.parameters["password"] == "p/w+x"
    assert url.database == "my db"
    assert url.application_name == "a+b"


def test_the_url_goes_before_the_service_and_the_service_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "services"
    file.write_text(
        "# ours\n[other]\nhost=wrong\n\n[books]\nhost=db.internal\nuser=clerk\ndbname=books\n[last]\nport=1\n"
    )
    environment = {"PGSERVICEFILE": str(file), "PGPORT": "7000", "PGUSER": "nobody", "PGSSLMODE": "require"}

    url = parsed("postgresql://?service=books&dbname=copies", **environment)

    expected = {"host": "db.internal", "user": "clerk", "dbname": "copies", "port": "7000", "sslmode": "require"}
    assert dict(url.parameters) == expected


def test_a_missing_service_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='connection service "books" stands neither in'):
        parsed("postgresql://?service=books", PGSERVICEFILE=str(tmp_path / "none"), PGSYSCONFDIR=str(tmp_path))


@pytest.mark.parametrize(
    "parameters",
    [
        "channel_binding=prefer",
        "channel_binding=disable",
        "connect_timeout=10",
        "keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=3",
        "tcp_user_timeout=9000",
        "gssencmode=disable",
        "gssencmode=prefer",
        "load_balance_hosts=random",
        "target_session_attrs=read-write",
        "application_name=books",
        "fallback_application_name=books",
        "options=-c%20work_mem%3D5MB",
        "client_encoding=utf8",
        "sslcompression=0&sslsni=1&sslcertmode=allow",
        "min_protocol_version=3.0&max_protocol_version=latest",
        "sslmode=prefer",
        "ssl_min_protocol_version=TLSv1.2",
        "passfile=%2Fnowhere",
        "krbsrvname=postgres&gssdelegation=0",
    ],
)
@pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)
async def test_both_drivers_accept_what_libpq_accepts(fresh_database: FreshDatabase, parameters: str) -> None:
    database = Database(f"{fresh_database.dsn}&{parameters}", Env())

    connection = await database.connect()
    found = await connection.fetchrow(
        "SELECT current_setting('application_name') AS name, current_setting('work_mem') AS memory"
    )
    await connection.close()
    direct = await asyncio.to_thread(database.direct_connection)
    also_found = direct._cursor.execute(
        "SELECT current_setting('application_name'), current_setting('work_mem')"
    ).fetchone()
    direct.close()

    assert tuple(found) == also_found
    assert found["name"] == ("books" if "books" in parameters else "timeball")
    assert found["memory"] == ("5MB" if "work_mem" in parameters else "4MB")


@pytest.mark.parametrize(
    ("parameter", "complaint"),
    [
        (
            "chanel_binding=require",
            'has the parameter "chanel_binding", which libpq does not know: did you mean channel_binding?',
        ),
        ("sslrootcrt=x", "did you mean sslrootcert?"),
        ("pool_timeout=3", "a setting of the session is given as options=-c%20NAME%3DVALUE"),
        ("pgbouncer=true", "set TIMEBALL_BEHIND_PGBOUNCER=true instead"),
        ("database=x", "libpq calls it dbname"),
        ("sslmode=maybe", 'has sslmode "maybe", expected disable, allow, prefer, require, verify-ca or verify-full'),
        (
            "gssencmode=require",
            'has gssencmode "require", expected disable or prefer: asyncpg has no GSSAPI encryption',
        ),
        ("target_session_attrs=standby", "expected any, read-write or primary: Timeball writes to its database"),
        ("require_auth=scram-sha-256", "has require_auth, which asyncpg cannot honour: leave it out"),
        ("sslcrldir=x", "name it in sslcrl"),
        ("connect_timeout=soon", 'has connect_timeout "soon", expected a whole number'),
        ("port=http", "has a port that is not a number from 1 to 65535"),
        ("port=1,2", "has 2 ports for 1 hosts"),
        ("client_encoding=latin1", "Timeball always speaks UTF8"),
        ("sslrootcert=system&sslmode=require", "expected sslmode=verify-full with it"),
        ("ssl_min_protocol_version=SSLv3", "expected TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3"),
        ("hostaddr=10.0.0.1&sslmode=verify-full", "leave hostaddr out"),
        ("host=%2Fsockets&channel_binding=require", "needs TLS, and leads to a socket"),
    ],
)
def test_an_unsupported_parameter_is_named_with_what_to_do(parameter: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(f"{PLAIN}?{parameter}")

    assert complaint in str(refused.value)
    assert "canary" not in str(refused.value)


def test_all_unsupported_parameters_are_reported_together() -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(f"{PLAIN}?sslmod=require&gssencmode=require&oauth_client_secret=canary")

    assert len(refused.value.problems) == 3
    assert "canary" not in str(refused.value)


def test_an_unsupported_variable_is_named_as_one() -> None:
    with pytest.raises(SettingsError, match="the variable PGREQUIREAUTH has require_auth, which asyncpg cannot honour"):
        parsed(PLAIN, PGREQUIREAUTH="none")


def test_a_question_mark_in_a_password_does_not_show_it_as_a_parameter() -> None:
    with pytest.raises(SettingsError, match="is written %3F") as refused:
        parsed("postgresql://user:12?canary=ary@host/db")

    assert "canary" not in str(refused.value)


def test_a_missing_certificate_is_named() -> None:
    url = parsed(f"{PLAIN}?sslmode=verify-full&sslrootcert=/nowhere/ca.crt")

    with pytest.raises(SettingsError, match=r'sslrootcert names the file "/nowhere/ca\.crt", which cannot be read'):
        asyncpg_options(url)


def test_tcp_settings_are_kept_for_the_sockets() -> None:
    url = parsed(f"{PLAIN}?keepalives_idle=30&keepalives_interval=10&keepalives_count=3&tcp_user_timeout=9000")

    assert url.tcp == TcpOptions(
        keepalives_idle_seconds=30, keepalives_interval_seconds=10, keepalives_count=3, user_timeout_ms=9000
    )
    assert parsed(PLAIN).tcp == TcpOptions()
    assert not parsed(f"{PLAIN}?keepalives=0").tcp.keepalives
    assert url.for_psycopg()["keepalives_idle"] == "30"


def test_a_password_is_in_no_representation() -> None:
    assert "canary" not in repr(parsed(PLAIN))


async def test_hosts_are_tried_in_a_random_order_only_when_that_is_asked_for() -> None:
    hosts = ",".join(f"127.0.0.1:{number}" for number in range(1, 9))

    async def tried(query: str) -> list[str]:
        env = Env(rng=Random(5))
        with pytest.raises(StoreUnavailable) as refused:
            await Database(f"postgresql://{hosts}/x?{query}", env).connect()
        return re.findall(r"127\.0\.0\.1:(\d+): ", str(refused.value))

    in_order = [str(number) for number in range(1, 9)]
    assert await tried("load_balance_hosts=disable") == in_order
    mixed = await tried("load_balance_hosts=random")
    assert mixed != in_order
    assert sorted(mixed) == in_order


@pytest.fixture
def silent_host() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)
async def test_a_silent_host_does_not_prevent_the_next(fresh_database: FreshDatabase, silent_host: int) -> None:
    server = fresh_database.server
    hosts = f"host=127.0.0.1,{quote(server.host, safe='')}&port={silent_host},5432"
    database = Database(f"postgresql://timeball@/{fresh_database.name}?{hosts}&connect_timeout=1", Env())

    connection = await database.connect()

    assert await connection.fetchval("SELECT current_database()") == fresh_database.name
    await connection.close()


async def test_every_failed_host_is_reported_with_its_reason(silent_host: int) -> None:
    closed = free_port()
    database = Database(f"postgresql://u:canary@127.0.0.1:{silent_host},127.0.0.1:{closed}/x?connect_timeout=1", Env())

    with pytest.raises(StoreUnavailable) as refused:
        await database.connect()

    assert f"127.0.0.1:{silent_host}: no answer within 1 s" in str(refused.value)
    assert f"127.0.0.1:{closed}: " in str(refused.value)
    assert "canary" not in str(refused.value)


class TlsServer(PostgresServer):
    """A PostgreSQL on loopback that requires TLS and a password; an authority of the tests signed its certificate."""

    authority: Authority
    port: int

    def _initialise(self) -> None:
        super()._initialise()
        certificate, key = self.authority.certificate("postgres")
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            (self._data / name).write_bytes(source.read_bytes())
            (self._data / name).chmod(0o600)
            if os.geteuid() == 0:
                os.chown(self._data / name, self._account.uid, self._account.gid)
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = '127.0.0.1'\nport = {self.port}\nssl = on\n")
        (self._data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")

    def local(self) -> str:
        return f"postgresql://timeball@/postgres?host={quote(self.host, safe='')}&port={self.port}"

    def url(self, query: str, host: str = "localhost") -> str:
        return f"postgresql://clerk:pass%2Fword@{host}:{self.port}/postgres?{query}"


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    try:
        programs = system_programs()
    except ServiceMissing as error:
        give_up_on(error)
        raise
    account = service_account()
    base = Path(tempfile.mkdtemp(prefix="timeball-tls-", dir=quickest_place()))
    base.chmod(0o711)
    server = TlsServer(programs, _private_folder(base / "pg", account), account)
    server.authority = Authority.make(tmp_path_factory.mktemp("authority"))
    server.port = free_port()
    server.start()
    try:
        with psycopg.connect(server.local(), autocommit=True) as connection:
            connection.execute("CREATE ROLE clerk LOGIN PASSWORD 'pass/word'")
        yield server
    finally:
        server.stop()
        shutil.rmtree(base, ignore_errors=True)


async def tls_of_both_drivers(url: str) -> list[bool]:
    """Connect with each driver, and ask the server whether the connection is encrypted."""
    database = Database(url, Env())
    question = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    connection = await database.connect()
    found = [await connection.fetchval(question)]
    await connection.close()
    direct = await asyncio.to_thread(database.direct_connection)
    found += list(direct._cursor.execute(question).fetchone() or ())
    direct.close()
    return found


@pytest.mark.parametrize("query", ["", "sslmode=require", "ssl=true", "sslmode=prefer&channel_binding=prefer"])
async def test_tls_without_an_authority(tls_server: TlsServer, query: str) -> None:
    assert await tls_of_both_drivers(tls_server.url(query)) == [True, True]


@pytest.mark.parametrize(
    "query", ["sslmode=verify-full", "sslmode=verify-ca", "sslmode=verify-full&channel_binding=require"]
)
async def test_a_private_authority_is_named_in_the_url(tls_server: TlsServer, query: str) -> None:
    url = tls_server.url(f"{query}&sslrootcert={quote(str(tls_server.authority.file), safe='')}")

    assert await tls_of_both_drivers(url) == [True, True]


@pytest.mark.parametrize(
    "query", ["sslrootcert=system", "sslmode=verify-full&sslrootcert=system", "sslmode=require&channel_binding=require"]
)
async def test_the_authorities_of_the_machine_are_found_by_both_drivers(
    tls_server: TlsServer, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.authority.file))

    assert await tls_of_both_drivers(tls_server.url(query)) == [True, True]


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("sslrootcert=system", "CERTIFICATE_VERIFY_FAILED"),
        (
            "sslmode=require&channel_binding=require",
            "channel_binding=require has the server's certificate checked: name its authority in sslrootcert",
        ),
    ],
)
async def test_a_server_that_cannot_prove_its_identity_is_refused(
    tls_server: TlsServer, query: str, complaint: str
) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        await Database(tls_server.url(query), Env()).connect()

    assert complaint in str(refused.value)
    assert "pass/word" not in str(refused.value)


async def test_a_wrong_name_is_refused_by_verify_full(tls_server: TlsServer) -> None:
    authority = quote(str(tls_server.authority.file), safe="")

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.2"):
        await Database(tls_server.url(f"sslmode=verify-full&sslrootcert={authority}", "127.0.0.2"), Env()).connect()


class StrictPgBouncer(PgBouncer):
    """A PgBouncer that refuses unknown startup parameters, as by default."""

    def _settings(self) -> str:
        return "\n".join(line for line in super()._settings().splitlines() if not line.startswith("ignore_")) + "\n"


@pytest.fixture
def strict_pgbouncer(pgbouncer: PgBouncer, short_folder: Path) -> Iterator[PgBouncer]:
    short_folder.chmod(0o777)
    strict = StrictPgBouncer(pgbouncer._program, short_folder, pgbouncer._account, pgbouncer.server)
    strict.start()
    yield strict
    strict.stop()


async def test_pgbouncer_without_the_setting_is_reported_with_its_name(strict_pgbouncer: PgBouncer) -> None:
    database = Database(strict_pgbouncer.dsn(), Env())

    with pytest.raises(SettingsError, match=r"unsupported startup parameter.*TIMEBALL_BEHIND_PGBOUNCER=true"):
        await database.open()
    with pytest.raises(SettingsError, match=r"unsupported startup parameter.*TIMEBALL_BEHIND_PGBOUNCER=true"):
        await asyncio.to_thread(database.direct_connection)


async def test_with_the_setting_both_drivers_pass_a_strict_pgbouncer(strict_pgbouncer: PgBouncer) -> None:
    database = Database(strict_pgbouncer.dsn(), Env(), behind_pgbouncer=True)

    await (await database.connect()).close()
    (await asyncio.to_thread(database.direct_connection)).close()


async def test_a_url_parameter_that_pgbouncer_refuses_is_named(strict_pgbouncer: PgBouncer) -> None:
    database = Database(f"{strict_pgbouncer.dsn()}&options=-c%20jit%3Doff", Env(), behind_pgbouncer=True)

    with pytest.raises(SettingsError, match=r"options.*take what it names out of the URL"):
        await database.connect()
