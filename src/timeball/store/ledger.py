"""Reads the ledger of a job: the records of its occurrences between two ids, and what it has ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.execution import ExecutionState, Origin
from timeball.domain.scheduling.ledger import VersionPeriod
from timeball.domain.scheduling.verdicts import JobOutlook, JobPause, LedgerLine, Verdict, key_of_range, verdict_of
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.db.rows import pending_from, rule_from

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.database import Database


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
        lines = [line_from(row) for row in rows if row["origin"] == Origin.SCHEDULE or row["id"] == job_id]
        lines = [
            line for line in lines if read_to is None or (line.key >= read_to if backwards else line.key <= read_to)
        ]
        return LedgerBatch(sorted(lines, key=_by_key, reverse=backwards), read_to, len(rows))

    async def one_off(self, job_id: JobId) -> LedgerLine | None:
        """The line of an enqueued one-off that has ended; it has the id of its job."""
        row = await self._database.fetch_row("ledger_one_off", job_id=job_id)
        return None if row is None else line_from(row)

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
