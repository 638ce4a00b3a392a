"""A few connections at hand, on top of the driver's pool.

Giving a connection back to the pool takes a task of its own and a turn of the event loop, which is a third of what a short statement
takes. So those that were used last stay here. The pool gets them back when somebody waits for one, and whenever one may not be sound:
it knows how to wait for a statement that was cut off, and how to replace what is broken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

Connection = Any  # asyncpg ships no types

# A worker claims, records and looks around at the same time.
AT_HAND = 3
_PATIENCE_SECONDS = 5


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
