"""One PostgreSQL and one Redis for everybody, private and thrown away; every stage gets an empty part of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Queue
from urllib.parse import parse_qs, urlsplit, urlunsplit

import psycopg
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.support.broker_servers import running_redis

from bench.lab import clear_shelter
from bench.warm_up import warm_up
from timeball.store.embedded.server import EmbeddedServer

_REDIS_DATABASES = 64
REDIS = ("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
SAYS = {
    "PostgreSQL": (
        "{version}, fsync on, synchronous_commit on, shared_buffers 128 MB, jit off, max_connections 300, min_wal_size 256 MB, "
        "its log files made beforehand, the rest as it comes, Unix socket"
    ),
    "Redis": "{version}, appendonly yes, appendfsync everysec (a crash of the machine may lose a second), noeviction, TCP on loopback",
}


@dataclass
class Servers:
    """The two servers, and which parts of them are free."""

    dsn: str
    redis_port: int
    versions: dict[str, str]
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _redis_databases: Queue[int] = field(default_factory=Queue)

    def __post_init__(self) -> None:
        for number in range(_REDIS_DATABASES):
            self._redis_databases.put(number)

    @contextmanager
    def databases(self) -> Iterator[dict[str, str]]:
        """An empty database and an empty Redis database, as environment variables; both are dropped afterwards."""
        name, number = f"peer_{next(self._numbers)}", self._redis_databases.get()
        self._run(f"CREATE DATABASE {name}")
        try:
            yield {**self._postgres(name), "REDIS_URL": f"redis://127.0.0.1:{self.redis_port}/{number}"}
        finally:
            self._run(f"DROP DATABASE {name} WITH (FORCE)")
            # The end of the run may have ended Redis first: that is not the failure of a peer.
            with Redis(port=self.redis_port, db=number, retry=Retry(NoBackoff(), 0)) as redis, suppress(RedisError):
                redis.flushdb()
            self._redis_databases.put(number)

    def _postgres(self, name: str) -> dict[str, str]:
        parts = urlsplit(self.dsn)
        dsn = urlunsplit(parts._replace(path=f"/{name}"))
        host = parse_qs(parts.query)["host"][0]
        return {
            "DATABASE_URL": dsn,
            "TIMEBALL_DATABASE_URL": dsn,
            "PGHOST": host,
            "PGUSER": parts.username or "",
            "PGDATABASE": name,
        }

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def describe(self) -> dict[str, str]:
        """Both servers and how they are set, in words."""
        return {name: says.format(version=self.versions[name]) for name, says in SAYS.items()}


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Start both; they end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="timeball-peers-") as folder,
        running_redis(*REDIS, "--databases", str(_REDIS_DATABASES)) as port,
    ):
        server = EmbeddedServer(Path(folder) / "data")
        try:
            dsn = _with_more_connections(server)
            warm_up(dsn)
            with Redis(port=port) as redis:
                versions = {"PostgreSQL": server.version, "Redis": str(redis.info("server")["redis_version"])}
            yield Servers(dsn, port, versions)
        finally:
            server.leave()
            clear_shelter(server.data_dir)


def _with_more_connections(server: EmbeddedServer) -> str:
    """Some questions are asked of all peers at the same time."""
    with psycopg.connect(server.start(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET max_connections = 300")
    server.leave()
    return server.start()
