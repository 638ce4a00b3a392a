"""Two calls on two connections: the first stops before COMMIT, the second meets its locks, then the first ends.

Nothing sleeps: the second has settled when it is done, or when the server reports that it waits for the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from timeball.store.db.database import Database
from timeball.store.db.notifier import Notifier
from timeball.store.db.pool import Connection
from timeball.store.store import Store

PATIENCE_SECONDS = 20


class RolledBack(Exception):
    """The test rolled the first transaction back."""


_HAS_WRITTEN = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"


class StoppedDatabase(Database):
    """A database whose next writing transaction stops before COMMIT, until the test decides how it ends."""

    def arm(self, *, at_reads: bool) -> None:
        self._at_reads = at_reads
        self.reached: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.commits: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with super().transaction() as connection:
            yield connection
            is_armed = hasattr(self, "reached") and not self.reached.done()
            if is_armed and (self._at_reads or await connection.fetchval(_HAS_WRITTEN)):
                self.reached.set_result(connection.get_server_pid())
                if not await self.commits:
                    raise RolledBack

    async def _fetch_alone(self, name: str, given: dict[str, Any]) -> list[Any]:
        async with self.transaction() as connection:
            return await self._run(connection, name, given)


def stoppable(store: Store) -> Store:
    """Give a store, before it is opened, a database whose transactions can be stopped."""
    store.database = StoppedDatabase(store.database.dsn, store.env)
    store.notifier = Notifier(store.database)
    return store


@dataclass(frozen=True)
class Result:
    """The results of a race; *first* is None if it was rolled back."""

    first: Any
    second: Any
    second_waited: bool


@dataclass(frozen=True)
class Race:
    """The store of the first call, and that of the second."""

    ahead: Store
    behind: Store
    observer: Connection

    async def run(
        self, first: Awaitable[Any], second: Awaitable[Any], *, commits: bool, at_reads: bool = False
    ) -> Result:
        """Stop *first* (a call of `ahead`) before COMMIT, start *second* (of `behind`), end the first, and await both."""
        database = self.ahead.database
        assert isinstance(database, StoppedDatabase)
        database.arm(at_reads=at_reads)
        async with asyncio.timeout(PATIENCE_SECONDS):
            ahead = asyncio.ensure_future(first)
            await asyncio.wait([ahead, database.reached], return_when=asyncio.FIRST_COMPLETED)
            assert database.reached.done(), f"the first has written nothing: {ahead}"
            behind = asyncio.ensure_future(second)
            waited = await self._waits_for(database.reached.result(), behind)
            database.commits.set_result(commits)
            outcomes = await asyncio.gather(ahead, behind, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, RolledBack):
                raise outcome
        assert isinstance(outcomes[0], RolledBack) != commits
        return Result(outcomes[0] if commits else None, outcomes[1], waited)

    async def _waits_for(self, pid: int, behind: asyncio.Future[Any]) -> bool:
        """Whether the second waits for the first, once it has settled."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        while not behind.done():
            if await self.observer.fetchval(asked, pid):
                return True
        return False
