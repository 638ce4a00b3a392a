"""Runs named statements and transactions: deadlocks are retried, and a write whose reply was lost is looked up first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
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
from timeball.store.db.statements import fast_statements, numbered
from timeball.store.db.url import DatabaseUrl

if TYPE_CHECKING:
    from timeball.clock import Clock
    from timeball.env import Env
    from timeball.store.db.direct_connection import DirectConnection


# Writes whose reply was lost: they were committed, or they were not.
#
# Each has a key that was chosen before it was sent. So it is looked up, and made again if it is not there; the COMMIT itself is
# never sent again. A server may still be at the commit when it is looked up: then the key refuses the second one, and the next
# look finds the first.

Written = TypeVar("Written")


# For about a second and a half in all.
_LOOKUP_ATTEMPTS = 3


async def retry_write(
    clock: Clock, find: Callable[[], Awaitable[Written | None]], write: Callable[[], Awaitable[Written]]
) -> Written:
    """Write what may have been written: looked up before it is made again, for as long as there is hope."""
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
    found = await find()
    if found is not None:
        return found
    try:
        return await write()
    except StoreUnavailable:
        raise
    except Exception:
        # It may have been refused for what the first one did, which was committed only meanwhile.
        found = await find()
        if found is None:
            raise
        return found


# Connections to PostgreSQL, and the one place where a driver's error becomes one of ours.
#
# Statements are run by name. `:now` is filled in from the clock: None in production, so that the database's own clock
# decides, and a value only when a test moves the time. Statements that met a deadlock are repeated: each is one
# transaction, so nothing of it was done.

Record = Any
Result = TypeVar("Result")

_DEADLOCK_ATTEMPTS = 5
_SAME_OUTAGE_SECONDS = 2.0


# Plans are cached, and the tables are tiny one minute and large the next: a plan that reads a whole table must never be kept.
# The other settings guard the hot path against a server that is tuned for reports.
_SESSION_SETTINGS = {
    "enable_seqscan": "off",
    "jit": "off",
    "application_name": "timeball",
    "timezone": "UTC",
    # Who is frozen or cut off in the middle of a transaction holds its locks; nobody is to wait for them for long.
    "idle_in_transaction_session_timeout": "10s",
    # A session whose node is gone without a word is given up by the server, too.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTimeouts:
    """How long is waited for a database that does not answer."""

    # For a statement that should answer at once; and for any other.
    fast_seconds: float = 10
    statement_seconds: float = 60
    # For a sign of life from the other end of a TCP connection; 0 leaves that to the operating system.
    silence_seconds: int = 8


async def _skip_reset(_connection: Connection) -> None:
    """Nothing to reset: we leave no state in a session, and a reset would cost a round trip for each statement."""


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
        # How often in a row, with new connections each time, swift statements were late; and when they were last.
        self._timeouts_in_a_row = 0
        self._last_timeout_at = float("-inf")
        self._connections: ConnectionPool | None = None

    async def open(self) -> None:
        """Connect; StoreUnavailable says where and why not."""
        with translated_errors(self.dsn):
            # No connections that the pool keeps by itself: it would try to refill them during an outage, and write tracebacks into the log.
            pool = await asyncpg.create_pool(
                min_size=0, max_size=self._pool_size, reset=_skip_reset, connect=self._connect, **self._options()
            )
            connections = ConnectionPool(pool)
            await connections.give_back(await connections.take(), is_sound=True)
        self._connections = connections

    async def close(self) -> None:
        """Give all connections back; what still runs is cut off."""
        connections, self._connections = self._connections, None
        if connections is None:
            return
        try:
            await connections.close()
        except (TimeoutError, *UNREACHABLE):
            connections.terminate()

    def _options(self) -> dict[str, Any]:
        if self.behind_pgbouncer:
            # In transaction mode a session belongs to nobody: no settings, no prepared statements.
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

        A *patient* one waits for its statements however long they take: a migration, a proof over all history.
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
        """A connection for a thread that waits by itself; the caller closes it."""
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
        """A connection of the pool, for a few statements; behind PgBouncer they are one transaction."""
        return self.transaction() if self.behind_pgbouncer else self._acquire()

    def _acquire(self) -> AbstractAsyncContextManager[Connection]:
        if self._connections is None:
            raise StoreUnavailable("the store is not open")
        return PooledConnection(self._connections)

    async def on_each_idle(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Do the same on every connection that is going to stay at hand."""

        async def once() -> None:
            async with self.connection() as connection:
                await work(connection)

        # All at a time, so that nobody is given one that another is done with.
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
                # The connection is thrown away, and the transaction with it: who did not answer would not answer a ROLLBACK.
                raise
            except BaseException:
                await transaction.rollback()
                raise
            async with asyncio.timeout(self._fast_seconds()):
                await transaction.commit()

    async def fetch(self, name: str, connection: Connection | None = None, /, **given: Any) -> list[Record]:
        """Run a statement and return its rows; on *connection*, inside its transaction, if one is given."""
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
            # Parsing and executing must meet the same server connection, which only a transaction holds on to.
            async with connection.transaction():
                return await self._run(connection, name, given)
        return await self._run(connection, name, given)

    async def _run(self, connection: Connection, name: str, given: dict[str, Any]) -> list[Record]:
        text, parameters = numbered(name)
        values = [
            given[parameter] if parameter != "now" or "now" in given else self.env.clock.statement_now()
            for parameter in parameters
        ]
        rows: list[Record]
        if name not in self._fast:
            rows = await connection.fetch(text, *values)
            return rows
        try:
            rows = await connection.fetch(text, *values, timeout=self._fast_seconds())
        except TimeoutError:
            self._note_timeout()
            raise
        self._timeouts_in_a_row = 0
        return rows

    def _fast_seconds(self) -> float:
        """How long a swift statement may take: twice as long after each time in a row, for a database that is slow and not dead."""
        if not self._timeouts_in_a_row:
            return self._timeouts.fast_seconds
        return min(self._timeouts.fast_seconds * float(2**self._timeouts_in_a_row), self._timeouts.statement_seconds)

    def _note_timeout(self) -> None:
        # Those that were under way together are late together: that is once.
        now = self.env.clock.monotonic()
        if now - self._last_timeout_at > _SAME_OUTAGE_SECONDS:
            self._timeouts_in_a_row += 1
        self._last_timeout_at = now

    async def run_pipelined(self, connection: Connection, each: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Run statements one after the other inside *connection*'s transaction; the next is made while the last is at work."""
        running: asyncio.Task[list[Record]] | None = None
        try:
            for name, given in each:
                if running is not None:
                    await running
                running = asyncio.create_task(self._run(connection, name, given))
                # A turn of the loop in which it is encoded, and one in which it goes to the database.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if running is not None:
                await running
        except BaseException:
            # Nothing may be at work on a connection when its transaction is rolled back.
            if running is not None:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            raise

    async def fetch_row(self, name: str, connection: Connection | None = None, /, **given: Any) -> Record | None:
        """The first row of a statement, or None."""
        rows = await self.fetch(name, connection, **given)
        return rows[0] if rows else None

    async def fetch_value(self, name: str, connection: Connection | None = None, /, **given: Any) -> Any:
        """The first value of the first row, or None."""
        row = await self.fetch_row(name, connection, **given)
        return row[0] if row else None

    async def repeat(
        self, work: Callable[[Connection], Awaitable[Result]], *, on: tuple[type[Exception], ...] = ()
    ) -> Result:
        """Run *work* in a transaction, and again from the start when a concurrent one made it impossible.

        Repeated are deadlocks, and the errors in *on*; everything else ends it. *work* must not have effects outside its transaction.
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
        """As `repeat`, and done once though the reply to its commit be lost: it is looked up by its *key*, then repeated.

        *work* writes a row of this id, the one that the statement *found_by* finds: mostly its note in the audit.
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
            if not done:  # it did not come to a commit
                raise
        return (await retry_write(self.env.clock, find, write))[0]

    async def notify(self, payload: str) -> None:
        """Send a hint to every listening node; losing it costs time, never work."""
        async with self.connection() as connection:
            await connection.execute("SELECT pg_notify('timeball', $1)", payload)
