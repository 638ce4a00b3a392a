"""Runs named statements and transactions: deadlocks are retried, and a write whose reply was lost is looked up first."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from timeball.errors import StoreUnavailable
from timeball.store.db.pool import (
    CONNECT_SECONDS,
    IDLE_CONNECTIONS,
    RETRYABLE,
    UNREACHABLE,
    Connection,
    ConnectionPool,
    PooledConnection,
    confirm_lease,
    connect,
    translated_errors,
)
from timeball.store.db.rows import CalendarCache
from timeball.store.db.statements import fast_statements, numbered
from timeball.store.db.url import DatabaseUrl

if TYPE_CHECKING:
    from timeball.env import Clock, Env
    from timeball.store.db.direct_connection import DirectConnection


# A write whose reply was lost was committed, or it was not. Each has a key that was chosen before. So it is looked up, and repeated if it
# is missing; the COMMIT itself is never sent again. The server may still be committing at the look-up: then the key refuses the second
# write, and the next look-up finds the first.

Written = TypeVar("Written")


# About a second and a half in all.
_LOOKUP_ATTEMPTS = 3


async def retry_write(
    clock: Clock, find: Callable[[], Awaitable[Written | None]], write: Callable[[], Awaitable[Written]]
) -> Written:
    """Write, and after a lost reply look the write up before it is repeated, for a limited number of times."""
    for attempt in range(_LOOKUP_ATTEMPTS):
        await clock.sleep(0.2 * 2**attempt)
        try:
            return await _look_up_or_write(find, write)
        except StoreUnavailable:
            if attempt == _LOOKUP_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


async def _look_up_or_write(
    find: Callable[[], Awaitable[Written | None]], write: Callable[[], Awaitable[Written]]
) -> Written:
    result = await find()
    if result is not None:
        return result
    try:
        return await write()
    except StoreUnavailable:
        raise
    except Exception:
        # The first write may have been committed in between, and refused the second.
        result = await find()
        if result is None:
            raise
        return result


# Statements are run by name. `:now` is filled in from the clock: None in production, so that the clock of the database decides, and a value
# only when a test sets the time. A statement that met a deadlock is repeated: it was one transaction, so nothing of it was done.

Record = Any
Result = TypeVar("Result")

_DEADLOCK_ATTEMPTS = 5
_SAME_OUTAGE_SECONDS = 2.0
# Stands for all statements where timeouts are counted.
_ANY = ""


# Plans are cached, and the state tables are tiny one minute and large the next: a plan that reads a whole table must never be kept.
# The other settings protect the hot path from a server that is tuned for reports.
_SESSION_SETTINGS = {
    "enable_seqscan": "off",
    "jit": "off",
    "application_name": "timeball",
    "timezone": "UTC",
    # A process that is frozen or cut off in a transaction holds its locks; others must not wait for them for long.
    "idle_in_transaction_session_timeout": "10s",
    # The server, too, ends a session whose process does not answer any more.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTimeouts:
    """How long to wait for a database that does not answer."""

    # For a fast statement, which should return at once; and for any other.
    fast_seconds: float = 10
    statement_seconds: float = 60
    # For an acknowledgement from the other end of a TCP connection; 0 leaves that to the operating system.
    silence_seconds: int = 8


async def _skip_reset(_connection: Connection) -> None:
    """Reset nothing: statements leave no state in a session, and a reset would cost a round trip for each of them."""


class CallerConnection(ABC):
    """A connection that is not ours: statements run where its owner is, and in the owner's transaction.

    Errors of the owner's driver are not translated, and nothing is repeated: the transaction is the owner's.
    """

    @abstractmethod
    async def run(self, name: str, values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Run a statement by its name, and return its rows."""


# Where a statement runs that is part of a transaction.
WithinConnection: TypeAlias = Connection | CallerConnection


