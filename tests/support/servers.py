"""Real servers for the tests: private, in temporary folders, on Unix sockets, ended by process id.

`Servers.postgres("pg15")` is the PostgreSQL of the system (the oldest we support), `"pg18"` the one of the wheel.
Both run without fsync, in memory where there is room: tests about crashes of the machine start servers of their own.
A server lives as long as the test process, and dies with it even when that one is killed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from tests.support.pace import patience
from timeball.store.embedded.cluster import find_binaries, installed, reachable_binaries
from timeball.store.embedded.data_directory import SYSTEM_DIRECTORY, Account

ROLE = "timeball"
POSTGRES_PORT = 5432
PGBOUNCER_PORT = 6432
# The database from which others are made and dropped.
_MAINTENANCE = "postgres"

IN_CI = os.environ.get("CI") == "true"
# Tests of the store run on the newest version, with CI=true on the oldest as well: most of them through PgBouncer, which stands in front
# of it, and races and plans without. All other tests run on the oldest, so both versions meet every statement in any run.
VERSIONS = ["pg15", "pg18"] if IN_CI else ["pg18"]
STORE_SERVERS = ["pg18", "pgbouncer"] if IN_CI else ["pg18"]

_CONFIGURATION = f"""
listen_addresses = ''
port = {POSTGRES_PORT}
max_connections = 200
shared_buffers = 64MB
fsync = off
full_page_writes = off
jit = off
timezone = UTC
log_timezone = UTC
"""


class ServiceMissing(Exception):
    """A program the tests need is not installed."""


def give_up_on(error: ServiceMissing) -> None:
    """Skip the test at home, fail it where everything has to be there."""
    if IN_CI:
        pytest.fail(f"{error} (CI=true: a missing service is a failure)", pytrace=False)
    pytest.skip(str(error))


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Look again and again until it is so; a test that waits in vain says for what."""
    began_at = time.monotonic()
    while not is_so():
        if time.monotonic() > began_at + patience(seconds):
            raise TimeoutError(f"waited {time.monotonic() - began_at:.0f} s in vain until {what}")
        time.sleep(0.005)


