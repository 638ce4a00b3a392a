"""Hoists executions just before their time.

The scheduler looks through the next moments of its shards, once a second and whenever a hint says so, and reads whole what it
does not hold yet. What falls due within the hoist window is planned (`domain.occurrences.plan`) and moved in batches, each move
guarded by the row itself. The following occurrence of a job that was hoisted is known without reading it, and is held at once if
it is near; what lies further ahead than the horizon is never held. Nothing in memory is truth: a row that is gone or changed is
simply not moved.
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
from timeball.domain.events import Emit, Hoisted, OccurrencesRecorded, OccurrencesSkipped
from timeball.domain.execution import Origin
from timeball.domain.hints import Hints
from timeball.domain.ids import JobId
from timeball.domain.misfire import Overlap, SkipReason
from timeball.domain.occurrences import (
    DueKind,
    DueMark,
    DueRow,
    Hoist,
    LookAgain,
    Target,
    Timetable,
    plan,
    recomputed,
)
from timeball.engine.service import AT_ONCE, Service
from timeball.engine.shards import ShardKeeper
from timeball.engine.upcoming import Place, Upcoming
from timeball.env import Env
from timeball.errors import NotFound
from timeball.settings import SchedulerSettings
from timeball.store.interface import AuditEntry, JobStore, Ownership, RoomStore

_ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
_POLL = timedelta(seconds=1)
# Between two polls there is so many times as much time as one took.
_WORK_TO_POLLING = 9
# What others computed by older time-zone data is looked for when shards come to us; and seldom besides, unless some of it is near.
_ZONES_SECONDS = 60.0
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
        # What is hoisted further ahead than we look must be read earlier still, before the poll that would find it.
        self._look_ahead = max(settings.look_ahead, settings.hoist_window + 2 * _POLL)
        self._upcoming = Upcoming()
        self._unread: list[Place] = []
        self._full: dict[int, Place] = {}
        self._timetables: dict[JobId, Timetable] = {}
        self._unprepared: deque[DueRow] = deque()
        self._bounds: dict[int, datetime] = {}
        self._owned: dict[int, int] = {}
        self._next_poll = float("-inf")
        self._next_look_at_zones = float("-inf")

    def heed(self, hints: Hints) -> None:
        """Read what a hint announces, if it is ours and near."""
        if hints.look_everywhere:
            self.reload()
        for shard, run_at in hints.shards.items():
            if shard in self._keeper.epochs and self._is_near(run_at):
                self._read_from(shard, run_at)
                self.wake()

    def reload(self) -> None:
        """Read everything again: our share has changed, or hints may have been lost."""
        self._next_poll = float("-inf")
        self.wake()

    async def tick(self) -> timedelta:
        await self._look()
        has_read = await self._read()
        more = await self._hoist_due() or await self._prepare() or has_read
        return AT_ONCE if more else self._rest_until_next()

    # reading

    async def _look(self) -> None:
        """Find out what there is to hold: everything once a second, or seldomer if it takes long; else what was asked for."""
        begun = self.env.clock.monotonic()
        is_poll = self.is_time(self._next_poll)
        if is_poll:
            self._next_poll = begun + _POLL.total_seconds()
            self._begin_anew()
            if self.is_time(self._next_look_at_zones):
                await self._refresh_zones()
        self._read_on()
        await self._look_from_bounds()
        if is_poll:
            self._poll_no_more_than_pays(begun)

    async def _look_from_bounds(self) -> None:
        bounds, self._bounds = self._bounds, {}
        if not bounds:
            return
        marks = await self._rooms.look_ahead(bounds, self._look_ahead, self._settings.page)
        self._note_full_shards(marks)
        for mark in marks:
            if not self._upcoming.holds(mark):
                heapq.heappush(self._unread, (mark.run_at, mark.id))

    def _poll_no_more_than_pays(self, begun: float) -> None:
        """With a hundred thousand due at once, looking through them every second would leave no time to move them."""
        ended = self.env.clock.monotonic()
        # Unless somebody has asked meanwhile to have everything read again.
        if self._next_poll > begun:
            self._next_poll = max(self._next_poll, ended + _WORK_TO_POLLING * (ended - begun))

    def _begin_anew(self) -> None:
        self._bounds = dict.fromkeys(self._keeper.epochs, _ALWAYS)
        self._unread.clear()
        self._full.clear()
        owned = dict(self._keeper.epochs)
        if owned != self._owned:
            self._owned = owned
            self._upcoming.keep_only(owned)
            self._look_at_zones_soon()

    def _note_full_shards(self, marks: Sequence[DueMark]) -> None:
        """A shard that gave a whole page has more behind the last row of it."""
        if len(marks) < self._settings.page:
            return
        pages: dict[int, list[Place]] = {}
        for mark in marks:
            pages.setdefault(mark.shard, []).append((mark.run_at, mark.id))
        for shard, places in pages.items():
            if len(places) >= self._settings.page:
                last = max(places)
                self._full[shard] = min(last, self._full.get(shard, last))

    def _read_on(self) -> None:
        """Look behind a full page once all of it has been moved, and not before: each look goes through the page again."""
        ahead = min((place for place in (self._upcoming.first, *self._unread[:1]) if place is not None), default=None)
        for shard, last in list(self._full.items()):
            if ahead is None or ahead > last:
                del self._full[shard]
                self._read_from(shard, last[0])

    def _read_from(self, shard: int, bound: datetime) -> None:
        self._bounds[shard] = min(bound, self._bounds.get(shard, bound))

    async def _read(self) -> bool:
        """Read a batch of what is not held yet, the nearest first, so that nothing which is due waits for the rest."""
        number = min(len(self._unread), self._settings.batch)
        if not number:
            return False
        for row in await self._rooms.due_rows([heapq.heappop(self._unread)[1] for _ in range(number)]):
            self._remember(row)
        return True

    def _remember(self, row: DueRow) -> None:
        if self._is_near(row.run_at) and self._upcoming.add(row):
            if self._needs_timetable(row):
                self._unprepared.append(row)
            if row.tzdata is not None and row.kind is DueKind.OCCURRENCE and row.tzdata < tzdata_version():
                self._look_at_zones_soon()

    def _is_near(self, instant: datetime) -> bool:
        return instant <= self.env.clock.now() + self._look_ahead

    def _look_at_zones_soon(self) -> None:
        """With the next poll: what is held is mostly read a second or two before it is hoisted."""
        self._next_look_at_zones = float("-inf")

    async def _refresh_zones(self) -> None:
        """When the time-zone data are newer than those an occurrence was computed by, compute it again."""
        begun = self.env.clock.monotonic()
        stale = await self._rooms.occurrences_of_other_tzdata(
            list(self._keeper.epochs), tzdata_version(), self._settings.page
        )
        await self._load_timetables(stale)
        for row in stale:
            job = self._timetable(row)
            if job is None:
                continue
            fresh = recomputed(row, job)
            if fresh is not None:
                await self._rooms.move_occurrence(row, fresh)
            elif await self._rooms.end_occurrence(row, tzdata_version()):
                self.emit(OccurrencesSkipped(row.job_id, 1, SkipReason.ENDED.value))
        if len(stale) < self._settings.page:
            self._next_look_at_zones = begun + _ZONES_SECONDS

    # hoisting

    async def _hoist_due(self) -> bool:
        now = await self._now()
        rows = self._upcoming.take(now + self._settings.hoist_window, self._settings.batch)
        if not rows:
            return False
        rows = await self._set_aside(rows)
        await self._load_timetables(rows)
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

    async def _set_aside(self, rows: list[DueRow]) -> list[DueRow]:
        """What is no execution to run: resumptions, and the second tries of paused jobs."""
        paused = [row for row in rows if row.is_paused and row.kind in (DueKind.RETRY, DueKind.SNOOZE)]
        if paused:
            await self._rooms.park(paused)
            # One whose job was resumed since it was read has not been parked, and is to be read again.
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
            await self._jobs.change(row.job_id, _resume_if_over, _ITSELF)
        except (NotFound, _NotOverError):
            return

    def _put_back(self, row: DueRow, at: datetime) -> None:
        # We take those whose hoist window has begun, so a row to be seen at an instant is filed a window later.
        self._upcoming.put(row, at + self._settings.hoist_window)

    async def _prepare(self) -> bool:
        """Read the timetables of what is not due yet: when thousands fall due together, there is no time for it then."""
        rows = [self._unprepared.popleft() for _ in range(min(len(self._unprepared), self._settings.batch))]
        await self._load_timetables(rows)
        return bool(rows)

    def _needs_timetable(self, row: DueRow) -> bool:
        return row.origin is Origin.SCHEDULE and self._timetable(row) is None

    async def _load_timetables(self, rows: Iterable[DueRow]) -> None:
        wanted = {row.job_id for row in rows if self._needs_timetable(row)}
        if wanted:
            if len(self._timetables) > self._settings.definitions:
                self._timetables.clear()
            self._timetables |= await self._jobs.timetables(sorted(wanted, key=lambda id_: id_.bytes))

    def _timetable(self, row: DueRow) -> Timetable | None:
        job = self._timetables.get(row.job_id)
        return job if job is not None and job.version == row.version else None

    async def _busy(self, rows: Sequence[DueRow]) -> set[JobId]:
        asked = set()
        for row in rows:
            job = self._timetable(row) if row.origin is Origin.SCHEDULE else None
            if job is not None and job.overlap is not Overlap.ALLOW and row.kind in (DueKind.OCCURRENCE, DueKind.LATER):
                asked.add(job.id)
        return await self._rooms.busy_jobs(list(asked)) if asked else set()

    def _plan(self, row: DueRow, now: datetime, *, is_busy: bool) -> Hoist | None:
        job = self._timetable(row)
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
        self._tell_lateness(moved)
        if len(moved) < len(hoists):
            self.reload()

    def _tell_lateness(self, moved: Sequence[Hoist]) -> None:
        """Against the exact instants: what runs later by its jitter is recorded later, too."""
        now = self.env.clock.now()
        instants = [hoist.row.scheduled_for for hoist in moved if hoist.row.watermark is not None]
        if instants:
            late = tuple((now - instant).total_seconds() for instant in instants if instant < now)
            self.emit(OccurrencesRecorded(len(instants), late))

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
        first = self._upcoming.first
        if first is None:
            return _POLL
        ahead = first[0] - self._settings.hoist_window - self.env.clock.now()
        return min(max(ahead, _BATCHING), _POLL)


class _NotOverError(Exception):
    """The pause has been made longer since its end was read."""


def _resume_if_over(snapshot: JobSnapshot) -> JobChange:
    until = snapshot.job.paused_until
    if until is None or until > snapshot.now:
        raise _NotOverError
    return changes.resume(snapshot)
