"""Lets concurrent enqueues share a commit.

A durable write costs most of a millisecond, whether it is of one job or of a hundred. So while one statement is under
way, the wishes that come in gather, and all go with the next; who comes alone goes at once and waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from timeball.commands import Commands
from timeball.domain.job import JobSpec
from timeball.errors import StoreUnavailable, TimeballError
from timeball.store.interface import Created

_MOST_TOGETHER = 200


class _Wish(NamedTuple):
    spec: JobSpec
    made: asyncio.Future[Created]


class Enqueuer:
    """Creates the jobs of many callers in few statements."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._waiting: deque[_Wish] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def create(self, spec: JobSpec) -> Created:
        """Create one job; together with others, if a statement is under way already.

        An error is that of this job alone. Whoever stops waiting before the job is sent has created nothing.
        """
        loop = asyncio.get_running_loop()
        wish = _Wish(spec, loop.create_future())
        self._waiting.append(wish)
        if self._sender is None:
            self._sender = loop.create_task(self._send_all())
        return await wish.made

    async def _send_all(self) -> None:
        try:
            while batch := self._next_batch():
                await self._send(batch)
        finally:
            self._sender = None

    def _next_batch(self) -> list[_Wish]:
        batch: list[_Wish] = []
        while self._waiting and len(batch) < _MOST_TOGETHER:
            wish = self._waiting.popleft()
            if not wish.made.done():
                batch.append(wish)
        return batch

    async def _send(self, batch: Sequence[_Wish]) -> None:
        try:
            created = await self._commands.create_all([wish.spec for wish in batch])
        except StoreUnavailable as error:
            _refuse(batch, error)
        except TimeballError as error:
            if len(batch) == 1:
                _refuse(batch, error)
                return
            # One by one: the others must not pay for the one that cannot be created.
            for wish in batch:
                await self._send([wish])
        except Exception as error:
            _refuse(batch, error)
        else:
            for wish, made in zip(batch, created, strict=True):
                if not wish.made.done():
                    wish.made.set_result(made)


def _refuse(batch: Sequence[_Wish], error: Exception) -> None:
    for wish in batch:
        if not wish.made.done():
            wish.made.set_exception(error)
