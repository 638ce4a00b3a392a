"""A few connections at hand, on top of the driver's pool.

Giving a connection back to the pool takes a task of its own and a turn of the event loop, which is a third of what a short statement
takes. So those that were used last stay here. The pool gets them back when somebody waits for one, and whenever one may not be sound:
it knows how to wait for a statement that was cut off, and how to replace what is broken.

A connection that is new to a node may stand in for one that broke, and the node may have been given up meanwhile, or the database be
another one. So a node has its lease confirmed on each new connection before it says anything else there (`Confirmation`).

`connect` makes every connection of asyncpg: it tries the hosts of the URL one after the other, each for as long as the URL allows.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import WeakSet

import asyncpg

from timeball.errors import SettingsError
from timeball.store.database_url import DatabaseUrl, Host

Connection = Any  # asyncpg ships no types

# It writes tracebacks of broken connections to standard error. We tell of them ourselves; who wants to hear it sets up logging.
logging.getLogger("asyncpg").addHandler(logging.NullHandler())

# A worker claims, records and looks around at the same time.
AT_HAND = 3
_PATIENCE_SECONDS = 5
# Seconds that a host may take to answer, unless the URL says another number: a network that swallows packets does not.
CONNECT_SECONDS = 10
# As in libpq: after a refused password no other host is asked.
_TRY_ANOTHER_HOST = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)


async def connect(
    url: DatabaseUrl, hosts: Iterable[Host], *, server_settings: Mapping[str, str], **options: Any
) -> Connection:
    """Connect to the first of the hosts that can be used; what the URL asks of the session goes before *server_settings*."""
    seconds = url.connect_timeout_seconds or CONNECT_SECONDS
    failures: list[tuple[str, BaseException]] = []
    for host in hosts:
        told = url.for_asyncpg(host)
        told["server_settings"] = {**server_settings, **told["server_settings"]}
        try:
            return await asyncpg.connect(**told, **options, timeout=seconds)
        except _TRY_ANOTHER_HOST as error:
            failures.append((f"{host.name}:{host.port}", error))
    raise _failure(url, failures, seconds)


def _failure(url: DatabaseUrl, failures: list[tuple[str, BaseException]], seconds: float) -> BaseException:
    told = [f"{where}: {_reason(url, error, seconds)}" for where, error in failures]
    failure = ConnectionError("; ".join(told))
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
    """What to do when PgBouncer does not pass on what a session of ours begins with; None if it is something else."""
    if "unsupported startup parameter" not in message:
        return None
    problem = (
        f"PgBouncer stands before PostgreSQL and says: {message.strip()}; set TIMEBALL_BEHIND_PGBOUNCER=true, "
        "and take what it names out of the URL of the database, should it stand there"
    )
    return SettingsError([problem])


class Confirmation:
    """What a node asks for on every connection that is new to it, before its first statement there.

    *confirm* raises an error if the node is not to use the connection, nor any other.
    """

    def __init__(self, confirm: Callable[[Connection], Awaitable[None]]) -> None:
        self._confirm = confirm
        self._known: WeakSet[Connection] = WeakSet()

    def context(self) -> Context:
        """A context for the node's own tasks: who has nothing to do with its lease goes on without."""
        context = copy_context()
        context.run(_CONFIRMATION.set, self)
        return context

    async def ask(self, connection: Connection) -> None:
        """Have it confirmed, unless that was done on this connection before."""
        # The pool wraps a connection anew whenever it hands it out.
        itself = getattr(connection, "_con", connection)
        if itself not in self._known:
            await self._confirm(connection)
            self._known.add(itself)


_CONFIRMATION: ContextVar[Confirmation | None] = ContextVar("timeball_confirmation", default=None)


async def confirm_first(connection: Connection) -> None:
    """To be awaited before a connection is used: where a node's lease counts, it is confirmed there first."""
    confirmation = _CONFIRMATION.get()
    if confirmation is not None:
        await confirmation.ask(connection)


class Connections:
    """Connections of one pool: taken, and given back."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._at_hand: list[Connection] = []
        self._waiting = 0

    async def take(self) -> Connection:
        """A connection for one statement or one transaction."""
        while self._at_hand:
            connection = self._at_hand.pop()
            if _is_open(connection):
                return connection
            await self._pool.release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire()
        finally:
            self._waiting -= 1

    async def give_back(self, connection: Connection, *, is_sound: bool) -> None:
        """Give back what was taken; *is_sound* if nothing went wrong with it."""
        if is_sound and not self._waiting and len(self._at_hand) < AT_HAND and _is_open(connection):
            self._at_hand.append(connection)
        else:
            await self._pool.release(connection)

    async def close(self) -> None:
        """Close all of them; TimeoutError or the driver's error if one will not be closed."""
        while self._at_hand:
            await self._pool.release(self._at_hand.pop())
        await asyncio.wait_for(self._pool.close(), timeout=_PATIENCE_SECONDS)

    def terminate(self) -> None:
        """Cut all of them off."""
        self._pool.terminate()


def _is_open(connection: Connection) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the driver noticed that it broke, and took it back by itself
        return False