class PostgresServer:
    """A PostgreSQL of our own in a folder of its own."""

    def __init__(self, programs: Path, folder: Path, account: Account) -> None:
        self.folder = folder
        self.log = folder / "log"
        self._programs = programs
        self._account = account
        self._data = folder / "data"
        self._process: _Process | None = None
        self._numbers = itertools.count(1)
        self._maintenance: psycopg.Connection[Any] | None = None

    @property
    def host(self) -> str:
        """The folder of the socket, as drivers want it."""
        return str(self.folder)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def dsn(self, database: str = _MAINTENANCE) -> str:
        return f"postgresql://{ROLE}@/{database}?host={quote(self.host, safe='')}&port={POSTGRES_PORT}"

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or a copy of *template*, and return its name."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        # FILE_COPY: without fsync, its checkpoint costs less than logging every page.
        copied = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self.execute(copied.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return name

    def drop_database(self, name: str) -> None:
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: sql.Composed | str, database: str = _MAINTENANCE) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        if database == _MAINTENANCE:
            return _run(self._maintaining(), statement)
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            return _run(connection, statement)

    def _maintaining(self) -> psycopg.Connection[Any]:
        # Kept: every test makes a database and drops it, and a connection costs as much as either.
        if self._maintenance is None or not _is_alive(self._maintenance):
            self._forget_maintenance()
            self._maintenance = psycopg.connect(self.dsn(), autocommit=True)
        return self._maintenance

    def _forget_maintenance(self) -> None:
        if self._maintenance is not None:
            self._maintenance.close()
            self._maintenance = None

    def start(self) -> None:
        if not self._data.exists():
            self._initialise()
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        command = (self._programs / "postgres", "-D", self._data, "-k", self.folder)
        self._process = _Process(command, self.log, self._account, dies_by=signal.SIGQUIT)
        wait_until(self._has_settled, "PostgreSQL is ready")
        if not self.is_running:
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """Stop it the usual way: sessions are cut, everything is written."""
        self._forget_maintenance()
        if self._process is not None:
            self._process.end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server outright and wait until its last child has gone; `start` then recovers."""
        self._forget_maintenance()
        if self._process is not None:
            self._process.end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _initialise(self) -> None:
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", f"--username={ROLE}"]
        made = self._account.run(self._programs / "initdb", "-D", self._data, *options)
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)

    def _has_settled(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            lines = []
        return not self.is_running or (len(lines) > 7 and lines[7].strip() == "ready")


class PgBouncer:
    """PgBouncer in transaction mode in front of a PostgreSQL."""

    def __init__(self, program: Path, folder: Path, account: Account, server: PostgresServer) -> None:
        self.folder = folder
        self.server = server
        self._account = account
        self._program = program
        self._process: _Process | None = None

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{ROLE}@/{database}?host={quote(str(self.folder), safe='')}&port={PGBOUNCER_PORT}"

    def start(self) -> None:
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(self._settings())
        settings.chmod(0o644)
        self._process = _Process([self._program, settings], self.folder / "log", self._account, dies_by=signal.SIGTERM)
        socket = self.folder / f".s.PGSQL.{PGBOUNCER_PORT}"
        wait_until(lambda: socket.exists() or not self.is_running, "PgBouncer listens")
        if not self.is_running:
            raise RuntimeError(f"PgBouncer did not start:\n{(self.folder / 'log').read_text()}")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def stop(self) -> None:
        if self._process is not None:
            # TERM is PgBouncer's "at once"; INT would wait for every client to go.
            self._process.end(signal.SIGTERM)

    def _settings(self) -> str:
        return "\n".join(
            [
                "[databases]",
                f"* = host={self.server.host} port={POSTGRES_PORT} user={ROLE}",
                "[pgbouncer]",
                "listen_addr =",
                f"listen_port = {PGBOUNCER_PORT}",
                f"unix_socket_dir = {self.folder}",
                "auth_type = any",
                "pool_mode = transaction",
                "max_client_conn = 500",
                "default_pool_size = 20",
                "ignore_startup_parameters = extra_float_digits,search_path,options",
                "",
            ]
        )


class Servers:
    """The servers of one test process, each started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._postgres: dict[str, PostgresServer] = {}
        self._bouncers: dict[str, PgBouncer] = {}

    def postgres(self, name: str) -> PostgresServer:
        """`pg15` or `pg18`, running; one that a test stopped or killed is started again."""
        if name not in self._postgres:
            account = service_account()
            programs = system_programs() if name == "pg15" else wheel_programs(account)
            self._postgres[name] = PostgresServer(programs, _private_folder(self._folder / name, account), account)
        server = self._postgres[name]
        if not server.is_running:
            server.start()
        return server

    def pgbouncer(self, name: str) -> PgBouncer:
        """PgBouncer in front of `pg15` or `pg18`."""
        server = self.postgres(name)
        if name not in self._bouncers:
            program = shutil.which("pgbouncer", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
            if program is None:
                raise ServiceMissing("PgBouncer is not installed: apt-get install pgbouncer")
            account = service_account()
            folder = _private_folder(self._folder / f"{name}-pgbouncer", account)
            self._bouncers[name] = PgBouncer(Path(program), folder, account, server)
        bouncer = self._bouncers[name]
        if not bouncer.is_running:
            bouncer.start()
        return bouncer

    def stop(self) -> None:
        for bouncer in self._bouncers.values():
            bouncer.stop()
        for server in self._postgres.values():
            # Not killed: that would leave its shared memory behind.
            server.stop()


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Servers for as long as the block lasts."""
    # Not pytest's tmp_path: its names are too long for sockets, and other accounts cannot enter it.
    folder = Path(tempfile.mkdtemp(prefix="timeball-tests-", dir=quickest_place()))
    folder.chmod(0o711)
    servers = Servers(folder)
    try:
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)


def service_account() -> Account:
    """Who runs the servers: we ourselves, or, PostgreSQL not running as root, another account."""
    if os.geteuid() != 0:
        return Account.of_uid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return Account.of_uid(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise ServiceMissing("PostgreSQL does not run as root, and there is no account postgres or nobody")


def system_programs() -> Path:
    """The folder with the programs of the system's PostgreSQL: 15 where it is there, else the oldest."""
    found = {int(path.parent.parent.name): path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")}
    supported = [major for major in sorted(found) if major >= 15]
    if not supported:
        raise ServiceMissing("PostgreSQL 15 is not installed: apt-get install postgresql-15")
    return found[supported[0]]


def wheel_programs(account: Account) -> Path:
    """The folder with the programs of the newest PostgreSQL in the wheel."""
    if not installed():
        raise ServiceMissing('the embedded PostgreSQL is not installed: pip install "timeball[local]"')
    return reachable_binaries(find_binaries(Path("/nonexistent")), account, SYSTEM_DIRECTORY).folder / "bin"


def quickest_place() -> Path:
    """Where temporary clusters go: into memory where there is room."""
    # Copying a database is creating three hundred files: 25 ms in memory, 300 ms on an ordinary disk.
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 * 1024**3
    return memory if has_room else Path("/tmp")


def _run(connection: psycopg.Connection[Any], statement: sql.Composed | str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(statement)
    return cursor.fetchall() if cursor.description else []


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server still holds the other end: unasked, it says something only when it goes."""
    if connection.closed:
        return False
    said, _, _ = select.select([connection], [], [], 0)
    return not said


class _Process:
    """A server process that dies with us, and of which we know when its last child has gone."""

    def __init__(self, command: Sequence[Path | str], log: Path, account: Account, *, dies_by: signal.Signals) -> None:
        # All its children inherit the write end: the read end tells when the last one has closed it.
        self._alive, inherited = os.pipe()
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(inherited,),
                start_new_session=True,
                preexec_fn=lambda: _die_with_parent(dies_by),
                **account.identity(),
            )
        os.close(inherited)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def end(self, request: signal.Signals) -> None:
        if self.is_running:
            self._popen.send_signal(request)
        self._popen.wait(30)
        if self._alive >= 0:
            select.select([self._alive], [], [], 30)
            os.close(self._alive)
            self._alive = -1


def _die_with_parent(request: signal.Signals) -> None:
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, int(request))


def _private_folder(path: Path, account: Account) -> Path:
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, account.uid, account.gid)
    return path
