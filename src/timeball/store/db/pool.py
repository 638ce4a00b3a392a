"""Connections to PostgreSQL: opening, pooling, confirming and discarding them; and translating the errors of the driver."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import asyncpg

from timeball.errors import SettingsError, StoreError, StoreUnavailable, UnstorableValue

if TYPE_CHECKING:
    from timeball.store.db.url import DatabaseUrl, Host, TcpOptions

Connection = Any  # asyncpg ships no types


# asyncpg logs tracebacks of broken connections, by default to standard error. Timeball reports them itself.
logging.getLogger("asyncpg").addHandler(logging.NullHandler())


# A worker claims, records and reads at the same time.
IDLE_CONNECTIONS = 3
_CLOSE_SECONDS = 5


# Seconds to wait for a free connection, and for a new one.
_WAIT_SECONDS = 20
_CANCEL_SECONDS = 1


# Seconds that a host may take to answer, unless the URL has another number. A network that drops packets never answers.
CONNECT_SECONDS = 10


# As in libpq: after a refused password no other host is tried.
_TRY_ANOTHER_HOST = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)


async def connect(
    url: DatabaseUrl,
    hosts: Iterable[Host],
    *,
    server_settings: Mapping[str, str],
    silence_seconds: int = 0,
    **options: Any,
) -> Connection:
    """Connect to the first usable host; session settings of the URL take precedence over *server_settings*."""
    seconds = url.connect_timeout_seconds or CONNECT_SECONDS
    failures: list[tuple[str, BaseException]] = []
    for host in hosts:
        arguments = url.for_asyncpg(host)
        arguments["server_settings"] = {**server_settings, **arguments["server_settings"]}
        try:
            connection = await asyncpg.connect(**arguments, **options, timeout=seconds)
            if not host.is_socket:
                _set_keepalives(connection, tcp_parameters(url.tcp, silence_seconds))
            return connection
        except _TRY_ANOTHER_HOST as error:
            failures.append((f"{host.name}:{host.port}", error))
    raise _connect_error(url, failures, seconds)


def tcp_parameters(options: TcpOptions, silence_seconds: int) -> dict[str, int]:
    """The TCP settings of a connection by libpq's names: those of the URL, else values that fit the tolerated silence.

    The first keepalive is sent after half of it, others each quarter. Data without acknowledgement for all of it end the connection.
    With 0 seconds the defaults of the kernel apply.
    """
    if not options.keepalives:
        return {"keepalives": 0, **_without_none(tcp_user_timeout=options.user_timeout_ms)}
    ours = {
        "keepalives_idle": max(silence_seconds // 2, 1),
        "keepalives_interval": max(silence_seconds // 4, 1),
        "keepalives_count": 2,
        "tcp_user_timeout": silence_seconds * 1000,
    }
    theirs = _without_none(
        keepalives_idle=options.keepalives_idle_seconds,
        keepalives_interval=options.keepalives_interval_seconds,
        keepalives_count=options.keepalives_count,
        tcp_user_timeout=options.user_timeout_ms,
    )
    return {"keepalives": 1, **(ours if silence_seconds else {}), **theirs}


def _without_none(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


# The names of libpq and of the kernel; not every system has all of them.
_SOCKET_OPTIONS = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}


def _set_keepalives(connection: Connection, parameters: Mapping[str, int]) -> None:
    """Apply TCP settings to a connection of asyncpg."""
    # A duplicate: the socket belongs to the event loop, and uvloop gives access to its number only.
    number = connection._transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, parameters["keepalives"])
        for name, option in _SOCKET_OPTIONS.items():
            if parameters.get(name) and hasattr(socket, option):
                same.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), parameters[name])


def _connect_error(url: DatabaseUrl, failures: list[tuple[str, BaseException]], seconds: float) -> BaseException:
    reasons = [f"{where}: {_reason(url, error, seconds)}" for where, error in failures]
    failure = ConnectionError("; ".join(reasons))
    failure.__cause__ = failures[-1][1]
    return failure


def _reason(url: DatabaseUrl, error: BaseException, seconds: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {seconds} s"
    if isinstance(error, ssl.SSLCertVerificationError) and url.binds_channel:
        return (
            f"{error.verify_message}; channel_binding=require has the server's certificate checked: name its authority in sslrootcert, "
            "or write channel_binding=prefer"
        )
    return str(error) or type(error).__name__


def pgbouncer_problem(message: str) -> SettingsError | None:
    """The error for a PgBouncer that refuses the startup parameters of our sessions; None for other messages."""
    if "unsupported startup parameter" not in message:
        return None
    problem = (
        f"PgBouncer stands before PostgreSQL and says: {message.strip()}; set TIMEBALL_BEHIND_PGBOUNCER=true, "
        "and take what it names out of the URL of the database, should it stand there"
    )
    return SettingsError([problem])


class LeaseConfirmation:
    """The check of a node on every new connection, before its first statement there.

    *confirm* raises an error if the node must not use this connection, nor any other.
    """

    def __init__(self, confirm: Callable[[Connection], Awaitable[None]]) -> None:
        self._confirm = confirm
        self._known: WeakSet[Connection] = WeakSet()

    def context(self) -> Context:
        """A context for the tasks of the node; other tasks run without the check."""
        context = copy_context()
        context.run(_CONFIRMATION.set, self)
        return context

    async def ask(self, connection: Connection) -> None:
        """Confirm the lease, unless that was done on this connection before."""
        # The pool wraps a connection in a new object whenever it is acquired.
        itself = getattr(connection, "_con", connection)
        if itself not in self._known:
            await self._confirm(connection)
            self._known.add(itself)


_CONFIRMATION: ContextVar[LeaseConfirmation | None] = ContextVar("timeball_confirmation", default=None)


async def confirm_lease(connection: Connection) -> None:
    """Await this before using a connection: in the tasks of a node, it confirms the lease first."""
    confirmation = _CONFIRMATION.get()
    if confirmation is not None:
        await confirmation.ask(connection)


class ConnectionPool:
    """The connections of one pool, taken and given back."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: list[Connection] = []
        self._waiting = 0

    async def take(self) -> Connection:
        """A connection for one statement or one transaction; TimeoutError if none becomes free in time."""
        while self._idle:
            connection = self._idle.pop()
            if _is_open(connection):
                return connection
            await self._pool.release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=_WAIT_SECONDS)
        finally:
            self._waiting -= 1

    async def give_back(self, connection: Connection, *, is_sound: bool) -> None:
        """Give a connection back; *is_sound* if there was no error on it."""
        if is_sound and not self._waiting and len(self._idle) < IDLE_CONNECTIONS and _is_open(connection):
            self._idle.append(connection)
        else:
            await self._pool.release(connection, timeout=None if is_sound else _CLOSE_SECONDS)

    async def abandon(self, connection: Connection) -> None:
        """Discard a connection that did not answer in time, and all idle ones: the network may drop their packets, too.

        The driver asks the server to cancel the statement, on a connection of its own that no caller waits for.
        """
        itself: Connection = getattr(connection, "_con", connection)
        asyncio.get_running_loop().call_later(_CANCEL_SECONDS, itself.terminate)
        while self._idle:
            idle = self._idle.pop()
            if _is_open(idle):
                idle.terminate()
        await self._pool.expire_connections()

    async def close(self) -> None:
        """Close all connections; TimeoutError or the error of the driver if one cannot be closed."""
        while self._idle:
            await self._pool.release(self._idle.pop())
        await asyncio.wait_for(self._pool.close(), timeout=_CLOSE_SECONDS)

    def terminate(self) -> None:
        """Terminate all connections."""
        self._pool.terminate()


