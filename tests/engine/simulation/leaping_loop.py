"""A loop whose time leaps: while nothing is under way, the next timer fires at once.

So an idle minute passes in a moment, with every timer in its order and the clock of the test beside it; each time that the loop has slept
and was woken is counted, and each statement. For a connection that is taken, and for what is asked of it, the loop waits in real time, and
its own time stands still: a busy machine, on which all that takes longer, must not make the minute shorter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from timeball.engine.node import BaseNode
from timeball.testing import VirtualClock

# For whatever else may come from outside.
_REAL_SECONDS = 0.005


class Leaper:
    """Counts how often the loop was woken, and by which names something was asked."""

    def __init__(self, loop: Any, clock: VirtualClock) -> None:
        self._loop = loop
        self._clock = clock
        self._select, self._time = loop._selector.select, loop.time
        self._is_leaping = True
        self._now = self._began_at = float(loop.time())
        self._ahead = 0.0
        self._under_way = 0
        self._clock_began_at = clock.now()
        self.wakes = 0
        self.asked: Counter[str] = Counter()

    def time(self) -> float:
        """What the loop takes for the time."""
        return self._now if self._is_leaping else float(self._time()) + self._ahead

    def select(self, timeout: float | None = None) -> Any:
        """Sleep as the loop means to, or leap."""
        if timeout is None or timeout > 0:
            self.wakes += 1
        is_leap = timeout is not None and not self._under_way
        events = self._select(min(timeout, _REAL_SECONDS) if timeout is not None and is_leap else timeout)
        if not events:
            self._now += timeout or 0
        self._clock.advance_to(self._clock_began_at + timedelta(seconds=self._now - self._began_at))
        return events

    def land(self) -> None:
        """Go on in real time. That of a loop never goes back, or whatever waits would wait as long again: so what was leapt stays."""
        self._ahead = self._now - float(self._time())
        self._is_leaping = False
        self._loop._selector.select = self._select

    def counted(self, name: str, asks: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same, counted by its name and waited for."""

        async def ask() -> None:
            self.asked[name] += 1
            self._under_way += 1
            try:
                await asks()
            finally:
                self._under_way -= 1

        return ask

    def watch(self, engine_node: BaseNode) -> None:
        """Count what this started node asks."""
        database = engine_node.store.database
        connections = database._connections
        assert connections is not None
        run, take, give_back = database._run, connections.take, connections.give_back
        taken: set[Any] = set()

        async def counted_run(connection: Any, name: str, given: dict[str, Any]) -> list[Any]:
            self.asked[name] += 1
            return await run(connection, name, given)

        async def counted_take() -> Any:
            self._under_way += 1
            connection = await take()
            taken.add(connection)
            return connection

        async def counted_give_back(connection: Any, *, is_sound: bool) -> None:
            await give_back(connection, is_sound=is_sound)
            # Not one that was taken before the counting began.
            if connection in taken:
                taken.remove(connection)
                self._under_way -= 1

        database._run = counted_run  # type: ignore[method-assign]
        connections.take, connections.give_back = counted_take, counted_give_back  # type: ignore[method-assign]
        engine_node.listener._probe = self.counted("probe", engine_node.listener._probe)  # type: ignore[method-assign]


@contextmanager
def leaping(clock: VirtualClock) -> Iterator[Leaper]:
    """Let the time of the running loop leap, and *clock* with it."""
    loop: Any = asyncio.get_running_loop()
    leaper = Leaper(loop, clock)
    loop._selector.select, loop.time = leaper.select, leaper.time
    try:
        yield leaper
    finally:
        leaper.land()
