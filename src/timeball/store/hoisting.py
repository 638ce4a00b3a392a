"""From `due` to `ready`, shortly before the time has come: what falls due is read, planned elsewhere, and moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from timeball.domain.hints import Hints
from timeball.domain.ids import ExecutionId, Incarnation, JobId
from timeball.domain.misfire import SkipReason
from timeball.domain.occurrences import DueMark, DueRow, Hoist, NextOccurrence
from timeball.store.moves import SUPERSEDED, Moves
from timeball.store.rows import due_row_from, hoist_arrays

# Rows that wait for a person, not for a time: the scheduler never looks that far.
PARKED_AT = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The shards a scheduler owns, each with the epoch of its acquisition."""

    incarnation: Incarnation
    epochs: Mapping[int, int]


class Hoisting(Moves):
    """What a scheduler does with the rows of its shards."""

    async def look_ahead(self, bounds: Mapping[int, datetime], horizon: timedelta, limit: int) -> list[DueMark]:
        """What of these shards, from each one's bound on, falls due within the horizon: at most *limit* a shard, the first ones."""
        rows = await self._database.fetch(
            "look_ahead", shards=list(bounds), bounds=list(bounds.values()), horizon=horizon, limit=limit
        )
        return [DueMark._make(row) for row in rows]

    async def due_rows(self, ids: Sequence[ExecutionId]) -> list[DueRow]:
        """These rows of `due`, in no order; those that are gone are missing."""
        return [due_row_from(row) for row in await self._database.fetch("due_rows", ids=list(ids))]

    async def busy_jobs(self, job_ids: Sequence[JobId]) -> set[JobId]:
        """Those of the jobs that have an unfinished execution which is no longer only scheduled."""
        rows = await self._database.fetch("busy_jobs", job_ids=list(job_ids))
        return {JobId(row["job_id"]) for row in rows}

    async def hoist(
        self, hoists: Sequence[Hoist], ownership: Ownership, hoist_window: timedelta, tzdata: str
    ) -> set[ExecutionId]:
        """Do what was planned for these rows of `due`, each only if it still is as it was read; returns those done.

        Taking the row and writing its successor are one statement: no occurrence can be recorded twice, none can fall between.
        """
        # Locked in this order: two batches with the same rows do not wait for each other.
        in_order = sorted(hoists, key=lambda hoist: hoist.row.id.int)
        rows = await self._database.fetch(
            "hoist",
            **hoist_arrays(in_order, self._database.env.new_id),
            hoist_window=hoist_window,
            shards=list(ownership.epochs),
            epochs=list(ownership.epochs.values()),
            incarnation=ownership.incarnation,
            tzdata=tzdata,
        )
        done = {ExecutionId(row["id"]) for row in rows}
        await self._after_hoist([hoist for hoist in hoists if hoist.row.id in done])
        return done

    async def _after_hoist(self, hoists: Sequence[Hoist]) -> None:
        hints = Hints()
        limits = {hoist.row.limit_key for hoist in hoists if hoist.row.limit_key is not None and hoist.runs}
        for hoist in hoists:
            for run in hoist.runs:
                hints.add_lane(hoist.row.queue, hoist.row.priority, run.run_at, 1)
        self._hinter.tell(hints)
        superseded = [hoist.row.job_id for hoist in hoists if hoist.stop_running]
        if superseded:
            await self.stop_jobs(superseded, SUPERSEDED)
        if limits:
            await self.promote(sorted(limits))

    async def park(self, rows: Sequence[DueRow]) -> None:
        """Let waiting retries and snoozes wait until their job is resumed, if it still is paused."""
        await self._database.fetch(
            "park",
            parked_at=PARKED_AT,
            job_ids=sorted({row.job_id for row in rows}),
            ids=[row.id for row in rows],
            run_ats=[row.run_at for row in rows],
        )

    async def occurrences_of_other_tzdata(self, shards: Sequence[int], tzdata: str, limit: int) -> list[DueRow]:
        """Pending occurrences that were computed by older time-zone data than ours."""
        rows = await self._database.fetch(
            "occurrences_of_other_tzdata", shards=list(shards), tzdata=tzdata, limit=limit
        )
        return [due_row_from(row) for row in rows]

    async def move_occurrence(self, row: DueRow, fresh: NextOccurrence) -> bool:
        """Put another instant in the place of a pending occurrence, if that is still as it was read."""
        moved = await self._database.fetch(
            "move_occurrence",
            id=row.id,
            run_at=row.run_at,
            version=row.version,
            next_id=fresh.id,
            next_run_at=fresh.run_at,
            next_for=fresh.scheduled_for,
            tzdata=fresh.tzdata,
        )
        return bool(moved)

    async def end_occurrence(self, row: DueRow, tzdata: str) -> bool:
        """Record a pending occurrence as not run, its job having come to its end by these data, if it is still as it was read."""
        ended = await self._database.fetch(
            "end_occurrence",
            id=row.id,
            run_at=row.run_at,
            version=row.version,
            tzdata=tzdata,
            reason=SkipReason.ENDED.value,
        )
        return bool(ended)