def _is_open(connection: Connection) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the driver noticed that it broke, and has released it itself
        return False


UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    # The messages of the driver for a connection that broke between two steps of a statement.
    asyncpg.InternalClientError,
    asyncpg.QueryCanceledError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


# The values are wrong: invalid text, a number out of range, more than an index or a document can have.
_UNWRITABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
RETRYABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# Whatever a statement may raise that did not do its work.
REFUSED = (StoreError, *RETRYABLE, asyncpg.IntegrityConstraintViolationError)


class PooledConnection(AbstractAsyncContextManager[Connection, None]):
    """A connection while it is taken. Not a generator: every statement makes one, and a generator would take twice as long."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections

    async def __aenter__(self) -> Connection:
        try:
            self._connection = await self._connections.take()
        except BaseException as error:
            raise_translated(error)
            raise
        try:
            await confirm_lease(self._connection)
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
            raise_translated(another)
            raise
        if error is not None:
            raise_translated(error)


class translated_errors:  # noqa: N801  (a context manager that reads as a word)
    """Translate errors of the driver: unreachable, or refused."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            raise_translated(error)


@contextmanager
def unwritable_content() -> Iterator[None]:
    """Raise Unwritable for values that cannot be encoded, or that break a rule of the schema."""
    try:
        yield
    except (TypeError, ValueError, ArithmeticError, RecursionError, asyncpg.IntegrityConstraintViolationError) as error:
        raise UnstorableValue(f"PostgreSQL cannot hold what it was given: {error}") from error


def raise_translated(error: BaseException) -> None:
    """Raise the translated error; return if the error stays as it is."""
    if isinstance(error, REFUSED):
        return  # callers that handle these catch them by their own types
    if isinstance(error, asyncpg.ClientConfigurationError):
        raise SettingsError([f"the URL of the database cannot be used: {error}"]) from error
    if isinstance(error, asyncpg.ProtocolViolationError) and (problem := pgbouncer_problem(str(error))):
        raise problem from error
    # The driver raises `InterfaceError` for a value that it cannot encode, as for a broken connection.
    if isinstance(error, _UNWRITABLE) or (isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)):
        raise UnstorableValue(f"PostgreSQL cannot hold what it was given: {error}") from error
    if isinstance(error, UNREACHABLE):
        reason = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {reason}") from error
    if isinstance(error, asyncpg.PostgresError):
        raise StoreError(f"PostgreSQL refused a statement: {error}") from error
