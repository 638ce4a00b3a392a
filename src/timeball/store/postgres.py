"""The store: PostgreSQL, opened once, and its verbs in groups."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from timeball.clock import SystemClock
from timeball.env import Env
from timeball.store.database import Database, Patience
from timeball.store.hinter import Hinter
from timeball.store.history import History
from timeball.store.jobs import Jobs
from timeball.store.migrate import check, migrate
from timeball.store.nodes import Nodes
from timeball.store.retention import Retention
from timeball.store.rooms import Rooms

if TYPE_CHECKING:
    from timeball.store.changes import ChangeStream
    from timeball.store.handlers import Handlers
    from timeball.store.operations import Operations
    from timeball.store.rollups import Rollups
    from timeball.store.templates import Templates
    from timeball.store.tickets import Tickets

DEFAULT_SHARDS = 64
DEFAULT_HOIST_WINDOW = timedelta(milliseconds=500)
_CLOCK_READINGS = 3
_FIRST_DAYS = 8


class Store:
    """Where the truth lives. `open` before use, `close` after.

    What an idle worker never asks for is imported when somebody does.
    """

    hinter: Hinter
    jobs: Jobs
    rooms: Rooms
    nodes: Nodes
    history: History
    retention: Retention
    shards: int

    def __init__(
        self,
        dsn: str,
        env: Env,
        *,
        pool_size: int = 8,
        behind_pgbouncer: bool = False,
        patience: Patience | None = None,
        hoist_window: timedelta = DEFAULT_HOIST_WINDOW,
    ) -> None:
        self.env = env
        self.database = Database(dsn, env, pool_size=pool_size, behind_pgbouncer=behind_pgbouncer, patience=patience)
        self.hoist_window = hoist_window

    async def open(self, *, migrates: bool = True, shards: int = DEFAULT_SHARDS) -> None:
        """Connect, bring the schema up to date (or check that it is), and learn the database's clock."""
        if migrates:
            await migrate(self.database, shards=shards)
        await self.database.open()
        try:
            await self._read_schema(checks=not migrates)
        except BaseException:
            await self.database.close()
            raise
        self.hinter = Hinter(self.database)
        self.rooms = Rooms(self.database, self.hinter, self.shards)
        self.jobs = Jobs(self.database, self.hinter, self.rooms, self.hoist_window)
        self.nodes = Nodes(self.database, self.hinter)
        self.retention = Retention(self.database)
        self.history = History(self.database, self.retention)
        if migrates:
            await self._make_first_days()
        await self.learn_clock()

    @cached_property
    def tickets(self) -> Tickets:
        """What is ready, for a broker to carry."""
        from timeball.store.tickets import Tickets

        return Tickets(self.database)

    @cached_property
    def rollups(self) -> Rollups:
        """The past, added up."""
        from timeball.store.rollups import Rollups

        return Rollups(self.database)

    @cached_property
    def changes(self) -> ChangeStream:
        """What happens, as it happens."""
        from timeball.store.changes import ChangeStream

        return ChangeStream(self.database)

    @cached_property
    def templates(self) -> Templates:
        """Jobs to make more of."""
        from timeball.store.templates import Templates

        return Templates(self.database, self.jobs)

    @cached_property
    def handlers(self) -> Handlers:
        """What workers have published of their handlers."""
        from timeball.store.handlers import Handlers

        return Handlers(self.database)

    @cached_property
    def operations(self) -> Operations:
        """What is done to many at a time."""
        from timeball.store.operations import Operations

        return Operations(self.database, self.jobs)

    async def _read_schema(self, *, checks: bool) -> None:
        async with self.database.connection() as connection:
            if checks:
                await check(connection)
            self.shards = await connection.fetchval("SELECT count(*) FROM timeball.shard")

    async def _make_first_days(self) -> None:
        """A new database gets its partitions at once; later on the janitor makes them."""
        if not await self.history.days():
            today = (await self.history.moment()).date()
            for ahead in range(_FIRST_DAYS):
                await self.history.add_day(today + timedelta(days=ahead))

    async def learn_clock(self) -> None:
        """Take a few readings of the database's clock."""
        clock = self.env.clock
        if isinstance(clock, SystemClock):
            for _ in range(_CLOCK_READINGS):
                clock.learn(await self.nodes.read_clock())

    async def close(self) -> None:
        """Send the last hints and give the connections back."""
        await self.hinter.flush()
        await self.database.close()
