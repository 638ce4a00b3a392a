"""The store: one database, opened once, with its methods in groups."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from timeball.env import SystemClock
from timeball.store.db.database import Database, DatabaseTimeouts
from timeball.store.db.migrate import check, migrate
from timeball.store.db.notifier import Notifier
from timeball.store.enqueue import Enqueuer
from timeball.store.executions import ExecutionStore
from timeball.store.follow_ups import FollowUpStore
from timeball.store.freezes import FreezeStore
from timeball.store.history import HistoryStore, RetentionStore
from timeball.store.jobs import JobStore
from timeball.store.nodes import NodeStore
from timeball.store.queues import QueueStore
from timeball.store.types import HousekeepingWork

if TYPE_CHECKING:
    from timeball.env import Env
    from timeball.store.alert_deliveries import AlertDeliveryStore
    from timeball.store.alerts import AlertStore
    from timeball.store.backfills import BackfillStore
    from timeball.store.calendars import CalendarStore
    from timeball.store.changes import ChangeStream
    from timeball.store.channels import ChannelStore
    from timeball.store.executions import TicketStore
    from timeball.store.nodes import HandlerStore
    from timeball.store.operations import OperationStore
    from timeball.store.rollups import RollupStore
    from timeball.store.search.groups import GroupStore
    from timeball.store.templates import TemplateStore
    from timeball.store.webhooks import WebhookStore

DEFAULT_SHARDS = 64
DEFAULT_PROMOTION_WINDOW = timedelta(milliseconds=500)
_CLOCK_READINGS = 3
_INITIAL_PARTITIONS = 8


class Store:
    """All access to one database. `open` before use, `close` after.

    Groups that an idle worker does not need are imported on first use.
    """

    notifier: Notifier
    enqueuer: Enqueuer
    jobs: JobStore
    queues: QueueStore
    executions: ExecutionStore
    nodes: NodeStore
    history: HistoryStore
    retention: RetentionStore
    shards: int

    def __init__(
        self,
        dsn: str,
        env: Env,
        *,
        pool_size: int = 8,
        behind_pgbouncer: bool = False,
        patience: DatabaseTimeouts | None = None,
        promotion_window: timedelta = DEFAULT_PROMOTION_WINDOW,
    ) -> None:
        self.env = env
        self.database = Database(dsn, env, pool_size=pool_size, behind_pgbouncer=behind_pgbouncer, patience=patience)
        self.promotion_window = promotion_window

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
        self.notifier = Notifier(self.database)
        self.executions = ExecutionStore(self.database, self.notifier, self.shards)
        self.enqueuer = Enqueuer(self.database, self.notifier, self.executions, self.promotion_window)
        self.jobs = JobStore(self.database, self.notifier, self.executions, self.promotion_window)
        self.freezes = FreezeStore(self.database, self.notifier)
        self.follow_ups = FollowUpStore(self.database, self.notifier)
        self.queues = QueueStore(self.database, self.notifier, self.executions, self.freezes)
        self.nodes = NodeStore(self.database, self.notifier)
        self.retention = RetentionStore(self.database)
        self.history = HistoryStore(self.database, self.retention)
        if migrates:
            await self._make_first_days()
        await self.learn_clock()

    @cached_property
    def tickets(self) -> TicketStore:
        """Ready executions, as tickets for a broker."""
        from timeball.store.executions import TicketStore

        return TicketStore(self.database)

    @cached_property
    def groups(self) -> GroupStore:
        """Groups with their parts, as people read them."""
        from timeball.store.search.groups import GroupStore

        return GroupStore(self.database)

    @cached_property
    def rollups(self) -> RollupStore:
        """Counts of the past by minute and hour."""
        from timeball.store.rollups import RollupStore

        return RollupStore(self.database)

    @cached_property
    def changes(self) -> ChangeStream:
        """The change stream."""
        from timeball.store.changes import ChangeStream

        return ChangeStream(self.database)

    @cached_property
    def templates(self) -> TemplateStore:
        """Job templates."""
        from timeball.store.templates import TemplateStore

        return TemplateStore(self.database)

    @cached_property
    def calendars(self) -> CalendarStore:
        """Calendars, and the jobs that use them."""
        from timeball.store.calendars import CalendarStore

        return CalendarStore(self.database)

    @cached_property
    def channels(self) -> ChannelStore:
        """Channels of alerts, and the routes that lead to them."""
        from timeball.store.channels import ChannelStore

        return ChannelStore(self.database)

    @cached_property
    def alert_deliveries(self) -> AlertDeliveryStore:
        """The messages of alerts to channels."""
        from timeball.store.alert_deliveries import AlertDeliveryStore

        return AlertDeliveryStore(self.database, self.enqueuer, self.alerts, self.channels, self.shards)

    @cached_property
    def alerts(self) -> AlertStore:
        """Alerts: facts that a person should act upon."""
        from timeball.store.alerts import AlertStore

        return AlertStore(self.database)

    @cached_property
    def handlers(self) -> HandlerStore:
        """The handler contracts that workers have published."""
        from timeball.store.nodes import HandlerStore

        return HandlerStore(self.database)

    @cached_property
    def backfills(self) -> BackfillStore:
        """Backfills."""
        from timeball.store.backfills import BackfillStore

        return BackfillStore(self.database, self.executions, self.promotion_window)

    async def housekeeping_work(self) -> HousekeepingWork:
        """Whether there is an unfinished operation that no living process holds, and any webhook: schedulers ask, and rarely have one."""
        row = await self.database.fetch_row("housekeeping_work")
        assert row is not None
        return HousekeepingWork(row["has_operations"], row["has_webhooks"])

    @cached_property
    def webhooks(self) -> WebhookStore:
        """Outgoing webhooks and their deliveries."""
        from timeball.store.webhooks import WebhookStore

        return WebhookStore(self.database, self.notifier, self.changes)

    @cached_property
    def operations(self) -> OperationStore:
        """Bulk operations."""
        from timeball.store.operations import OperationStore

        return OperationStore(self.database)

    async def _read_schema(self, *, checks: bool) -> None:
        async with self.database.connection() as connection:
            if checks:
                await check(connection)
            self.shards = await connection.fetchval("SELECT count(*) FROM timeball.shard")

    async def _make_first_days(self) -> None:
        """Create the first partitions of a new database; later ones are the task of the janitor."""
        if not await self.history.days():
            today = (await self.history.moment()).date()
            for ahead in range(_INITIAL_PARTITIONS):
                await self.history.add_day(today + timedelta(days=ahead))

    async def learn_clock(self) -> None:
        """Read the clock of the database a few times."""
        clock = self.env.clock
        if isinstance(clock, SystemClock):
            for _ in range(_CLOCK_READINGS):
                clock.learn(await self.nodes.read_clock())

    async def close(self) -> None:
        """Send the last wake-ups, and close all connections."""
        await self.notifier.flush()
        await self.database.close()
