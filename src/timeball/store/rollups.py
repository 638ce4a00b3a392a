"""Rollups of the history by minute and by hour: folded from finished executions, read by metrics and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import groupby
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.rollup import (
    COUNTED_FIELDS,
    HOURS_KEPT,
    MINUTES_KEPT,
    DurationSketch,
    OccurrenceCounts,
    Rollup,
    RollupCounts,
    RollupPeriod,
    RollupQuery,
    bucket_of,
)
from timeball.domain.values.ids import JobId
from timeball.store.types import FoldResult

if TYPE_CHECKING:
    from timeball.store.db.database import Database

# The most transactions of one fold: each may have recorded some hundred outcomes.
_MAX_TRANSACTIONS = 2_000
_MAX_TRIMMED = 5_000
_MAX_GROUPS = 1_000
_MAX_MISSED = 5_000
_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The series of each queue and handler, and that of the whole installation.
_EACH_SERIES = UUID(int=0)
INSTALLATION_SERIES = UUID(int=2**128 - 1)


class RollupStore:
    """The rollups, and the fold that makes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fold(self, limit: int = _MAX_TRANSACTIONS) -> FoldResult:
        """Add the records since the last fold to the rollups: each record exactly once, in whichever process, also after a failure.

        There is one fold at a time; another that begins meanwhile finds nothing to do.
        """
        async with self._database.transaction() as connection:
            mark = await self._database.fetch_row("lock_fold", connection)
            if mark is None:
                return FoldResult(0, has_more=False)
            if not mark["is_from_elsewhere"]:
                row = await self._database.fetch_row("fold", connection, seen=mark["seen"], limit=limit)
                assert row is not None
                self._database.env.fault("fold.before_commit")
                return FoldResult(row["folded"], row["has_more"])
        await self._begin_anew()
        return FoldResult(0, has_more=True)

    async def _begin_anew(self) -> None:
        """Begin anew in a restored database, where the stored snapshot means nothing. It happens once, and may take long."""
        connection = await self._database.connect(without_timeout=True)
        try:
            async with connection.transaction():
                mark = await self._database.fetch_row("lock_fold", connection)
                if mark is not None and mark["is_from_elsewhere"]:
                    await self._database.fetch("forget_numbers", connection)
        finally:
            await connection.close()

    async def trim(self) -> bool:
        """Delete minutes and hours that are too old; True if there may be more of them."""
        gone = await self._database.fetch(
            "trim_rollups", minutes_kept=MINUTES_KEPT, hours_kept=HOURS_KEPT, limit=_MAX_TRIMMED
        )
        return len(gone) >= _MAX_TRIMMED

    async def series(self, query: RollupQuery, step: timedelta, *, with_sketches: bool = True) -> list[Rollup]:
        """The counts of each step of a window; steps without events are left out. Without sketches there are no percentiles."""
        rows = await self._database.fetch(
            "rollup_series",
            step=step,
            with_sketches=with_sketches,
            series=_series_of(query),
            all_of_handler=None if query.job_id else query.handler,
            queue=query.queue,
            handler=query.handler,
            **_window(query),
        )
        return [_rollup_from(row) for row in rows]

    async def groups(self, query: RollupQuery, limit: int = _MAX_GROUPS) -> list[Rollup]:
        """The counts of a window by queue and handler."""
        first_hour, last_hour = _whole_hours(query)
        rows = await self._database.fetch(
            "rollup_groups",
            series=query.job_id or _EACH_SERIES,
            first_hour=first_hour,
            last_hour=last_hour,
            queue=query.queue,
            handler=query.handler,
            limit=limit,
            **_window(query),
        )
        return [_rollup_from(row) for row in rows]

    async def tallies(
        self, untils: Mapping[UUID, datetime], since: datetime, span: RollupPeriod, step: timedelta
    ) -> dict[UUID, list[Rollup]]:
        """The counts of some series in each step of a window of their own, without sketches."""
        rows = await self._database.fetch(
            "rollup_tallies",
            series=list(untils),
            untils=list(untils.values()),
            since=since,
            span=span.value,
            step=step,
        )
        return {id_: [_tally_from(row) for row in own] for id_, own in groupby(rows, lambda row: row["series"])}

    async def missed(self, since: datetime, limit: int = _MAX_MISSED) -> list[MissedOccurrences]:
        """The jobs that have missed occurrences since an instant, to the hour; the latest first."""
        rows = await self._database.fetch("missed_of_jobs", since=since, limit=limit)
        jobs: dict[tuple[UUID, str | None], list[Any]] = {}
        for row in rows:
            jobs.setdefault((row["id"], row["name"]), []).append(row)
        return [
            MissedOccurrences(
                job_id=JobId(id_),
                name=name,
                counts={row["reason"]: row["number"] for row in own},
                mark=" ".join(sorted(f"{row['reason']} {row['at'].isoformat()} {row['latest']}" for row in own)),
            )
            for (id_, name), own in jobs.items()
        ]

    async def days(self, job_id: JobId, edges: Sequence[datetime], late_after: timedelta) -> list[DayCounts]:
        """What a recurring job did on each of these days, to the hour; *edges* are their beginnings and the end of the last one."""
        rows = await self._database.fetch(
            "rollup_days",
            job_id=job_id,
            edges=list(edges),
            since=edges[0],
            until=edges[-1],
            late_bucket=bucket_of(late_after.total_seconds()),
        )
        days = [DayCounts() for _ in edges[1:]]
        for row in rows:
            day = days[row["day"] - 1]
            if row["reason"] is None:
                day = replace(day, ran=row["ran"], dead=row["dead"], late=row["late"])
            else:
                day = replace(day, skipped={**day.skipped, row["reason"]: row["skipped"]})
            days[row["day"] - 1] = day
        return days


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedOccurrences:
    """The occurrences of a job that were missed, by reason. Their *mark* is another one as soon as more are missed."""

    job_id: JobId
    name: str | None
    counts: Mapping[str, int]
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCounts:
    """What the hours of a day count of a job: occurrences that ran, deaths, late beginnings, and skips by reason."""

    ran: int = 0
    dead: int = 0
    late: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)


