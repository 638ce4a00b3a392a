"""The housekeeping of the whole installation, by the scheduler that owns the first shard.

It rescues what dead nodes held, trims history, writes rollups, evaluates alerts, lets jobs follow their calendars, and carries out
operations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.config.settings import HousekeepingSettings
from timeball.domain.alerts import AlertEvent, format_alert_id
from timeball.domain.execution import ErrorInfo, FinishedAttempt, Lost, TimeoutOutcome
from timeball.engine.node import AT_ONCE, Service
from timeball.engine.worker.recorder import record_now
from timeball.env import Env
from timeball.store.calendars import CalendarStore
from timeball.store.executions import ExecutionStore
from timeball.store.history import HistoryStore, RetentionStore
from timeball.store.jobs import JobStore
from timeball.store.nodes import NodeStore
from timeball.store.queues import QueueStore
from timeball.store.rollups import RollupStore
from timeball.store.types import AuditEntry, OrphanedClaim
from timeball.telemetry.events import (
    AlertOpened,
    AlertResolved,
    Emit,
    ExecutionsExpired,
    ExecutionsRescued,
    HistoryTrimmed,
    NodeExpired,
    RecordsTrimmed,
)

if TYPE_CHECKING:
    from timeball.domain.alerts import AlertTransition
    from timeball.domain.bulk_operation import Operation

_REAP_BATCH = 500
_EXPIRY_SECONDS = 5.0
_JANITOR_INTERVAL = timedelta(minutes=5)
# Making a partition out of rows in the default partition blocks writers; at most so many days in one round.
_MOST_DAYS = 10
_ROLLUP_TRIM_SECONDS = 300.0
_WHEN_OVER = AuditEntry("timeball", "the end had come")
_FOLLOW_INTERVAL = timedelta(seconds=30)
_FOLLOW_BATCH = 10_000
_OPERATIONS_INTERVAL = timedelta(seconds=30)
# As an API process does while it feeds a backfill: a place may come free at any time.
_FEED_INTERVAL = timedelta(milliseconds=250)


class Reaper(Service):
    """Removes nodes whose lease has passed, and rescues what they held: each attempt gets the outcome `lost`.

    First the expired node loses its row; only a later statement rescues what it held. A renewal and a removal touch the same row, so one
    of them wins. A claim that the expired node commits later has no node, and the next sweep finds it. Limits are ignored here: a rescued
    execution frees a place and never takes one. Places that were freed and not passed on, because their node died in between, are
    passed on here; and executions that are to stop for the next occurrence are asked again. Waiting executions that have not begun in
    time are recorded as skipped, whether or not a worker is there to claim them.
    Queues whose pause is over are resumed, and jobs that have failed too often in a row are paused.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        nodes: NodeStore,
        executions: ExecutionStore,
        jobs: JobStore,
        queues: QueueStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._nodes = nodes
        self._executions = executions
        self._jobs = jobs
        self._queues = queues
        self._interval = timedelta(seconds=settings.reap_seconds)
        self._is_housekeeper = is_housekeeper
        self._next_sweep = float("-inf")
        self._next_expiry = float("-inf")
        self._behind_limit = ""

    async def tick(self) -> timedelta:
        if not self._is_housekeeper() or not self.is_time(self._next_sweep):
            return self._interval
        begun = self.env.clock.monotonic()
        for incarnation, kind, name in await self._nodes.remove_expired():
            self.emit(NodeExpired(incarnation, kind.value, name))
        self.env.fault("reaper.expired")
        orphans = await self._executions.orphans(_REAP_BATCH)
        if orphans:
            await self._reap(orphans)
        more_may_expire = await self._expire()
        if len(orphans) == _REAP_BATCH or more_may_expire:
            return AT_ONCE
        await self._pass_on_places()
        for job_id in await self._queues.tend(_WHEN_OVER):
            await self._jobs.pause_if_failing(job_id, _WHEN_OVER.actor)
        self._next_sweep = begun + self._interval.total_seconds()
        return self._interval

    async def _reap(self, orphans: list[OrphanedClaim]) -> None:
        attempts = [self._finished_attempt(orphan) for orphan in orphans]
        await record_now(self.env, self.emit, self._executions, attempts)
        lost = sum(orphan.is_orphan for orphan in orphans)
        self.emit(ExecutionsRescued(lost=lost, timed_out=len(orphans) - lost))

    def _finished_attempt(self, orphan: OrphanedClaim) -> FinishedAttempt:
        now = self.env.clock.now()
        started_at = max(orphan.claimed_at, orphan.claimed.run_at)
        if orphan.is_orphan:
            error = ErrorInfo(
                type="WorkerLost", message=f"its worker {orphan.holder} was lost", fingerprint="worker-lost"
            )
            return FinishedAttempt(orphan.claimed, Lost(error), started_at, max(now, started_at))
        error = ErrorInfo(
            type="Timeout", message="ran past its deadline, and its worker did not end it", fingerprint="deadline"
        )
        return FinishedAttempt(orphan.claimed, TimeoutOutcome(error), started_at, max(now, started_at))

    async def _expire(self) -> bool:
        """Record what has not begun in time, every few seconds: no worker starts it in between. Returns whether there may be more."""
        if not self.is_time(self._next_expiry):
            return False
        begun = self.env.clock.monotonic()
        expired = await self._executions.expire_waiting(_REAP_BATCH)
        if expired:
            self.emit(ExecutionsExpired(len(expired)))
        if len(expired) >= _REAP_BATCH:
            return True
        self._next_expiry = begun + _EXPIRY_SECONDS
        return False

    async def _pass_on_places(self) -> None:
        keys = await self._executions.blocked_keys(self._behind_limit, _REAP_BATCH)
        # If there are more limits than one sweep reads, the next sweep goes on behind them.
        self._behind_limit = keys[-1] if len(keys) == _REAP_BATCH else ""
        if keys:
            await self._executions.unblock(keys)
            await self._executions.stop_superseded_executions(keys)