class Database:
    """A pool of connections to one database, and the statements run on them."""

    def __init__(
        self,
        dsn: str,
        env: Env,
        *,
        pool_size: int = 8,
        behind_pgbouncer: bool = False,
        patience: DatabaseTimeouts | None = None,
    ) -> None:
        self.dsn = dsn
        self.url = DatabaseUrl.parse(dsn)
        self.env = env
        self.behind_pgbouncer = behind_pgbouncer
        self._pool_size = pool_size
        self._timeouts = patience or DatabaseTimeouts()
        self._fast = fast_statements()
        # How often in a row fast statements timed out, with new connections each time, and when they did last: of all, and of each alone.
        self._timeouts_in_a_row: dict[str, tuple[int, float]] = {}
        self._connections: ConnectionPool | None = None
        self.calendars = CalendarCache(self)

    async def open(self) -> None:
        """Connect; StoreUnavailable says where and why not."""
        with translated_errors(self.dsn):
            # The pool keeps no minimum of connections: it would try to refill them during an outage, and log tracebacks.
            pool = await asyncpg.create_pool(
                min_size=0, max_size=self._pool_size, reset=_skip_reset, connect=self._connect, **self._options()
            )
            connections = ConnectionPool(pool)
            await connections.give_back(await connections.take(), is_sound=True)
        self._connections = connections

    async def close(self) -> None:
        """Close all connections; running statements are terminated."""
        connections, self._connections = self._connections, None
        if connections is None:
            return
        try:
            await connections.close()
        except (TimeoutError, *UNREACHABLE):
            connections.terminate()

    def _options(self) -> dict[str, Any]:
        if self.behind_pgbouncer:
            # In transaction mode sessions are shared: no settings, no prepared statements.
            return {
                "server_settings": {},
                "statement_cache_size": 0,
                "command_timeout": self._timeouts.statement_seconds,
            }
        return {
            "server_settings": _SESSION_SETTINGS,
            "max_cached_statement_lifetime": 0,
            "command_timeout": self._timeouts.statement_seconds,
        }

    async def _connect(self, _dsn: str | None = None, /, **options: Any) -> Connection:
        hosts = self.url.hosts()
        if self.url.balances_load:
            self.env.random.shuffle(hosts)
        return await connect(self.url, hosts, silence_seconds=self._timeouts.silence_seconds, **options)

    async def connect(self, *, without_timeout: bool = False) -> Connection:
        """A connection outside the pool, for a listener or a heartbeat; the caller closes it.

        With *without_timeout* statements may take any time: a migration, a verification.
        """
        options = self._options()
        if without_timeout:
            options["command_timeout"] = None
        with translated_errors(self.dsn):
            connection = await self._connect(**options)
            try:
                await confirm_lease(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    def direct_connection(self) -> DirectConnection:
        """A connection outside the pool and its event loop; the caller closes it."""
        # Here and not above: only programs that enqueue in a tight loop need this driver.
        from timeball.store.db.direct_connection import DirectConnection, DirectConnectionOptions

        return DirectConnection(
            DirectConnectionOptions(
                url=self.url,
                session=_SESSION_SETTINGS,
                connect_seconds=CONNECT_SECONDS,
                statement_seconds=self._timeouts.fast_seconds,
                silence_seconds=self._timeouts.silence_seconds,
                behind_pgbouncer=self.behind_pgbouncer,
            )
        )

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the pool for a few statements; behind PgBouncer they are one transaction."""
        return self.transaction() if self.behind_pgbouncer else self._acquire()

    def _acquire(self) -> AbstractAsyncContextManager[Connection]:
        if self._connections is None:
            raise StoreUnavailable("the store is not open")
        return PooledConnection(self._connections)

    async def on_each_idle(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Run *work* on every connection that the pool keeps idle."""

        async def once() -> None:
            async with self.connection() as connection:
                await work(connection)

        # All at once, so that each gets a connection of its own.
        await asyncio.gather(*(once() for _ in range(IDLE_CONNECTIONS)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction: committed at the end, rolled back on an error."""
        async with self._acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
            except (TimeoutError, GeneratorExit):
                # The connection is discarded, and the transaction with it: a server that did not answer would not answer a ROLLBACK.
                raise
            except BaseException:
                await transaction.rollback()
                raise
            async with asyncio.timeout(self._fast_seconds()):
                await transaction.commit()

    async def fetch(self, name: str, connection: WithinConnection | None = None, /, **given: Any) -> list[Record]:
        """Run a statement and return its rows; on *connection*, inside its transaction, if one is given."""
        if isinstance(connection, CallerConnection):
            parameters = numbered(name)[1]
            return [*await connection.run(name, dict(zip(parameters, self._values(parameters, given), strict=True)))]
        if connection is not None:
            return await self._run_whole(connection, name, given)
        for attempt in range(_DEADLOCK_ATTEMPTS):
            try:
                return await self._fetch_alone(name, given)
            except RETRYABLE:
                if attempt == _DEADLOCK_ATTEMPTS - 1:
                    raise
                await self.env.clock.sleep(self.env.random.uniform(0, 0.01 * 2**attempt))
        raise AssertionError("unreachable")

    async def _fetch_alone(self, name: str, given: dict[str, Any]) -> list[Record]:
        async with self._acquire() as connection:
            self.env.fault(f"{name}.before")
            rows = await self._run_whole(connection, name, given)
            self.env.fault(f"{name}.after_commit")
            return rows

    async def _run_whole(self, connection: Connection, name: str, given: dict[str, Any]) -> list[Record]:
        if self.behind_pgbouncer and not connection.is_in_transaction():
            # Parsing and executing need the same server connection, which only a transaction keeps.
            async with connection.transaction():
                return await self._run(connection, name, given)
        return await self._run(connection, name, given)

    async def _run(self, connection: Connection, name: str, given: dict[str, Any]) -> list[Record]:
        text, parameters = numbered(name)
        values = self._values(parameters, given)
        rows: list[Record]
        if name not in self._fast:
            rows = await connection.fetch(text, *values)
            return rows
        try:
            rows = await connection.fetch(text, *values, timeout=self._fast_seconds(name))
        except TimeoutError:
            self._note_timeout(_ANY)
            self._note_timeout(name)
            raise
        if self._timeouts_in_a_row:
            self._timeouts_in_a_row.pop(_ANY, None)
            self._timeouts_in_a_row.pop(name, None)
        return rows

    def _values(self, parameters: Iterable[str], given: Mapping[str, Any]) -> list[Any]:
        return [
            given[parameter] if parameter != "now" or "now" in given else self.env.clock.statement_now()
            for parameter in parameters
        ]

    def _fast_seconds(self, name: str = _ANY) -> float:
        """The timeout of a fast statement: it doubles with each timeout in a row, for a database that is slow and not dead.

        It doubles also if that statement alone is slow: one that has much to write would otherwise be repeated for ever.
        """
        if not self._timeouts_in_a_row:
            return self._timeouts.fast_seconds
        timeouts = max(self._timeouts_in_a_row.get(each, (0, 0.0))[0] for each in (_ANY, name))
        return min(self._timeouts.fast_seconds * float(2**timeouts), self._timeouts.statement_seconds)

    def _note_timeout(self, name: str) -> None:
        # Concurrent statements time out together, which counts once.
        now = self.env.clock.monotonic()
        timeouts, last_at = self._timeouts_in_a_row.get(name, (0, float("-inf")))
        if now - last_at > _SAME_OUTAGE_SECONDS:
            timeouts += 1
        self._timeouts_in_a_row[name] = timeouts, now

    async def run_pipelined(self, connection: Connection, each: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Run statements one after the other in the transaction of *connection*; the next is encoded while the server runs the last."""
        running: asyncio.Task[list[Record]] | None = None
        try:
            for name, given in each:
                if running is not None:
                    await running
                running = asyncio.create_task(self._run(connection, name, given))
                # One turn of the loop encodes it, and one sends it.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if running is not None:
                await running
        except BaseException:
            # No statement may run on a connection when its transaction is rolled back.
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            raise

    async def fetch_row(self, name: str, connection: WithinConnection | None = None, /, **given: Any) -> Record | None:
        """The first row of a statement, or None."""
        rows = await self.fetch(name, connection, **given)
        return rows[0] if rows else None

    async def fetch_value(self, name: str, connection: WithinConnection | None = None, /, **given: Any) -> Any:
        """The first value of the first row, or None."""
        row = await self.fetch_row(name, connection, **given)
        return next(iter(row.values())) if row else None

    async def repeat(
        self, work: Callable[[Connection], Awaitable[Result]], *, on: tuple[type[Exception], ...] = ()
    ) -> Result:
        """Run *work* in a transaction, and repeat it after a deadlock or one of the errors in *on*.

        *work* must not have effects outside its transaction.
        """
        tries = 20
        for attempt in range(tries):
            try:
                async with self.transaction() as connection:
                    return await work(connection)
            except (*RETRYABLE, *on):
                if attempt == tries - 1:
                    raise
                await self.env.clock.sleep(self.env.random.uniform(0, 0.005 * (attempt + 1)))
        raise AssertionError("unreachable")

    async def once(
        self,
        work: Callable[[Connection], Awaitable[Result]],
        key: UUID,
        *,
        found_by: str = "find_note",
        on: tuple[type[Exception], ...] = (),
    ) -> Result:
        """As `repeat`, and done once even if the reply to its commit is lost: it is looked up by its *key* before it is repeated.

        *work* inserts a row with this id that the statement *found_by* finds: mostly its audit row.
        """
        done: list[Result] = []

        async def kept(connection: Connection) -> Result:
            result = await work(connection)
            done[:] = [result]
            return result

        async def find() -> list[Result] | None:
            return None if await self.fetch_row(found_by, id=key) is None else done

        async def write() -> list[Result]:
            return [await self.repeat(kept, on=on)]

        try:
            return (await write())[0]
        except StoreUnavailable:
            if not done:  # there was no commit
                raise
        return (await retry_write(self.env.clock, find, write))[0]

    async def notify(self, payload: str) -> None:
        """Send a wake-up to every listening node; losing it costs time, never work."""
        async with self.connection() as connection:
            await connection.execute("SELECT pg_notify('timeball', $1)", payload)
