"""A connection outside the pool that a caller uses by itself, without the event loop that the pool belongs to."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import waiting

from timeball.errors import SettingsError, StoreError, StoreUnavailable
from timeball.store.db.pool import pgbouncer_problem, tcp_parameters
from timeball.store.db.statements import numbered

if TYPE_CHECKING:
    from timeball.store.db.url import DatabaseUrl

# How often a caller that waits looks whether it has waited long enough.
_LOOK_SECONDS = 0.1
_CANCEL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectConnectionOptions:
    """Where the database is, the settings of the session, and how long to wait: to connect, for a statement, for a sign of life."""

    url: DatabaseUrl
    session: Mapping[str, str]
    connect_seconds: int
    statement_seconds: float
    silence_seconds: int
    behind_pgbouncer: bool

    def for_psycopg(self) -> dict[str, Any]:
        """The arguments of the driver's `connect`."""
        options = self.url.for_psycopg()
        options |= {"connect_timeout": self.url.connect_timeout_seconds or self.connect_seconds, "autocommit": True}
        options |= tcp_parameters(self.url.tcp, self.silence_seconds)
        if not self.behind_pgbouncer:
            settings = (f"-c {name}={value}" for name, value in self.session.items())
            options["options"] = " ".join([options.get("options", ""), *settings])
        return options


class DirectConnection:
    """One connection for one thread or coroutine at a time, in whichever event loop; every wait on it is bounded."""

    def __init__(self, options: DirectConnectionOptions) -> None:
        """Connect; StoreUnavailable says why not."""
        try:
            self._connection = psycopg.connect(**options.for_psycopg())
        except psycopg.Error as error:
            raise _translated_error(error) from error
        # The generator that `execute` of the blocking and of the asynchronous cursor both run; not part of the driver's documented
        # interface. A release without it is noticed here, and the caller does without a direct connection.
        self._execute = psycopg.RawCursor(self._connection)._execute_gen
        # In transaction mode the next statement may meet another session, which does not know the statements of this one.
        self._prepares = not options.behind_pgbouncer
        self._statement_seconds = options.statement_seconds
        self._is_interrupted = False

    @property
    def server_pid(self) -> int:
        """The id of the server's process for this connection."""
        return self._connection.info.backend_pid

    def is_usable(self) -> bool:
        """Whether nothing has come in since the last statement: that could only be the end of the connection."""
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        return not poll.poll(0)

    def run(self, name: str, values: Mapping[str, Any]) -> None:
        """Run a statement, and block until it is committed."""
        try:
            waiting.wait(self._steps(name, values), self._connection.fileno(), interval=_LOOK_SECONDS)
        except psycopg.Error as error:
            raise _translated_error(error) from error
        except BaseException:
            self._cancel()
            raise

    async def arun(self, name: str, values: Mapping[str, Any]) -> None:
        """Run a statement, and await its commit."""
        try:
            await waiting.wait_async(self._steps(name, values), self._connection.fileno(), interval=_LOOK_SECONDS)
        except psycopg.Error as error:
            raise _translated_error(error) from error
        except BaseException:
            await asyncio.to_thread(self._cancel)
            raise

    def interrupt(self) -> None:
        """Have the caller that waits for a statement fail at the next look, and any later one; from any thread."""
        self._is_interrupted = True

    def close(self) -> None:
        """Close the connection; not while a statement runs on it."""
        self._connection.close()

    def _steps(self, name: str, values: Mapping[str, Any]) -> Generator[Any, Any, None]:
        """What the driver does for a statement: each step says what it waits for, and is told what is ready."""
        text, parameters = numbered(name)
        statement = self._execute(text, [values[parameter] for parameter in parameters], prepare=self._prepares)
        looks_left = self._statement_seconds / _LOOK_SECONDS
        try:
            step = next(statement)
            while True:
                ready = yield step
                looks_left -= not ready
                if not ready and (self._is_interrupted or looks_left < 0):
                    raise psycopg.OperationalError("no answer in time")
                step = statement.send(ready)
        except StopIteration:
            return

    def _cancel(self) -> None:
        """Ask the server to give the statement up: its caller was struck by a signal, or cancelled."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_SECONDS)


def _translated_error(error: psycopg.Error) -> StoreError | SettingsError:
    """One of our errors for one of the driver's: unreachable, refused, or a wrong setting."""
    if problem := pgbouncer_problem(str(error)):
        return problem
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(f"PostgreSQL cannot be reached: {error}")
    return StoreError(f"PostgreSQL refused a statement: {error}")