def series_of_queue(name: str) -> UUID:
    """The series of a queue; the statement `fold` computes the same id."""
    return UUID(md5(f"queue {name}".encode(), usedforsecurity=False).hexdigest())


def _series_of(query: RollupQuery) -> UUID:
    if query.job_id is not None:
        return query.job_id
    return INSTALLATION_SERIES if query.queue is None else series_of_queue(query.queue)


def _window(query: RollupQuery) -> dict[str, Any]:
    return {"span": query.span.value, "since": query.since, "until": query.until}


def _whole_hours(query: RollupQuery) -> tuple[datetime, datetime]:
    """The whole hours within a window of minutes; none for other windows."""
    first, last = query.since + (_EPOCH - query.since) % _HOUR, query.until - (query.until - _EPOCH) % _HOUR
    is_apart = query.span is not RollupPeriod.MINUTE or first >= last
    return (query.until, query.until) if is_apart else (first, last)


def _rollup_from(row: Any) -> Rollup:
    return Rollup(
        at=row["at"],
        queue=row["queue"],
        handler=row["handler"],
        counts=RollupCounts(**{name: row[name] for name in COUNTED_FIELDS}),
        occurrences=OccurrenceCounts(row["ran"], dict(zip(row["skip_reasons"], row["skip_counts"], strict=True))),
        lateness=DurationSketch(row["lateness_buckets"], row["lateness_counts"]),
        lateness_seconds=row["lateness_seconds"],
        duration=DurationSketch(row["duration_buckets"], row["duration_counts"]),
        duration_seconds=row["duration_seconds"],
    )


def _tally_from(row: Any) -> Rollup:
    tally = RollupCounts(
        starts=row["starts"],
        succeeded=row["succeeded"],
        cancelled=row["cancelled"],
        dead=row["dead"],
        expected=row["expected"],
    )
    return Rollup(at=row["at"], counts=tally, duration_seconds=row["duration_seconds"])
