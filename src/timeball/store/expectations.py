"""Reads what is expected of jobs and queues, and how they do. The cost depends on how many of them expect something."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.alerts import AlertMember
from timeball.domain.expectations import MAX_FAILURES, ExpectingJob, ExpectingQueue, JobRecord, expecting_job
from timeball.domain.values.ids import ExecutionId, JobId, format_job_id
from timeball.store.types import PARKED_AT

if TYPE_CHECKING:
    from timeball.store.db.database import Database

_PAGE = 500
# How many of the latest ends of a job are looked at, unless it allows more failures in a row.
_ENDS = 20
# A job with more unfinished executions is late by one of those that are looked at, or soon will be.
_LOOKED_AT = 100
_HOURS = 1_000
_MAX_QUEUES = 1_000


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """A pause that lasts: since when, by whom, why, and until when."""

    since: datetime
    actor: str | None
    reason: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class ExpectingJobState:
    """A job of which something is expected, how it has done, and its pause."""

    job: ExpectingJob
    record: JobRecord
    pause: PauseRecord | None


class ExpectationStore:
    """Reads jobs and queues of which something is expected."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def jobs(self, now: datetime) -> AsyncIterator[list[ExpectingJobState]]:
        """Every job of which something is expected, some at a time."""
        after = UUID(int=0)
        while rows := await self._database.fetch("expecting_jobs", after=after, limit=_PAGE):
            yield await self._states(rows, now)
            after = rows[-1]["id"]
            if len(rows) < _PAGE:
                return

    async def _states(self, rows: Sequence[Any], now: datetime) -> list[ExpectingJobState]:
        jobs = {row["id"]: _job_from(row) for row in rows}
        records = await self._ends(jobs, now)
        for job_id, dead in (await self._dead(jobs.values())).items():
            records[job_id] = replace(records[job_id], dead=dead)
        for job_id, fields in (await self._unfinished(jobs.values(), now)).items():
            records[job_id] = replace(records[job_id], **fields)
        return [ExpectingJobState(jobs[row["id"]], records[row["id"]], _pause_from(row)) for row in rows]

    async def _ends(self, jobs: Mapping[Any, ExpectingJob], now: datetime) -> dict[Any, JobRecord]:
        numbers = [max(_ENDS, (job.max_failures_in_a_row or 0) + 1) for job in jobs.values()]
        rows = await self._database.fetch("recent_ends_of_jobs", ids=list(jobs), numbers=numbers)
        starting = [job_id for job_id, job in jobs.items() if job.start_within is not None]
        ranges = {
            row["id"]: (row["last_at"], row["reason"])
            for row in await self._database.fetch("missed_ranges_of_jobs", ids=starting, looked_at=_ENDS)
        }
        # Among many failures the latest success may lie further back than was looked.
        unknown = [
            row["id"]
            for row in rows
            if row["last_success_at"] is None and row["oldest_at"] is not None and jobs[row["id"]].succeed_every
        ]
        hours = {
            row["id"]: min(row["at"], now)
            for row in await self._database.fetch("latest_success_hours", ids=unknown, limit=_HOURS)
        }
        return {
            row["id"]: JobRecord(
                last_success_at=row["last_success_at"] or hours.get(row["id"]),
                failures_in_a_row=row["failures"],
                missed=_missed(row, ranges.get(row["id"])),
            )
            for row in rows
        }

    async def _dead(self, jobs: Collection[ExpectingJob]) -> dict[UUID, int]:
        ids = [job.id for job in jobs if job.max_dead is not None]
        rows = await self._database.fetch("dead_of_jobs", ids=ids, numbers=[MAX_FAILURES + 1] * len(ids)) if ids else []
        return {row["id"]: row["dead"] for row in rows}

    async def _unfinished(self, jobs: Collection[ExpectingJob], now: datetime) -> dict[UUID, dict[str, Any]]:
        asked = [job for job in jobs if job.start_within is not None or job.finish_within is not None]
        if not asked:
            return {}
        rows = await self._database.fetch(
            "unfinished_of_jobs",
            ids=[job.id for job in asked],
            begin_bys=[_before(now, job.start_within) for job in asked],
            end_bys=[_before(now, job.finish_within) for job in asked],
            looked_at=_LOOKED_AT,
            parked_at=PARKED_AT,
        )
        return {row["job_id"]: {name: _execution(row, name) for name in ("not_begun", "not_ended")} for row in rows}

    async def queues(self, is_served: Any) -> list[ExpectingQueue]:
        """The queues of which something is expected; *is_served* says of a name whether a living worker serves it."""
        rows = await self._database.fetch("expecting_queues", limit=_MAX_QUEUES)
        return [
            ExpectingQueue(
                name=row["name"],
                max_oldest_wait=_seconds(row["max_oldest_wait_seconds"]),
                must_be_served=row["must_be_served"],
                oldest_at=row["oldest_at"],
                is_served=is_served(row["name"]),
            )
            for row in rows
        ]

    async def pauses(self, queues: Collection[str]) -> dict[str, PauseRecord]:
        """The pauses of these queues that last."""
        rows = await self._database.fetch("open_pauses_of_queues", queues=sorted(queues))
        return {
            row["queue"]: PauseRecord(row["from_at"], row["actor"], row["reason"], row["paused_until"]) for row in rows
        }

    async def members(self, job_ids: Collection[JobId]) -> dict[JobId, AlertMember]:
        """Jobs as alerts name them."""
        rows = await self._database.fetch("members_of_jobs", ids=list(job_ids)) if job_ids else []
        return {
            JobId(row["id"]): AlertMember(
                name=row["name"] or format_job_id(row["id"]),
                job_id=JobId(row["id"]),
                queue=row["queue"],
                tags=tuple(row["tags"] or ()),
            )
            for row in rows
        }


def _job_from(row: Any) -> ExpectingJob:
    return expecting_job(
        orjson.loads(row["expect"]),
        id=JobId(row["id"]),
        name=row["name"] or format_job_id(row["id"]),
        handler=row["handler"],
        queue=row["queue"],
        tags=tuple(row["tags"] or ()),
        created_at=row["created_at"],
    )


def _pause_from(row: Any) -> PauseRecord | None:
    if row["paused_at"] is None:
        return None
    return PauseRecord(row["paused_at"], None, row["pause_reason"], row["paused_until"])


def _missed(row: Any, latest_range: tuple[datetime, str] | None) -> tuple[datetime, str] | None:
    single = None if row["missed_for"] is None else (row["missed_for"], row["missed_reason"])
    missed = max((each for each in (single, latest_range) if each is not None), default=None)
    begun = row["last_begun_for"]
    return None if missed is None or (begun is not None and begun > missed[0]) else missed


def _execution(row: Any, name: str) -> tuple[ExecutionId, datetime] | None:
    return None if row[name] is None else (ExecutionId(row[name]), row[f"{name}_at"])


def _before(now: datetime, span: timedelta | None) -> datetime | None:
    return None if span is None else now - span


def _seconds(number: int | None) -> timedelta | None:
    return None if number is None else timedelta(seconds=number)
