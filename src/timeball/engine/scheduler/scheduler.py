"""Promotes executions from due to ready shortly before their time.

The scheduler looks through the next moments of its shards, once a second and whenever a wake-up says so, and reads the rows that it
does not hold yet. What falls due within the promotion window is planned (`domain.scheduling.occurrences.plan_promotion`) and moved
in batches, each move guarded by the row itself. The next occurrence of a promoted job is known without reading it, and is held at
once if it is near; what lies further ahead than the horizon is never held. Nothing in memory is truth: a row that is gone or
changed is not moved.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from timeball.config.settings import SchedulerSettings
from timeball.domain import job_changes
from timeball.domain.execution import DueKind, Origin
from timeball.domain.freeze import FreezeList, FrozenWindow
from timeball.domain.job_changes import JobChange, JobSnapshot
from timeball.domain.policies import Overlap, SkipReason
from timeball.domain.scheduling.civil_time import tzdata_version
from timeball.domain.scheduling.occurrences import (
    CheckAgain,
    DueKey,
    DueRow,
    HeldByFreeze,
    JobTiming,
    Promotion,
    PromotionTarget,
    plan_promotion,
    recompute_occurrence,
)
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.domain.wakeup import Wakeup
from timeball.engine.node import AT_ONCE, Service
from timeball.engine.scheduler.shards import ShardBalancer
from timeball.env import Env
from timeball.errors import NotFound
from timeball.store.executions import ExecutionStore
from timeball.store.freezes import FreezeStore
from timeball.store.jobs import JobStore
from timeball.store.types import AuditEntry, ShardOwnership
from timeball.telemetry.events import Emit, ExecutionsPromoted, OccurrencesRecorded, OccurrencesSkipped

_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_POLL = timedelta(seconds=1)
# The pause between two polls is so many times as long as the last poll took.
_WORK_TO_POLLING = 9
# Occurrences computed by older time-zone data are looked for when shards are gained, when one is near, and otherwise this often.
_ZONES_SECONDS = 60.0
# Rows that fall due close together are moved together.
_BATCHING = timedelta(milliseconds=25)
_AUTO_RESUME = AuditEntry("timeball", "the pause was over")


class Scheduler(Service):
    """Moves executions that fall due in its shards from `due` to `ready`."""

    def __init__(
        self,
        env: Env,
        emit: Emit,
        executions: ExecutionStore,
        jobs: JobStore,
        freezes: FreezeStore,
        shards: ShardBalancer,
        settings: SchedulerSettings,
    ) -> None:
        super().__init__(env, emit)
        self._executions = executions
        self._jobs = jobs
        self._freeze_store = freezes
        # As they were read last. Nothing is promoted by an older list, so it is read again when a promotion is refused.
        self._freezes = FreezeList()
        self._shards = shards
        self._settings = settings
        # A promotion window that is longer than the look-ahead needs a longer look-ahead: rows are read before they are promoted.
        self._look_ahead = max(settings.look_ahead, settings.promotion_window + 2 * _POLL)
        self._due_heap = DueHeap()
        self._unread: list[HeapKey] = []
        self._full: dict[int, HeapKey] = {}
        self._timetables: dict[JobId, JobTiming] = {}
        self._unprepared: deque[DueRow] = deque()
        self._bounds: dict[int, datetime] = {}
        self._owned: dict[int, int] = {}
        self._refused: set[DueRow] = set()
        self._next_poll = float("-inf")
        self._next_look_at_zones = float("-inf")

    def on_wakeup(self, wakeup: Wakeup) -> None:
        """Read what a wake-up announces, if it is in an owned shard and near."""
        if wakeup.look_everywhere:
            self.reload()
        for shard, run_at in wakeup.shards.items():
            if shard in self._shards.epochs and self._is_near(run_at):
                self._read_from(shard, run_at)
                self.wake()

    def reload(self) -> None:
        """Read everything again: the owned shards have changed, or wake-ups may have been lost."""
        self._next_poll = float("-inf")
        self.wake()

    async def tick(self) -> timedelta:
        await self._look()
        has_read = await self._read()
        more = await self._promote_due() or await self._prepare() or has_read
        return AT_ONCE if more else self._rest_until_next()

    # reading

    async def _look(self) -> None:
        """Find the rows to hold: all of them once a second, or less often if that takes long; otherwise those that were announced."""
        begun = self.env.clock.monotonic()
        is_poll = self.is_time(self._next_poll)
        if is_poll:
            self._next_poll = begun + _POLL.total_seconds()
            self._restart_reading()
            if self.is_time(self._next_look_at_zones):
                await self._refresh_zones()
        self._read_on()
        await self._look_from_bounds()
        if is_poll:
            self._slow_polling(begun)

    async def _look_from_bounds(self) -> None:
        bounds, self._bounds = self._bounds, {}
        if not bounds:
            return
        marks = await self._executions.look_ahead(bounds, self._look_ahead, self._settings.page)
        self._note_full_shards(marks)
        for mark in marks:
            if not self._due_heap.holds(mark):
                heapq.heappush(self._unread, (mark.run_at, mark.id))

    def _slow_polling(self, begun: float) -> None:
        """Poll less often when a poll takes long: with a hundred thousand rows due at once, no time would be left to move them."""
        ended = self.env.clock.monotonic()
        # A `reload` that came meanwhile stands.
        if self._next_poll > begun:
            self._next_poll = max(self._next_poll, ended + _WORK_TO_POLLING * (ended - begun))

    def _restart_reading(self) -> None:
        self._bounds = dict.fromkeys(self._shards.epochs, _ALWAYS)
        self._unread.clear()
        self._full.clear()
        owned = dict(self._shards.epochs)
        if owned != self._owned:
            self._owned = owned
            self._due_heap.keep_only(owned)
            self._look_at_zones_soon()

    def _note_full_shards(self, marks: Sequence[DueKey]) -> None:
        """A shard that filled a whole page has more rows behind the last one."""
        if len(marks) < self._settings.page:
            return
        pages: dict[int, list[HeapKey]] = {}
        for mark in marks:
            pages.setdefault(mark.shard, []).append((mark.run_at, mark.id))
        for shard, places in pages.items():
            if len(places) >= self._settings.page:
                last = max(places)
                self._full[shard] = min(last, self._full.get(shard, last))

    def _read_on(self) -> None:
        """Look behind a full page only once all of it has been moved: each look goes through the page again."""
        ahead = min((place for place in (self._due_heap.first, *self._unread[:1]) if place is not None), default=None)
        for shard, last in list(self._full.items()):
            if ahead is None or ahead > last:
                del self._full[shard]
                self._read_from(shard, last[0])

    def _read_from(self, shard: int, bound: datetime) -> None:
        self._bounds[shard] = min(bound, self._bounds.get(shard, bound))

    async def _read(self) -> bool:
        """Read a batch of the rows that are not held yet, the nearest first, so that no due row waits for the others."""
        number = min(len(self._unread), self._settings.batch)
        if not number:
            return False
        for row in await self._executions.due_rows([heapq.heappop(self._unread)[1] for _ in range(number)]):
            self._remember(row)
        return True

    def _remember(self, row: DueRow) -> None:
        if self._is_near(row.run_at) and self._due_heap.add(row):
            if self._needs_timetable(row):
                self._unprepared.append(row)
            if row.tzdata is not None and row.kind is DueKind.OCCURRENCE and row.tzdata < tzdata_version():
                self._look_at_zones_soon()

    def _is_near(self, instant: datetime) -> bool:
        return instant <= self.env.clock.now() + self._look_ahead

    def _look_at_zones_soon(self) -> None:
        """Look with the next poll: most rows are read a second or two before they are promoted."""
        self._next_look_at_zones = float("-inf")

    async def _refresh_zones(self) -> None:
        """Compute occurrences again that were computed by older time-zone data."""
        begun = self.env.clock.monotonic()
        stale = await self._executions.occurrences_of_other_tzdata(
            list(self._shards.epochs), tzdata_version(), self._settings.page
        )
        await self._load_timetables(stale)
        for row in stale:
            job = self._timetable(row)
            if job is None:
                continue
            fresh = recompute_occurrence(row, job)
            if fresh is not None:
                await self._executions.move_occurrence(row, fresh)
            elif await self._executions.end_occurrence(row, tzdata_version()):
                self.emit(OccurrencesSkipped(row.job_id, 1, SkipReason.ENDED.value))
        if len(stale) < self._settings.page:
            self._next_look_at_zones = begun + _ZONES_SECONDS

    # promoting

    async def _promote_due(self) -> bool:
        now = await self._now()
        rows = self._due_heap.take(now + self._settings.promotion_window, self._settings.batch)
        if not rows:
            return False
        rows = await self._set_aside(rows)
        await self._load_timetables(rows)
        busy = await self._busy(rows)
        frozen = await self._frozen_windows(rows)
        promotions, held = [], []
        replacing: set[JobId] = set()
        for row in rows:
            if row.job_id in replacing:
                # Two promotions in one statement could not replace each other.
                self._put_back(row, now)
                continue
            planned = self._plan(row, now, is_busy=row.job_id in busy, frozen=frozen.get(row.id, ()))
            if isinstance(planned, HeldByFreeze):
                held.append(planned)
            elif planned is not None:
                promotions.append(planned)
                if planned.replaces_waiting:
                    replacing.add(row.job_id)
                if planned.runs:
                    # Later rows of the job in this batch may not run beside this one, unless overlap is allowed.
                    busy.add(row.job_id)
        if held:
            await self._hold(held)
        if promotions:
            await self._move(promotions)
        return True

    async def _frozen_windows(self, rows: Sequence[DueRow]) -> dict[ExecutionId, tuple[FrozenWindow, ...]]:
        """The windows in which nothing of each row starts. Without a freeze, nothing is read."""
        freezes = self._freezes
        if not freezes.freezes:
            return {}
        job_ids = {row.job_id for row in rows}
        tags = await self._freeze_store.tags_of(sorted(job_ids), freezes.tags) if freezes.tags else {}
        return {row.id: freezes.windows_of(row.queue, row.job_id, tags) for row in rows}

    async def _hold(self, held: Sequence[HeldByFreeze]) -> None:
        waiting = await self._executions.hold_frozen(held, self._freezes.epoch)
        if len(waiting) < len(held):
            await self._read_again()

    async def _read_again(self, *, at_once: bool = True) -> None:
        """Something that was planned was refused: a row is gone, changed or locked, or a freeze was written or ended."""
        self._freezes = await self._freeze_store.list()
        if at_once:
            self.reload()

    async def _now(self) -> datetime:
        return self.env.clock.now()

    async def _set_aside(self, rows: list[DueRow]) -> list[DueRow]:
        """Handle the rows that are not to be promoted, resumptions and retries of paused jobs; returns the others."""
        paused = [row for row in rows if row.is_paused and row.kind in (DueKind.RETRY, DueKind.SNOOZE)]
        if paused:
            await self._executions.park(paused)
            # A row whose job was resumed since it was read has not been parked, and must be read again.
            self.reload()
        for row in rows:
            if row.kind is DueKind.RESUME:
                await self._resume(row)
        aside = {row.id for row in paused}
        return [row for row in rows if row.kind is not DueKind.RESUME and row.id not in aside]

    async def _resume(self, row: DueRow) -> None:
        if row.run_at > await self._now():
            self._put_back(row, row.run_at)
            return
        try:
            await self._jobs.change(row.job_id, _resume_if_over, _AUTO_RESUME)
        except (NotFound, _StillPaused):
            return

    def _put_back(self, row: DueRow, at: datetime) -> None:
        # Rows are taken when their promotion window begins, so a row that is wanted at an instant is filed a window later.
        self._due_heap.put(row, at + self._settings.promotion_window)

    async def _prepare(self) -> bool:
        """Read the timetables of rows that are not due yet: when thousands fall due together, there is no time for it."""
        rows = [self._unprepared.popleft() for _ in range(min(len(self._unprepared), self._settings.batch))]
        await self._load_timetables(rows)
        return bool(rows)

    def _needs_timetable(self, row: DueRow) -> bool:
        return row.origin is Origin.SCHEDULE and self._timetable(row) is None

    async def _load_timetables(self, rows: Iterable[DueRow]) -> None:
        job_ids = {row.job_id for row in rows if self._needs_timetable(row)}
        if job_ids:
            if len(self._timetables) > self._settings.definitions:
                self._timetables.clear()
            self._timetables |= await self._jobs.timetables(sorted(job_ids, key=lambda id_: id_.bytes))

    def _timetable(self, row: DueRow) -> JobTiming | None:
        job = self._timetables.get(row.job_id)
        return job if job is not None and job.version == row.version else None

    async def _busy(self, rows: Sequence[DueRow]) -> set[JobId]:
        asked = set()
        for row in rows:
            job = self._timetable(row) if row.origin is Origin.SCHEDULE else None
            if job is not None and job.overlap is not Overlap.ALLOW and row.kind in (DueKind.OCCURRENCE, DueKind.LATER):
                asked.add(job.id)
        return await self._executions.busy_jobs(list(asked)) if asked else set()

    def _plan(
        self, row: DueRow, now: datetime, *, is_busy: bool, frozen: Sequence[FrozenWindow]
    ) -> Promotion | HeldByFreeze | None:
        job = self._timetable(row)
        if job is None and row.origin is Origin.SCHEDULE and row.kind is DueKind.OCCURRENCE:
            # The job was changed since the row was read. Its new occurrence comes with the next look.
            self.reload()
            return None
        planned = plan_promotion(row, job, now, is_busy=is_busy, frozen=frozen)
        if isinstance(planned, CheckAgain):
            self._put_back(row, planned.at)
            return None
        return planned

    async def _move(self, promotions: Sequence[Promotion]) -> None:
        ownership = ShardOwnership(self._shards.incarnation, dict(self._shards.epochs))
        done = await self._executions.promote(
            promotions, ownership, self._settings.promotion_window, tzdata_version(), self._freezes.epoch
        )
        moved = [promotion for promotion in promotions if promotion.row.id in done]
        for promotion in moved:
            self._follow(promotion)
            self._report_skips(promotion)
        runs = sum(len(promotion.runs) for promotion in moved)
        skipped = sum(len(promotion.skips) + len(promotion.ranges) for promotion in moved)
        self.emit(ExecutionsPromoted(runs, skipped, len(promotions) - len(moved)))
        self._report_lateness(moved)
        refused = {promotion.row for promotion in promotions if promotion.row.id not in done}
        if refused:
            # What was read again as it is, and refused again, is locked by a transaction: the next poll comes back to it.
            await self._read_again(at_once=not refused <= self._refused)
        self._refused = refused

    def _report_lateness(self, moved: Sequence[Promotion]) -> None:
        """Measured against the exact instants, without jitter. What a freeze has held is not late."""
        now = self.env.clock.now()
        instants = [
            promotion.row.scheduled_for
            for promotion in moved
            if promotion.row.watermark is not None and not promotion.row.is_frozen
        ]
        if instants:
            late = tuple((now - instant).total_seconds() for instant in instants if instant < now)
            self.emit(OccurrencesRecorded(len(instants), late))

    def _follow(self, promotion: Promotion) -> None:
        """Hold what follows a promotion without reading it: the next occurrence, and the runs that catch up."""
        for run in promotion.runs:
            if run.target is PromotionTarget.DUE:
                later = replace(
                    promotion.row,
                    id=run.id,
                    kind=DueKind.LATER,
                    run_at=run.run_at,
                    scheduled_for=run.scheduled_for,
                    watermark=None,
                    executions_left=None,
                    tzdata=tzdata_version(),
                    expires_at=promotion.row.expiry_of(run.scheduled_for),
                    is_frozen=False,
                )
                self._remember(later)
        following = promotion.following
        if following is None:
            return
        self._remember(
            replace(
                promotion.row,
                id=following.id,
                kind=DueKind.OCCURRENCE,
                run_at=following.run_at,
                scheduled_for=following.scheduled_for,
                watermark=following.watermark,
                executions_left=following.executions_left,
                tzdata=following.tzdata,
                expires_at=promotion.row.expiry_of(following.scheduled_for),
                is_frozen=False,
            )
        )

    def _report_skips(self, promotion: Promotion) -> None:
        for skip in promotion.skips:
            self.emit(OccurrencesSkipped(promotion.row.job_id, 1, skip.reason.value))
        for skipped in promotion.ranges:
            self.emit(OccurrencesSkipped(promotion.row.job_id, skipped.count, skipped.reason.value))

    def _rest_until_next(self) -> timedelta:
        first = self._due_heap.first
        if first is None:
            return _POLL
        ahead = first[0] - self._settings.promotion_window - self.env.clock.now()
        return min(max(ahead, _BATCHING), _POLL)


class _StillPaused(Exception):
    """The pause has been made longer since its end was read."""


def _resume_if_over(snapshot: JobSnapshot) -> JobChange:
    until = snapshot.job.paused_until
    if until is None or until > snapshot.now:
        raise _StillPaused
    return job_changes.resume_job(snapshot)


# The position of a row in the order in which rows fall due.
HeapKey: TypeAlias = tuple[datetime, ExecutionId]


class DueHeap:
    """The rows of `due` that a scheduler holds for the next seconds, by id, and a heap of when to look at each.

    A heap entry whose row is gone is passed over. An entry whose row was replaced yields the new row, perhaps before its time: the row is
    not moved then.
    """

    def __init__(self) -> None:
        self._heap: list[HeapKey] = []
        self._rows: dict[ExecutionId, DueRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first(self) -> HeapKey | None:
        """The position that comes next."""
        return self._heap[0] if self._heap else None

    def holds(self, mark: DueKey) -> bool:
        """Whether this row is held in this version."""
        row = self._rows.get(mark.id)
        return row is not None and row.run_at == mark.run_at and row.version == mark.version

    def add(self, row: DueRow) -> bool:
        """Hold a row until its time; False if it is held already, unchanged."""
        if self._rows.get(row.id) == row:
            return False
        self.put(row, row.run_at)
        return True

    def put(self, row: DueRow, at: datetime) -> None:
        """Hold a row, to be looked at at this instant."""
        self._rows[row.id] = row
        heapq.heappush(self._heap, (at, row.id))

    def take(self, edge: datetime, most: int) -> list[DueRow]:
        """Take the rows up to an instant, at most so many, the earliest first; they are held no longer."""
        rows: list[DueRow] = []
        while self._heap and self._heap[0][0] <= edge and len(rows) < most:
            _, id_ = heapq.heappop(self._heap)
            row = self._rows.pop(id_, None)
            if row is not None:
                rows.append(row)
        return rows

    def keep_only(self, shards: Container[int]) -> None:
        """Forget rows of all other shards."""
        self._rows = {id_: row for id_, row in self._rows.items() if row.shard in shards}
        self._heap = [(at, id_) for at, id_ in self._heap if id_ in self._rows]
        heapq.heapify(self._heap)
