"""Hoists executions just before their time.

The scheduler reads the next moments of its shards into a heap, once a second and whenever a hint says so. What falls
due within the hoist window is planned (`domain.occurrences.plan`) and moved in batches, each move guarded by the row
itself. The following occurrence of a job that was hoisted is known without reading it, and goes into the heap at once.
Nothing in memory is truth: a row that is gone or changed is simply not moved.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from timeball.domain import changes
from timeball.domain.changes import JobChange, JobSnapshot
from timeball.domain.civil_time import tzdata_version
from timeball.domain.events import Emit, Hoisted, OccurrencesSkipped
from timeball.domain.execution import Origin
from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job
from timeball.domain.misfire import Overlap
from timeball.domain.occurrences import DueKind, DueRow, Hoist, LookAgain, Target, first_occurrence, plan
from timeball.domain.schedule import Cron
from timeball.engine.service import AT_ONCE, Service
from timeball.engine.shards import ShardKeeper
from timeball.env import Env
from timeball.errors import NotFound
from timeball.settings import SchedulerSettings
from timeball.store.interface import AuditEntry, JobStore, Ownership, RoomStore

_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_POLL = timedelta(seconds=1)
# Rows that fall due close together are moved together.
_BATCHING = timedelta(milliseconds=25)
_ITSELF = AuditEntry("timeball", "the pause was over")


class Scheduler(Service):
    """Moves what falls due in its shards from `due` to `ready`."""

    def __init__(
        self, env: Env, emit: Emit, rooms: RoomStore, jobs: JobStore, keeper: ShardKeeper, settings: SchedulerSettings
    ) -> None:
        super().__init__(env, emit)
        self._rooms = rooms
        self._jobs = jobs
        self._keeper = keeper
        self._settings = settings
        self._heap: list[tuple[datetime, ExecutionId]] = []
        self._rows: dict[ExecutionId, DueRow] = {}
        self._definitions: dict[JobId, Job] = {}
        self._unprepared: deque[DueRow] = deque()
        self._bounds: dict[int, datetime] = {}
        self._next_poll = float("-inf")

    def heed(self, hints: Hints) -> None:
        """Read what a hint announces, if it is ours and near."""
        if hints.look_everywhere:
            self.reload()
        horizon = self.env.clock.now() + self._settings.look_ahead
        for shard, run_at in hints.shards.items():
            if shard in self._keeper.epochs and run_at <= horizon:
                self._bounds[shard] = min(run_at, self._bounds.get(shard, run_at))
                self.wake()

    def reload(self) -> None:
        """Read everything again: our share has changed, or hints may have been lost."""
        self._next_poll = float("-inf")
        self.wake()

    async def tick(self) -> timedelta:
        await self._read()
        more = await self._hoist_due() or await self._prepare()
        return AT_ONCE if more else self._rest_until_next()

    # reading

    async def _read(self) -> None:
        monotonic = self.env.clock.monotonic()
        if monotonic >= self._next_poll:
            self._next_poll = monotonic + _POLL.total_seconds()
            self._bounds = dict.fromkeys(self._keeper.epochs, _ALWAYS)
            self._forget_foreign()
            await self._refresh_zones()
        bounds, self._bounds = self._bounds, {}
        if not bounds:
            return
        rows = await self._rooms.look_ahead(bounds, self._settings.look_ahead, self._settings.page)
        for row in rows:
            self._remember(row)
        self._reread_full_shards(rows)

    def _reread_full_shards(self, rows: Iterable[DueRow]) -> None:
        """A shard that gave a whole page has more: read on from its last row once this page has been moved."""
        counts: dict[int, int] = {}
        for row in rows:
            counts[row.shard] = counts.get(row.shard, 0) + 1
        if any(count >= self._settings.page for count in counts.values()):
            self._next_poll = self.env.clock.monotonic()

    def _remember(self, row: DueRow) -> None:
        if self._rows.get(row.id) != row:
            self._rows[row.id] = row
            heapq.heappush(self._heap, (row.run_at, row.id))
            if self._needs_definition(row):
                self._unprepared.append(row)

    def _forget_foreign(self) -> None:
        owned = self._keeper.epochs
        self._rows = {id_: row for id_, row in self._rows.items() if row.shard in owned}
        self._heap = [(at, id_) for at, id_ in self._heap if id_ in self._rows]
        heapq.heapify(self._heap)

    async def _refresh_zones(self) -> None:
        """When the time-zone data are newer than those an occurrence was computed by, compute it again."""
        stale = await self._rooms.occurrences_of_other_tzdata(
            list(self._keeper.epochs), tzdata_version(), self._settings.page
        )
        await self._load_definitions(stale)
        for row in stale:
            job = self._definition(row)
            if job is None:
                continue
            after = row.watermark or row.scheduled_for - timedelta(microseconds=1)
            fresh = first_occurrence(job, after, row.executions_left)
            if fresh is not None and isinstance(job.rule, Cron):
                await self._rooms.move_occurrence(row, fresh)
            else:
                same = first_occurrence(job, row.scheduled_for - timedelta(microseconds=1), row.executions_left)
                if same is not None:
                    await self._rooms.move_occurrence(
                        row, replace(same, id=row.id, run_at=row.run_at, scheduled_for=row.scheduled_for)
                    )

    # hoisting

    async def _hoist_due(self) -> bool:
        now = await self._now()
        rows = self._take_due(now)
        if not rows:
            return False
        rows = await self._set_aside(rows)
        await self._load_definitions(rows)
        busy = await self._busy(rows)
        hoists = []
        for row in rows:
            hoist = self._plan(row, now, is_busy=row.job_id in busy)
            if hoist is not None:
                hoists.append(hoist)
                if hoist.runs:
                    # Nothing behind it in this batch may run beside it unless overlap is allowed.
                    busy.add(row.job_id)
        if hoists:
            await self._move(hoists)
        return True

    async def _now(self) -> datetime:
        return self.env.clock.now()

    def _take_due(self, now: datetime) -> list[DueRow]:
        """The rows that fall due within the window, at most a batch, first come first."""
        edge = now + self._settings.hoist_window
        rows: list[DueRow] = []
        while self._heap and self._heap[0][0] <= edge and len(rows) < self._settings.batch:
            _, id_ = heapq.heappop(self._heap)
            row = self._rows.pop(id_, None)
            if row is not None:
                rows.append(row)
        return rows

    async def _set_aside(self, rows: list[DueRow]) -> list[DueRow]:
        """What is no execution to run: resumptions, and the second tries of paused jobs."""
        paused = [row for row in rows if row.is_paused and row.kind in (DueKind.RETRY, DueKind.SNOOZE)]
        if paused:
            await self._rooms.park(paused)
        for row in rows:
            if row.kind is DueKind.RESUME:
                await self._resume(row)
        return [row for row in rows if row.kind is not DueKind.RESUME and row not in paused]

    async def _resume(self, row: DueRow) -> None:
        if row.run_at > await self._now():
            self._put_back(row, row.run_at)
            return
        try:
            await self._jobs.change(row.job_id, _resume_if_over, _ITSELF)
        except (NotFound, _NotOverError):
            return

    def _put_back(self, row: DueRow, at: datetime) -> None:
        self._rows[row.id] = row
        # The heap is asked "whose hoist window has begun", so a row to be seen at an instant is filed a window later.
        heapq.heappush(self._heap, (at + self._settings.hoist_window, row.id))

    async def _prepare(self) -> bool:
        """Read the definitions of what is not due yet: when thousands fall due together, there is no time for it then."""
        rows = [self._unprepared.popleft() for _ in range(min(len(self._unprepared), self._settings.batch))]
        await self._load_definitions(rows)
        return bool(rows)

    def _needs_definition(self, row: DueRow) -> bool:
        return row.origin is Origin.SCHEDULE and self._definition(row) is None

    async def _load_definitions(self, rows: Iterable[DueRow]) -> None:
        wanted = {row.job_id for row in rows if self._needs_definition(row)}
        if wanted:
            if len(self._definitions) > self._settings.definitions:
                self._definitions.clear()
            self._definitions |= await self._jobs.find(sorted(wanted, key=lambda id_: id_.bytes))

    def _definition(self, row: DueRow) -> Job | None:
        job = self._definitions.get(row.job_id)
        return job if job is not None and job.version == row.version else None

    async def _busy(self, rows: Sequence[DueRow]) -> set[JobId]:
        asked = set()
        for row in rows:
            job = self._definition(row) if row.origin is Origin.SCHEDULE else None
            if job is not None and job.overlap is not Overlap.ALLOW and row.kind in (DueKind.OCCURRENCE, DueKind.LATER):
                asked.add(job.id)
        return await self._rooms.busy_jobs(list(asked)) if asked else set()

    def _plan(self, row: DueRow, now: datetime, *, is_busy: bool) -> Hoist | None:
        job = self._definition(row)
        if job is None and row.origin is Origin.SCHEDULE and row.kind is DueKind.OCCURRENCE:
            # The job was changed since the row was read: its new occurrence comes with the next reading.
            self.reload()
            return None
        planned = plan(row, job, now, is_busy=is_busy)
        if isinstance(planned, LookAgain):
            self._put_back(row, planned.at)
            return None
        return planned

    async def _move(self, hoists: Sequence[Hoist]) -> None:
        ownership = Ownership(self._keeper.incarnation, dict(self._keeper.epochs))
        done = await self._rooms.hoist(hoists, ownership, self._settings.hoist_window, tzdata_version())
        moved = [hoist for hoist in hoists if hoist.row.id in done]
        for hoist in moved:
            self._follow(hoist)
            self._tell_skips(hoist)
        runs = sum(len(hoist.runs) for hoist in moved)
        skipped = sum(len(hoist.skips) + len(hoist.ranges) for hoist in moved)
        self.emit(Hoisted(runs, skipped, len(hoists) - len(moved)))
        if len(moved) < len(hoists):
            self.reload()

    def _follow(self, hoist: Hoist) -> None:
        """What comes after is known without reading it: the next occurrence, and what catches up."""
        for run in hoist.runs:
            if run.target is Target.DUE:
                later = replace(
                    hoist.row,
                    id=run.id,
                    kind=DueKind.LATER,
                    run_at=run.run_at,
                    scheduled_for=run.scheduled_for,
                    watermark=None,
                    executions_left=None,
                    tzdata=tzdata_version(),
                )
                self._remember(later)
        following = hoist.following
        if following is None:
            return
        self._remember(
            replace(
                hoist.row,
                id=following.id,
                kind=DueKind.OCCURRENCE,
                run_at=following.run_at,
                scheduled_for=following.scheduled_for,
                watermark=following.watermark,
                executions_left=following.executions_left,
                tzdata=following.tzdata,
            )
        )

    def _tell_skips(self, hoist: Hoist) -> None:
        for skip in hoist.skips:
            self.emit(OccurrencesSkipped(hoist.row.job_id, 1, skip.reason.value))
        for skipped in hoist.ranges:
            self.emit(OccurrencesSkipped(hoist.row.job_id, skipped.count, skipped.reason.value))

    def _rest_until_next(self) -> timedelta:
        if not self._heap:
            return _POLL
        ahead = self._heap[0][0] - self._settings.hoist_window - self.env.clock.now()
        return min(max(ahead, _BATCHING), _POLL)


class _NotOverError(Exception):
    """The pause has been made longer since its end was read."""


def _resume_if_over(snapshot: JobSnapshot) -> JobChange:
    until = snapshot.job.paused_until
    if until is None or until > snapshot.now:
        raise _NotOverError
    return changes.resume(snapshot)
