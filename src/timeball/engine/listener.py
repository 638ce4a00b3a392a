"""Hears hints. A deaf node is only slower: every service polls as well.

The listener subscribes first and then says "look everywhere", so nothing falls between; it probes its connection, because one that was
cut in silence looks like a quiet one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from timeball.domain.events import Emit, ListenerChanged
from timeball.domain.hints import Hints
from timeball.engine.service import Service
from timeball.env import Env
from timeball.errors import StoreUnavailable
from timeball.store.interface import Store

_CHANNEL = "timeball"
_PROBE_SECONDS = 5.0
_PROBE_TIMEOUT = 3.0
_INTERVAL = timedelta(seconds=1)


class Listener(Service):
    """Hands every hint of the channel to `heed`."""

    def __init__(self, env: Env, emit: Emit, store: Store, heed: Callable[[Hints], None]) -> None:
        super().__init__(env, emit)
        self._store = store
        self._heed = heed
        self._connection: Any = None
        self._next_probe = 0.0

    @property
    def is_listening(self) -> bool:
        """Whether hints are heard, as far as is known; never behind PgBouncer, where nobody listens."""
        return self._connection is not None

    async def tick(self) -> timedelta:
        try:
            if self._connection is None:
                await self._subscribe()
            elif self.is_time(self._next_probe):
                await self._probe()
        except Exception as error:
            await self.hang_up()
            self.emit(ListenerChanged(False, f"{type(error).__name__}: {error}"))
            raise StoreUnavailable(f"the listener's connection failed: {str(error) or type(error).__name__}") from error
        return _INTERVAL

    async def _subscribe(self) -> None:
        self._connection = await self._store.database.connect()
        await self._connection.add_listener(_CHANNEL, self._on_notification)
        self._plan_probe()
        self.emit(ListenerChanged(True))
        self._heed(Hints(nodes_changed=True, look_everywhere=True))

    async def _probe(self) -> None:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            await self._connection.execute("SELECT 1")
        self._plan_probe()

    def _plan_probe(self) -> None:
        self._next_probe = self.env.clock.monotonic() + _PROBE_SECONDS

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._heed(Hints.decode(payload))

    async def hang_up(self) -> None:
        """Give the connection up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
