"""Connections outside the pool, for one thread or one event loop that enqueues in a tight loop."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from timeball.errors import SettingsError, StoreError, StoreUnavailable
from timeball.store.db.pool import pgbouncer_problem, tcp_parameters
from timeball.store.db.statements import numbered

if TYPE_CHECKING:
    from timeball.store.db.url import DatabaseUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConnectionOptions:
    """Where the database is, and how it is spoken to: the settings of a session, and how long to wait for a connection and in silence."""

    url: DatabaseUrl
    session: Mapping[str, str]
    patience_seconds: int
    silence_seconds: int
    behind_pgbouncer: bool

    def options(self) -> dict[str, Any]:
        """What the driver is told."""
        options = self.url.for_psycopg()
        options |= {"connect_timeout": self.url.connect_timeout_seconds or self.patience_seconds, "autocommit": True}
        options |= tcp_parameters(self.url.tcp, self.silence_seconds)
        if not self.behind_pgbouncer:
            settings = (f"-c {name}={value}" for name, value in self.session.items())
            options["options"] = " ".join([options.get("options", ""), *settings])
        return options


class _DirectConnection:
    """One connection, for one at a time."""

    def __init__(
        self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], route: DirectConnectionOptions
    ) -> None:
        self._socket = connection.fileno()
        self._server = connection.pgconn
        # In transaction mode the next statement may meet another session, which knows nothing of this one's statements.
        self._prepares = not route.behind_pgbouncer
        self._mutex = threading.Lock()

    def server_process(self) -> int:
        """The id of the server's process at the other end."""
        return self._server.backend_pid

    def is_sound(self) -> bool:
        """Whether nothing has come in since it was used last: that could only be its end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Take leave."""
        with self._mutex:
            self._server.finish()

    def hang_up(self) -> None:
        """Cut off whoever is on the line, from any thread; he hears that the connection broke."""
        # Not while it is being closed: its number might be another file's by then.
        with self._mutex:
            if self._server.status == psycopg.pq.ConnStatus.OK:
                with socket.socket(fileno=os.dup(self._socket)) as same:
                    same.shutdown(socket.SHUT_RDWR)


class ThreadConnection(_DirectConnection):
    """For a thread that blocks."""

    def __init__(self, connection: psycopg.Connection[Any], route: DirectConnectionOptions) -> None:
        super().__init__(connection, route)
        self._cursor = psycopg.RawCursor(connection)

    @classmethod
    def connect(cls, route: DirectConnectionOptions) -> ThreadConnection:
        """Connect; StoreUnavailable says why not."""
        try:
            return cls(psycopg.connect(**route.options()), route)
        except psycopg.Error as error:
            raise _translated_error(error) from error

    def run(self, name: str, given: Mapping[str, Any]) -> None:
        """Run a statement, and wait until it is committed."""
        text, parameters = numbered(name)
        try:
            self._cursor.execute(text, [given[parameter] for parameter in parameters], prepare=self._prepares)
        except psycopg.Error as error:
            raise _translated_error(error) from error


class LoopConnection(_DirectConnection):
    """For coroutines, in whichever event loop."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], route: DirectConnectionOptions) -> None:
        super().__init__(connection, route)
        self._cursor = psycopg.AsyncRawCursor(connection)

    @classmethod
    def connect(cls, route: DirectConnectionOptions) -> LoopConnection:
        """Connect, in a thread that has no loop; StoreUnavailable says why not."""
        try:
            return cls(asyncio.run(psycopg.AsyncConnection.connect(**route.options())), route)
        except psycopg.Error as error:
            raise _translated_error(error) from error

    async def run(self, name: str, given: Mapping[str, Any]) -> None:
        """Run a statement, and wait until it is committed."""
        text, parameters = numbered(name)
        try:
            await self._cursor.execute(text, [given[parameter] for parameter in parameters], prepare=self._prepares)
        except psycopg.Error as error:
            raise _translated_error(error) from error


def _translated_error(error: psycopg.Error) -> StoreError | SettingsError:
    """One of our errors for one of the driver's: unreachable, refused, or a wrong setting."""
    if problem := pgbouncer_problem(str(error)):
        return problem
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(f"PostgreSQL cannot be reached: {error}")
    return StoreError(f"PostgreSQL refused a statement: {error}")
