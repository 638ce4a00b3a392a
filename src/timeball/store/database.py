"""Connections to PostgreSQL, and the one place where a driver's error becomes one of ours.

Statements are run by name. `:now` is filled in from the clock: None in production, so that the database's own clock
decides, and a value only when a test moves the time. Statements that met a deadlock are repeated: each is one
transaction, so nothing of it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import asyncpg

from timeball.env import Env
from timeball.errors import SettingsError, StoreError, StoreUnavailable, Unwritable
from timeball.store.connections import (
    AT_HAND,
    CONNECT_SECONDS,
    Connection,
    Connections,
    confirm_first,
    connect,
    pgbouncer_problem,
)
from timeball.store.database_url import DatabaseUrl
from timeball.store.lost_replies import write_again
from timeball.store.statements import numbered, swift_statements

if TYPE_CHECKING:
    from timeball.store.lines import LoopLine, Route, ThreadLine

Record = Any
Result = TypeVar("Result")

_DEADLOCK_TRIES = 5
_TOGETHER_SECONDS = 2.0
# Plans are cached, and the rooms are tiny one minute and large the next: a plan that reads a whole room must never be kept.
# The other settings guard the hot path against a server that is tuned for reports.
_SESSION = {
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
class Patience:
    """How long is waited for a database that does not answer."""

    # For a statement that should answer at once; and for any other.
    swift_seconds: float = 10
    statement_seconds: float = 60
    # For a sign of life from the other end of a TCP connection; 0 leaves that to the operating system.
    silence_seconds: int = 8


_UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    # What the driver says of a connection that broke between two steps of a statement.
    asyncpg.InternalClientError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# The fault is in what was given: text that is none, a number out of range, more than an index or a document may hold.
_UNWRITABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
_REPEATABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


async def _keep_session(_connection: Connection) -> None:
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
        patience: Patience | None = None,
    ) -> None:
        self.dsn = dsn
        self.url = DatabaseUrl.parse(dsn)
        self.env = env
        self.behind_pgbouncer = behind_pgbouncer
        self._pool_size = pool_size
        self._patience = patience or Patience()
        self._swift = swift_statements()
        # How often in a row, with new connections each time, swift statements were late; and when they were last.
        self._late = 0
        self._late_at = float("-inf")
        self._connections: Connections | None = None

    async def open(self) -> None:
        """Connect; StoreUnavailable says where and why not."""
        with translated(self.dsn):
            # No connections that the pool keeps by itself: it would try to refill them during an outage, and write tracebacks into the log.
            pool = await asyncpg.create_pool(
                min_size=0, max_size=self._pool_size, reset=_keep_session, connect=self._connect, **self._options()
            )
            connections = Connections(pool)
            await connections.give_back(await connections.take(), is_sound=True)
        self._connections = connections

    async def close(self) -> None:
        """Give all connections back; what still runs is cut off."""
        connections, self._connections = self._connections, None
        if connections is None:
            return
        try:
            await connections.close()
        except (TimeoutError, *_UNREACHABLE):
            connections.terminate()

    def _options(self) -> dict[str, Any]:
        if self.behind_pgbouncer:
            # In transaction mode a session belongs to nobody: no settings, no prepared statements.
            return {
                "server_settings": {},
                "statement_cache_size": 0,
                "command_timeout": self._patience.statement_seconds,
            }
        return {
            "server_settings": _SESSION,
            "max_cached_statement_lifetime": 0,
            "command_timeout": self._patience.statement_seconds,
        }

    async def _connect(self, _dsn: str | None = None, /, **options: Any) -> Connection:
        hosts = self.url.hosts()
        if self.url.balances_load:
            self.env.random.shuffle(hosts)
        return await connect(self.url, hosts, silence_seconds=self._patience.silence_seconds, **options)

    async def connect(self, *, is_patient: bool = False) -> Connection:
        """A connection outside the pool, for a listener or a heartbeat; the caller closes it.

        A *patient* one waits for its statements however long they take: a migration, a proof over all history.
        """
        options = self._options()
        if is_patient:
            options["command_timeout"] = None
        with translated(self.dsn):
            connection = await self._connect(**options)
            try:
                await confirm_first(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    def thread_line(self) -> ThreadLine:
        """A connection for a thread that waits by itself; the caller closes it."""
        # Here and not above: only programs that enqueue in a row need this driver.
        from timeball.store.lines import ThreadLine

        return ThreadLine.connect(self._route())

    def loop_line(self) -> LoopLine:
        """A connection for coroutines of any event loop, made in a thread that has none; the caller closes it."""
        from timeball.store.lines import LoopLine

        return LoopLine.connect(self._route())

    def _route(self) -> Route:
        from timeball.store.lines import Route

        return Route(
            url=self.url,
            session=_SESSION,
            patience_seconds=CONNECT_SECONDS,
            silence_seconds=self._patience.silence_seconds,
            behind_pgbouncer=self.behind_pgbouncer,
        )

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the pool, for a few statements; behind PgBouncer they are one transaction."""
        return self.transaction() if self.behind_pgbouncer else self._lent()

    def _lent(self) -> AbstractAsyncContextManager[Connection]:
        if self._connections is None:
            raise StoreUnavailable("the store is not open")
        return _Taken(self._connections)

    async def on_each_at_hand(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Do the same on every connection that is going to stay at hand."""

        async def once() -> None:
            async with self.connection() as connection:
                await work(connection)

        # All at a time, so that nobody is given one that another is done with.
        await asyncio.gather(*(once() for _ in range(AT_HAND)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction: committed at the end, rolled back on an error."""
        async with self._lent() as connection:
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
            async with asyncio.timeout(self._swift_seconds()):
                await transaction.commit()

    async def fetch(self, name: str, connection: Connection | None = None, /, **given: Any) -> list[Record]:
        """Run a statement and return its rows; on *connection*, inside its transaction, if one is given."""
        if connection is not None:
            return await self._run_whole(connection, name, given)
        for attempt in range(_DEADLOCK_TRIES):
            try:
                return await self._fetch_alone(name, given)
            except _REPEATABLE:
                if attempt == _DEADLOCK_TRIES - 1:
                    raise
                await self.env.clock.sleep(self.env.random.uniform(0, 0.01 * 2**attempt))
        raise AssertionError("unreachable")

    async def _fetch_alone(self, name: str, given: dict[str, Any]) -> list[Record]:
        async with self._lent() as connection:
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
        if name not in self._swift:
            rows = await connection.fetch(text, *values)
            return rows
        try:
            rows = await connection.fetch(text, *values, timeout=self._swift_seconds())
        except TimeoutError:
            self._note_late()
            raise
        self._late = 0
        return rows

    def _swift_seconds(self) -> float:
        """How long a swift statement may take: twice as long after each time in a row, for a database that is slow and not dead."""
        if not self._late:
            return self._patience.swift_seconds
        return min(self._patience.swift_seconds * float(2**self._late), self._patience.statement_seconds)

    def _note_late(self) -> None:
        # Those that were under way together are late together: that is once.
        now = self.env.clock.monotonic()
        if now - self._late_at > _TOGETHER_SECONDS:
            self._late += 1
        self._late_at = now

    async def run_in_turn(self, connection: Connection, each: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Run statements one after the other inside *connection*'s transaction; the next is made while the last is at work."""
        at_work: asyncio.Task[list[Record]] | None = None
        try:
            for name, given in each:
                if at_work is not None:
                    await at_work
                at_work = asyncio.create_task(self._run(connection, name, given))
                # A turn of the loop in which it is encoded, and one in which it goes to the database.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if at_work is not None:
                await at_work
        except BaseException:
            # Nothing may be at work on a connection when its transaction is rolled back.
            if at_work is not None:
                at_work.cancel()
                await asyncio.gather(at_work, return_exceptions=True)
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
            except (*_REPEATABLE, *on):
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
        return (await write_again(self.env.clock, find, write))[0]

    async def notify(self, payload: str) -> None:
        """Send a hint to every listening node; losing it costs time, never work."""
        async with self.connection() as connection:
            await connection.execute("SELECT pg_notify('timeball', $1)", payload)


class _Taken(AbstractAsyncContextManager[Connection, None]):
    """A connection while it is taken. Not made of a generator: there is one for every statement, and it would take twice as long."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __aenter__(self) -> Connection:
        try:
            self._connection = await self._connections.take()
        except BaseException as error:
            _translate(error)
            raise
        try:
            await confirm_first(self._connection)
        except BaseException as error:
            await self.__aexit__(None, error, None)
            raise
        return self._connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, TimeoutError):
                await self._connections.abandon(self._connection)
            else:
                await self._connections.give_back(self._connection, is_sound=error is None)
        except BaseException as another:
            _translate(another)
            raise
        if error is not None:
            _translate(error)


class translated:  # noqa: N801  (a context manager that reads as a word)
    """Turn what the driver raises into our errors: unreachable, or refused."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            _translate(error)


@contextmanager
def refusing_content() -> Iterator[None]:
    """Around a write that has nothing to learn from what refuses it: values that cannot be encoded, or break a rule of the schema."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, RecursionError, asyncpg.IntegrityConstraintViolationError) as error:
        raise Unwritable(f"PostgreSQL cannot hold what it was given: {error}") from error


def _translate(error: BaseException) -> None:
    """Raise what is to be raised in its place; nothing, if it is to stay as it is."""
    if isinstance(error, (StoreError, *_REPEATABLE, asyncpg.IntegrityConstraintViolationError)):
        return  # those who can handle them know them by their own names
    if isinstance(error, asyncpg.ClientConfigurationError):
        raise SettingsError([f"the URL of the database cannot be used: {error}"]) from error
    if isinstance(error, asyncpg.ProtocolViolationError) and (problem := pgbouncer_problem(str(error))):
        raise problem from error
    # The driver's own refusal to encode a value is an `InterfaceError`, too, as a broken connection is.
    if isinstance(error, _UNWRITABLE) or (isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)):
        raise Unwritable(f"PostgreSQL cannot hold what it was given: {error}") from error
    if isinstance(error, _UNREACHABLE):
        said = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {said}") from error
    if isinstance(error, asyncpg.PostgresError):
        raise StoreError(f"PostgreSQL refused a statement: {error}") from error
