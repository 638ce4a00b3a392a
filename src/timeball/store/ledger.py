"""Reads the ledger of a job: the records of its occurrences between two ids, and what it has ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.policies import Verdict
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MIN_INSTANT
from timeball.domain.scheduling.ledger import VersionPeriod
from timeball.domain.scheduling.verdicts import JobOutlook, JobPause, LedgerLine, key_of_range, verdict_of
from timeball.domain.values.ids import ExecutionId, JobId, filling_id, first_id_at, id_created_at
from timeball.store.db.rows import pending_from, rule_from

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.database import Database

_BATCH = 1_000
_MILLISECOND = timedelta(milliseconds=1)
# What a ledger tells of: occurrences, and what backfills made of them.
_TOLD = (Origin.SCHEDULE, Origin.BACKFILL, Origin.AFTER)


class LedgerReads(StrEnum):
    """Which records are read: all of them, only what was skipped, or only what has not ended; each by a statement of its own."""

    ALL = "all"
    SKIPS = "skips"
    UNFINISHED = "unfinished"


# The statements of each, forwards and backwards.
_STATEMENTS = {
    LedgerReads.ALL: ("ledger_records", "ledger_records_back"),
    LedgerReads.SKIPS: ("ledger_skips", "ledger_skips_back"),
    LedgerReads.UNFINISHED: ("ledger_unfinished", "ledger_unfinished_back"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWindow:
    """The records whose keys lie between *low* and *high*, both left out; *since* and *until* are the instants of these keys.

    A range that begins before *since* and ends within the window belongs to it.
    """

    since: datetime
    until: datetime
    low: UUID
    high: UUID

    @classmethod
    def between(cls, since: datetime, until: datetime) -> LedgerWindow:
        """The records of [since, until]."""
        since, until = max(since, MIN_INSTANT), min(until, MAX_INSTANT)
        low, high = UUID(int=max(first_id_at(since).int - 1, 0)), first_id_at(until + _MILLISECOND)
        return cls(since=since, until=until, low=low, high=high)

    def beyond(self, key: UUID, *, backwards: bool) -> LedgerWindow:
        """The rest of the window behind a key."""
        at = id_created_at(key)
        if backwards:
            return replace(self, high=min(self.high, key), until=min(self.until, at + _MILLISECOND))
        return replace(self, low=max(self.low, key), since=max(self.since, at))


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """Lines in the order in which they were asked for. *read_to* is the key up to which all were read; None if there are no more."""

    lines: Sequence[LedgerLine]
    read_to: UUID | None
    looked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """A skip range, and when it was recorded. One that was not counted has two occurrences at least."""

    first: datetime
    last: datetime
    count: int
    reason: str
    version: int
    recorded_at: datetime


class LedgerStore:
    """Reads the ledger of a job."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def outlook(self, job: Job) -> tuple[JobOutlook, datetime | None]:
        """What a job has ahead, and the instant before which its history was deleted."""
        row = await self._database.fetch_row("ledger_outlook", job_id=job.id)
        if row is None:
            return JobOutlook(
                job_id=job.id, rule=job.rule, version=job.version, now=self._database.env.clock.now()
            ), None
        pause = None
        # An enqueued execution of a paused job is parked, and runs when the pause is over.
        if (
            row["id"] is None
            and row["paused_at"] is not None
            and row["paused_from"] is not None
            and not job.is_enqueued
        ):
            pause = JobPause(since=row["paused_from"], until=row["paused_until"], left=row["paused_left"])
        outlook = JobOutlook(
            job_id=job.id,
            rule=job.rule,
            version=job.version if row["version"] is None else row["version"],
            now=row["moment"],
            pending=None if row["id"] is None else pending_from(row),
            is_frozen=bool(row["is_frozen"]),
            pause=pause,
        )
        return outlook, row["history_from"]

    async def records(
        self, job_id: JobId, window: LedgerWindow, reads: LedgerReads, limit: int, *, backwards: bool
    ) -> LedgerBatch:
        """The first records of a window, or the last ones: up to *limit* rows of each kind are read."""
        bounds: dict[str, Any] = {"low": window.low, "high": window.high}
        if reads is not LedgerReads.UNFINISHED:
            bounds |= {"since": window.since, "until": window.until}
        rows = await self._database.fetch(_STATEMENTS[reads][backwards], job_id=job_id, limit=limit, **bounds)
        read_to = _read_to(rows, limit, backwards=backwards)
        lines = [line_from(row) for row in rows if row["origin"] in _TOLD or row["id"] == job_id]
        lines = [
            line for line in lines if read_to is None or (line.key >= read_to if backwards else line.key <= read_to)
        ]
        lines = await self._with_fillings(job_id, sorted(lines, key=_by_key, reverse=backwards))
        return LedgerBatch(lines, read_to, len(rows))

    async def one_off(self, job_id: JobId) -> LedgerLine | None:
        """The line of an enqueued one-off that has ended; it has the id of its job."""
        row = await self._database.fetch_row("ledger_one_off", job_id=job_id)
        return None if row is None else line_from(row)

    async def _with_fillings(self, job_id: JobId, lines: Sequence[LedgerLine]) -> list[LedgerLine]:
        """The lines, with those of single skipped occurrences saying whether they were filled in."""
        fillings = {
            line.key: filling_id(job_id, line.first)
            for line in lines
            if line.verdict is Verdict.SKIPPED and not line.is_range and line.origin is Origin.SCHEDULE
        }
        if not fillings:
            return list(lines)
        rows = await self._database.fetch("existing_executions", ids=list(fillings.values()))
        found = {row["id"] for row in rows}
        return [replace(line, filled=1) if fillings.get(line.key) in found else line for line in lines]

    async def all_records(self, job_id: JobId, since: datetime, until: datetime) -> list[LedgerLine]:
        """Every record of [since, until], for spans with few of them."""
        lines: dict[UUID, LedgerLine] = {}
        window = LedgerWindow.between(since, until)
        while True:
            batch = await self.records(job_id, window, LedgerReads.ALL, _BATCH, backwards=False)
            lines |= {line.key: line for line in batch.lines}
            if batch.read_to is None:
                return list(lines.values())
            window = window.beyond(batch.read_to, backwards=False)

    async def retries(self, job_id: JobId, ids: Sequence[ExecutionId]) -> dict[ExecutionId, list[ExecutionState]]:
        """The states of the retries of some executions, and of the retries of these."""
        states: dict[ExecutionId, list[ExecutionState]] = {}
        if ids:
            for row in await self._database.fetch("retries_of", job_id=job_id, ids=list(ids)):
                states.setdefault(ExecutionId(row["root"]), []).append(ExecutionState(row["state"]))
        return states

    async def ranges(self, job_id: JobId, until: datetime, limit: int) -> list[RecordedRange]:
        """The latest skip ranges of a job that begin before an instant, the latest first."""
        rows = await self._database.fetch("ledger_ranges", job_id=job_id, until=until, limit=limit)
        return [
            RecordedRange(
                first=row["first_at"],
                last=row["last_at"],
                count=2 if row["occurrences"] is None else row["occurrences"],
                reason=row["reason"],
                version=row["version"],
                recorded_at=row["recorded_at"],
            )
            for row in rows
        ]

    async def versions(self, job_id: JobId) -> list[VersionPeriod]:
        """The versions of a recurring job, the first one first."""
        rows = await self._database.fetch("ledger_versions", job_id=job_id)
        return await self._periods(rows)

    async def versions_leaving_out(self, job_id: JobId, since: datetime, until: datetime) -> list[VersionPeriod]:
        """The versions that answer for a part of [since, until] and may leave something out of their schedules, the first one first."""
        since, until = max(since, MIN_INSTANT), min(until, MAX_INSTANT)
        rows = await self._database.fetch("ledger_versions_leaving_out", job_id=job_id, since=since, until=until)
        return await self._periods(rows)

    async def last_recorded_at(self, job_id: JobId) -> datetime | None:
        """The last occurrence of the schedule of which there is a record; None if there is none."""
        window, size = LedgerWindow.between(MIN_INSTANT, MAX_INSTANT), 1
        while True:
            batch = await self.records(job_id, window, LedgerReads.ALL, size, backwards=True)
            last = max((line.last for line in batch.lines if line.origin is Origin.SCHEDULE), default=None)
            if last is not None or batch.read_to is None:
                return last
            # The job was triggered, retried or backfilled after its last occurrence.
            window, size = window.beyond(batch.read_to, backwards=True), _BATCH

    async def version_at(self, job_id: JobId, instant: datetime) -> VersionPeriod | None:
        """The version of a recurring job that was responsible for an instant; None before the first one."""
        rows = await self._database.fetch("ledger_version_at", job_id=job_id, at=instant)
        return next(iter(await self._periods(rows)), None)

    async def _periods(self, rows: Sequence[Any]) -> list[VersionPeriod]:
        calendars = await self._database.calendars.of(rows)
        return [
            VersionPeriod(
                version=row["version"],
                rule=rule_from(row, calendars),
                after=row["effective_from"],
                until=row["effective_until"],
                max_executions=row["max_executions"],
                tzdata=row["tzdata"],
            )
            for row in rows
        ]


