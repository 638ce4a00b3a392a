"""What happened, by the minute and by the hour: folded from the history, read by everybody who counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from timeball.domain.rollup import HOURS_KEPT, MINUTES_KEPT, TALLIED, Rollup, RollupQuery, Tally
from timeball.domain.sketch import Sketch
from timeball.store.database import Database

# Transactions a fold takes at once: each may have recorded some hundred outcomes.
_MOST_TRANSACTIONS = 2_000
_MOST_TRIMMED = 5_000
_MOST_GROUPS = 1_000
# Whose rollups are those of the whole house.
WHOLE = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold did: how many records it took, and whether there is more to take at once."""

    records: int
    has_more: bool


class Rollups:
    """The rollups, and the fold that makes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fold(self, most: int = _MOST_TRANSACTIONS) -> Folded:
        """Take what was recorded since the last fold into the rollups: each record exactly once, whoever folds, however it ends.

        One folds at a time; who comes meanwhile finds nothing to do.
        """
        async with self._database.transaction() as connection:
            mark = await self._database.fetch_row("lock_fold", connection)
            if mark is None:
                return Folded(0, has_more=False)
            if not mark["is_from_elsewhere"]:
                row = await self._database.fetch_row("fold", connection, seen=mark["seen"], most=most)
                assert row is not None
                self._database.env.fault("fold.before_commit")
                return Folded(row["folded"], row["has_more"])
        await self._begin_anew()
        return Folded(0, has_more=True)

    async def _begin_anew(self) -> None:
        """Past marks mean nothing in a database that was restored elsewhere. It may take long, and it happens once."""
        connection = await self._database.connect(is_patient=True)
        try:
            async with connection.transaction():
                mark = await self._database.fetch_row("lock_fold", connection)
                if mark is not None and mark["is_from_elsewhere"]:
                    await self._database.fetch("forget_numbers", connection)
        finally:
            await connection.close()

    async def trim(self) -> bool:
        """Forget minutes and hours that are too old; True if there may be more of them."""
        gone = await self._database.fetch(
            "trim_rollups", minutes_kept=MINUTES_KEPT, hours_kept=HOURS_KEPT, most=_MOST_TRIMMED
        )
        return len(gone) >= _MOST_TRIMMED

    async def series(self, wanted: RollupQuery, step: timedelta) -> list[Rollup]:
        """What happened in each step of a window; steps in which nothing did are left out."""
        given = _parameters(wanted)
        if wanted.job_id is None and wanted.queue is None and wanted.handler is None:
            given["job_id"] = WHOLE
        rows = await self._database.fetch("rollup_series", step=step, **given)
        return [_rollup_from(row) for row in rows]

    async def groups(self, wanted: RollupQuery, most: int = _MOST_GROUPS) -> list[Rollup]:
        """What happened in a window, by queue and handler."""
        rows = await self._database.fetch("rollup_groups", most=most, **_parameters(wanted))
        return [_rollup_from(row) for row in rows]


def _parameters(wanted: RollupQuery) -> dict[str, Any]:
    return {
        "span": wanted.span.value,
        "job_id": wanted.job_id,
        "since": wanted.since,
        "until": wanted.until,
        "queue": wanted.queue,
        "handler": wanted.handler,
    }


def _rollup_from(row: Any) -> Rollup:
    return Rollup(
        at=row["at"],
        queue=row["queue"],
        handler=row["handler"],
        tally=Tally(**{name: row[name] for name in TALLIED}),
        lateness=Sketch(row["lateness_buckets"], row["lateness_counts"]),
        lateness_seconds=row["lateness_seconds"],
        duration=Sketch(row["duration_buckets"], row["duration_counts"]),
        duration_seconds=row["duration_seconds"],
    )