class Janitor(Service):
    """Makes the partitions of the coming days, drops those whose retention has passed, and trims other records that would grow."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        history: HistoryStore,
        retention: RetentionStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._history = history
        self._retention = retention
        self._settings = settings
        self._is_housekeeper = is_housekeeper
        self._next_round = float("-inf")
        self._trimmed_on: date | None = None

    async def tick(self) -> timedelta:
        monotonic = self.env.clock.monotonic()
        if not self._is_housekeeper() or monotonic < self._next_round:
            return _JANITOR_INTERVAL
        today = (await self._history.moment()).date()
        await self._make_days(today)
        await self._drop_days(today)
        if self._trimmed_on != today:
            await self._trim_records(today)
            await self._history.summarize_until(today)
            self._trimmed_on = today
        self._next_round = monotonic + _JANITOR_INTERVAL.total_seconds()
        return _JANITOR_INTERVAL

    async def _make_days(self, today: date) -> None:
        present = await self._history.days()
        days = [today + timedelta(days=ahead) for ahead in range(self._settings.days_ahead + 1)]
        for day in [*days, *await self._retention.days_outside(_MOST_DAYS)]:
            if day not in present:
                await self._history.add_day(day)

    async def _drop_days(self, today: date) -> None:
        first_kept = today - timedelta(days=self._settings.keep_days)
        for day in sorted(day for day in await self._history.days() if day < first_kept):
            gone = await self._history.drop_day(day)
            self.emit(HistoryTrimmed(day.isoformat(), gone))

    async def _trim_records(self, today: date) -> None:
        """Trim other records, once a day: it is not urgent, and some are found only by reading a whole table."""
        now = datetime.combine(today, time(), UTC)
        before = now - timedelta(days=self._settings.keep_days)
        retention = self._retention
        self._report("settled", await retention.settled(before))
        self._report("skip_range", await retention.skip_ranges(before))
        self._report("queue_interval", await retention.queue_intervals(before))
        self._report("freeze", await retention.freezes(before))
        self._report("alert", await retention.alerts(before))
        self._report("alert_delivery", await retention.alert_deliveries(before))
        self._report("execution_group", await retention.groups(before))
        self._report("followed_success", await retention.followed_successes(before))
        self._report("audit", await retention.audit(now - timedelta(days=self._settings.keep_audit_days)))
        self._report("idempotency_key", await retention.requests(now))
        self._report("live_key", await retention.unique_keys(now))
        self._report("job", await retention.deleted_jobs(before))
        self._report("running_limit", await retention.limits())

    def _report(self, what: str, count: int) -> None:
        if count:
            self.emit(RecordsTrimmed(what, count))


class CalendarFollower(Service):
    """Lets jobs use the present versions of their calendars, where the request that changed a calendar has not done it for all of them.

    Each job follows in a transaction of its own, so this may die at any point. A job that owes an occurrence follows once that is promoted.
    """

    def __init__(
        self, env: Env, emit: Emit, calendars: CalendarStore, jobs: JobStore, is_housekeeper: Callable[[], bool]
    ) -> None:
        super().__init__(env, emit)
        self._calendars = calendars
        self._jobs = jobs
        self._is_housekeeper = is_housekeeper
        self._next_look = float("-inf")

    async def tick(self) -> timedelta:
        if not self._is_housekeeper() or not self.is_time(self._next_look):
            return _FOLLOW_INTERVAL
        for name, version in await self._calendars.to_follow():
            audit = AuditEntry("timeball", f"calendar {name} has version {version}")
            await self._jobs.follow_calendar(name, version, audit, _FOLLOW_BATCH)
        self._next_look = self.env.clock.monotonic() + _FOLLOW_INTERVAL.total_seconds()
        return _FOLLOW_INTERVAL


class OperationRunner(Service):
    """Carries out operations that no API process does: a program without a server may have started a backfill.

    API processes look once a second, so this comes into play where there is none. *work* does one operation, or one step of a backfill,
    under a lease.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        has_operations: Callable[[], Awaitable[bool]],
        work: Callable[[UUID], Awaitable[Operation | None]],
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._has_operations = has_operations
        self._work = work
        self._holder = env.new_id()
        self._is_housekeeper = is_housekeeper
        self._next_look = float("-inf")

    async def tick(self) -> timedelta:
        if not self._is_housekeeper() or not self.is_time(self._next_look):
            return _OPERATIONS_INTERVAL
        # Asked first: what carries operations out is imported when there is one.
        if await self._has_operations():
            operation = await self._work(self._holder)
            is_resting = operation is None or (operation.backfill is not None and not operation.is_over)
            return _FEED_INTERVAL if is_resting else AT_ONCE
        self._next_look = self.env.clock.monotonic() + _OPERATIONS_INTERVAL.total_seconds()
        return _OPERATIONS_INTERVAL


