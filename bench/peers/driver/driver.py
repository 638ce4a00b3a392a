"""The client of a peer, in the peer's own environment: reads wishes line by line, and answers each with a line.

Only the calls of the peer are timed, here, so that the way between the two processes costs nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any


class Adapter:
    """How jobs come into a peer. A verb that is not overridden is one the peer does not have."""

    async def prepare(self) -> None:
        """Connect, and install what the peer needs in its store."""

    async def enqueue(self, number: int) -> None:
        """Have job *number* run now; afterwards that is certain."""
        raise NotImplementedError

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """The same for many, in the way the peer's documentation names for many."""
        for number in numbers:
            await self.enqueue(number)

    async def enqueue_at(self, numbers: Sequence[int], instants: Sequence[float]) -> None:
        """Have each job run at its instant (seconds since 1970)."""
        raise NotImplementedError

    async def enqueue_slow(self, numbers: Sequence[int], seconds: float) -> None:
        """Have jobs run that take so long."""
        raise NotImplementedError

    async def schedule(self, numbers: Sequence[int]) -> None:
        """Make schedules that fire every second, for peers that keep schedules in their store."""

    async def close(self) -> None:
        """Let go of the store."""


class Driver:
    """Does what it is asked, with the adapter of one peer."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    async def enqueue(self, first: int, count: int) -> float:
        """One by one; how many seconds it took."""
        begun = time.perf_counter()
        for number in range(first, first + count):
            await self._adapter.enqueue(number)
        return time.perf_counter() - begun

    async def enqueue_many(self, first: int, count: int) -> float:
        """In bulk; how many seconds it took."""
        begun = time.perf_counter()
        await self._adapter.enqueue_many(range(first, first + count))
        return time.perf_counter() - begun

    async def enqueue_at(self, first: int, count: int, at: float, rate: float) -> float:
        """*rate* a second, beginning at an instant; how many seconds it took to enqueue them."""
        begun = time.perf_counter()
        instants = [at + index / rate for index in range(count)]
        await self._adapter.enqueue_at(range(first, first + count), instants)
        return time.perf_counter() - begun

    async def enqueue_slow(self, first: int, count: int, seconds: float) -> None:
        """Long jobs."""
        await self._adapter.enqueue_slow(range(first, first + count), seconds)

    async def schedule(self, count: int) -> None:
        """Schedules that fire every second."""
        await self._adapter.schedule(range(count))

    async def trickle(self, first: int, count: int, pause: float) -> list[tuple[int, int]]:
        """One now and then; for each, when the call began and when it returned."""
        moments = []
        for number in range(first, first + count):
            called = time.monotonic_ns()
            await self._adapter.enqueue(number)
            moments.append((called, time.monotonic_ns()))
            await asyncio.sleep(pause)
        return moments


async def _serve(adapter: Adapter) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What a library prints is no answer.
    os.dup2(2, 1)
    driver = Driver(adapter)
    await adapter.prepare()
    answers.write("null\n")
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, arguments = json.loads(line)
        answers.write(json.dumps(await _answer(driver, verb, arguments)) + "\n")
    await adapter.close()


async def _answer(driver: Driver, verb: str, arguments: dict[str, Any]) -> Any:
    return await getattr(driver, verb)(**arguments)


def serve(adapter: Adapter) -> None:
    """Answer until the input ends."""
    asyncio.run(_serve(adapter))
