"""A few connections at hand, on top of the driver's pool.

Giving a connection back to the pool takes a task of its own and a turn of the event loop, which is a third of what a short statement
takes. So those that were used last stay here. The pool gets them back when somebody waits for one, and whenever one may not be sound:
it knows how to wait for a statement that was cut off, and how to replace what is broken.

A connection that is new to a node may stand in for one that broke, and the node may have been given up meanwhile, or the database be
another one. So a node has its lease confirmed on each new connection before it says anything else there (`Confirmation`).

`connect` makes every connection of asyncpg: it tries the hosts of the URL one after the other, each for as long as the URL allows.

A connection may die in silence: a firewall forgets it, a cable is pulled, and nothing ever comes any more, not even an end. Three
things bound the wait. The kernel gives a TCP connection up whose other end acknowledges nothing (`tcp_parameters`): a busy server does
acknowledge. A statement that should answer at once has a time of its own (`Database`). And a connection that missed it is thrown away,
with all that lie idle beside it, for their packets go the same way: no reply, no good-bye and no answer to a cancel request is waited
for there (`abandon`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any
from weakref import WeakSet

import asyncpg

from timeball.errors import SettingsError
from timeball.store.database_url import DatabaseUrl, Host, TcpOptions

Connection = Any  # asyncpg ships no types

# It writes tracebacks of broken connections to standard error. We tell of them ourselves; who wants to hear it sets up logging.
logging.getLogger("asyncpg").addHandler(logging.NullHandler())

# A worker claims, records and looks around at the same time.
AT_HAND = 3
_PATIENCE_SECONDS = 5
# How long one may wait for a connection to come free, and for a new one to be made.
_WAIT_SECONDS = 20
_LAST_WORD_SECONDS = 1
# Seconds that a host may take to answer, unless the URL says another number: a network that swallows packets does not.
CONNECT_SECONDS = 10
# As in libpq: after a refused password no other host is asked.
_TRY_ANOTHER_HOST = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)


async def connect(
    url: DatabaseUrl,
    hosts: Iterable[Host],
    *,
    server_settings: Mapping[str, str],
    silence_seconds: int = 0,
    **options: Any,
) -> Connection:
    """Connect to the first of the hosts that can be used; what the URL asks of the session goes before *server_settings*."""
    seconds = url.connect_timeout_seconds or CONNECT_SECONDS
    failures: list[tuple[str, BaseException]] = []
    for host in hosts:
        told = url.for_asyncpg(host)
        told["server_settings"] = {**server_settings, **told["server_settings"]}
        try:
            connection = await asyncpg.connect(**told, **options, timeout=seconds)
            if not host.is_socket:
                _guard(connection, tcp_parameters(url.tcp, silence_seconds))
            return connection
        except _TRY_ANOTHER_HOST as error:
            failures.append((f"{host.name}:{host.port}", error))
    raise _failure(url, failures, seconds)


def tcp_parameters(said: TcpOptions, silence_seconds: int) -> dict[str, int]:
    """How the kernel is to watch a connection, by libpq's names: what the URL says, else what fits the silence that is borne.

    The first probe goes out after half of it, others each quarter; data that stay without acknowledgement for all of it end the connection.
    With 0 seconds the kernel does as it does for all.
    """
    if not said.keepalives:
        return {"keepalives": 0, **_given(tcp_user_timeout=said.user_timeout_ms)}
    ours = {
        "keepalives_idle": max(silence_seconds // 2, 1),
        "keepalives_interval": max(silence_seconds // 4, 1),
        "keepalives_count": 2,
        "tcp_user_timeout": silence_seconds * 1000,
    }
    theirs = _given(
        keepalives_idle=said.keepalives_idle_seconds,
        keepalives_interval=said.keepalives_interval_seconds,
        keepalives_count=said.keepalives_count,
        tcp_user_timeout=said.user_timeout_ms,
    )
    return {"keepalives": 1, **(ours if silence_seconds else {}), **theirs}


def _given(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


# libpq's names, and the kernel's; not every system has all of them.
_SOCKET_OPTIONS = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}


def _guard(connection: Connection, parameters: Mapping[str, int]) -> None:
    """Tell the kernel how to watch a connection of asyncpg."""
    # A duplicate: the socket is the event loop's, and uvloop lends no more than its number.
    number = connection._transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, parameters["keepalives"])
        for name, option in _SOCKET_OPTIONS.items():
            if parameters.get(name) and hasattr(socket, option):
                same.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), parameters[name])


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
        """A connection for one statement or one transaction; TimeoutError if none comes free in time."""
        while self._at_hand:
            connection = self._at_hand.pop()
            if _is_open(connection):
                return connection
            await self._pool.release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=_WAIT_SECONDS)
        finally:
            self._waiting -= 1

    async def give_back(self, connection: Connection, *, is_sound: bool) -> None:
        """Give back what was taken; *is_sound* if nothing went wrong with it."""
        if is_sound and not self._waiting and len(self._at_hand) < AT_HAND and _is_open(connection):
            self._at_hand.append(connection)
        else:
            await self._pool.release(connection, timeout=None if is_sound else _PATIENCE_SECONDS)

    async def abandon(self, connection: Connection) -> None:
        """Throw a connection away that did not answer in time, and all that lie idle: what swallowed its packets may swallow theirs.

        The driver asks the server to cancel the statement, by a connection of its own, which no caller waits for.
        """
        itself: Connection = getattr(connection, "_con", connection)
        asyncio.get_running_loop().call_later(_LAST_WORD_SECONDS, itself.terminate)
        while self._at_hand:
            idle = self._at_hand.pop()
            if _is_open(idle):
                idle.terminate()
        await self._pool.expire_connections()

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