class AlertEvaluator(Service):
    """Evaluates alerts every few seconds. *evaluate* reads what is so now and writes what it means for the alerts, in one transaction.

    It may die at any point, and another scheduler may do the same beside it. An evaluation that fails is an event of this service, and the
    next one tries again. No other service waits for it.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        evaluate: Callable[[], Awaitable[Sequence[AlertTransition]]],
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._evaluate = evaluate
        self._interval = timedelta(seconds=settings.alert_seconds)
        self._is_housekeeper = is_housekeeper
        self._next_evaluation = float("-inf")

    async def tick(self) -> timedelta:
        if not self._is_housekeeper() or not self.is_time(self._next_evaluation):
            return self._interval
        begun = self.env.clock.monotonic()
        for transition in await self._evaluate():
            alert, fact = format_alert_id(transition.alert.id), transition.alert.fact
            if transition.event is AlertEvent.OPENED:
                self.emit(AlertOpened(alert, fact.kind, fact.severity.value, fact.sentence))
            elif transition.event is AlertEvent.RESOLVED:
                self.emit(AlertResolved(alert, fact.kind))
        self._next_evaluation = begun + self._interval.total_seconds()
        return self._interval


class RollupWriter(Service):
    """Folds ended executions into the rollups that charts, counters and forecasts are made of, and trims old rollups.

    Nothing is counted when an execution ends: that would cost every one of them. Every few seconds one scheduler folds what was recorded
    since the last time. The position up to which it has folded moves in the same transaction, so it may die at any point.
    """

    def __init__(
        self,
        env: Env,
        emit: Emit,
        rollups: RollupStore,
        settings: HousekeepingSettings,
        is_housekeeper: Callable[[], bool],
    ) -> None:
        super().__init__(env, emit)
        self._rollups = rollups
        self._interval = timedelta(seconds=settings.rollup_seconds)
        self._is_housekeeper = is_housekeeper
        self._next_fold = float("-inf")
        self._next_trim = float("-inf")

    async def tick(self) -> timedelta:
        now = self.env.clock.monotonic()
        if not self._is_housekeeper() or not self.is_time(self._next_fold):
            return self._interval
        folded = await self._rollups.fold()
        if folded.has_more:
            return AT_ONCE
        self._next_fold = now + self._interval.total_seconds()
        return await self._trim(now)

    async def _trim(self, now: float) -> timedelta:
        if now >= self._next_trim and not await self._rollups.trim():
            self._next_trim = now + _ROLLUP_TRIM_SECONDS
        return self._interval