def line_from(row: Any) -> LedgerLine:
    """A record as a line of the ledger."""
    if row["is_range"]:
        return LedgerLine(
            key=key_of_range(row["first_at"]),
            first=row["first_at"],
            last=row["last_at"],
            count=row["occurrences"],
            verdict=Verdict.SKIPPED,
            version=row["version"],
            tzdata=row["tzdata"],
            is_range=True,
            reason=row["reason"],
            filled=row["filled"],
        )
    state = ExecutionState(row["state"])
    return LedgerLine(
        key=row["id"],
        first=row["first_at"],
        last=row["last_at"],
        count=1,
        verdict=verdict_of(state, row["reason"]),
        version=row["version"],
        tzdata=row["tzdata"],
        reason=row["reason"],
        execution_id=ExecutionId(row["id"]),
        state=state,
        origin=Origin(row["origin"]),
    )


def _by_key(line: LedgerLine) -> UUID:
    return line.key


def _read_to(rows: Sequence[Any], limit: int, *, backwards: bool) -> UUID | None:
    """The key up to which every kind of record was read: the last one of the kind that was cut off first."""
    ended, ranges, unfinished = [], [], []
    for row in rows:
        if row["is_range"]:
            ranges.append(key_of_range(row["first_at"]))
        elif ExecutionState(row["state"]).is_final:
            ended.append(row["id"])
        else:
            unfinished.append(row["id"])
    cut = [keys for keys in (ended, ranges, unfinished) if len(keys) >= limit]
    ends = [min(keys) if backwards else max(keys) for keys in cut]
    if not ends:
        return None
    return max(ends) if backwards else min(ends)
