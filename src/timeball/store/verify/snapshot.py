"""One snapshot of the database, read by plans that were made for whole tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from timeball.domain.ids import show, show_execution
from timeball.store.connections import Connection
from timeball.store.database import Database, Record, translated
from timeball.store.rooms import PARKED_AT
from timeball.store.statements import all_statements
from timeball.store.verify.report import LISTED, Check, violation_from

# Longer than a lease, a burial, a take-over and a few sweeps together.
PATIENCE = timedelta(seconds=60)
# The sizes of the rooms in which nothing has ended.
UNFINISHED = ("due", "ready", "blocked", "running")

# Two workers' readings of the one clock may differ by this much.
_TOLERANCE = timedelta(milliseconds=10)
_STUCK_LISTED = 1_000
_PAGE = 5_000

# Whole tables are compared with one another, maybe before anybody has counted their rows: a plan that believes them empty
# would look each row up in all the others. And a proof that nobody waits for any more ends; one that thinks about a page of
# occurrences does not, though the server sees nothing of it meanwhile: it holds no lock that anybody waits for.
PLANS = """
SET LOCAL enable_seqscan = on;
SET LOCAL enable_nestloop = off;
SET LOCAL client_connection_check_interval = '10s';
SET LOCAL idle_in_transaction_session_timeout = '10min';
SET LOCAL jit = off;
SET LOCAL timezone = 'UTC';
SET LOCAL work_mem = '64MB';
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A promise that one statement can check; *counts* names the sizes of what it looks at."""

    code: str
    title: str
    unit: str
    statement: str
    counts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """One snapshot of the database."""

    database: Database
    connection: Connection
    now: datetime
    history_from: datetime | None
    sizes: Record

    async def run(self, question: Question) -> Check:
        """Ask for the rows that break a promise."""
        rows = await self._fetch(question.statement, LISTED)
        check = Check(code=question.code, title=question.title, unit=question.unit)
        check.checked = sum(self.sizes[name] for name in question.counts)
        for row in rows:
            check.note(violation_from(row), is_warning=row.get("is_warning", False))
        check.total_violations = next((row["total"] for row in rows if not row.get("is_warning")), 0)
        check.total_warnings = next((row["total"] for row in rows if row.get("is_warning")), 0)
        return check

    async def _fetch(self, statement: str, listed: int) -> list[Record]:
        known = {
            "now": self.now,
            "history_from": self.history_from,
            "listed": listed,
            "parked_at": PARKED_AT,
            "patience": PATIENCE,
            "tolerance": _TOLERANCE,
        }
        wanted = {name: known[name] for name in all_statements()[statement].parameters}
        return await self.database.fetch(statement, self.connection, **wanted)

    async def pages(self, statement: str) -> AsyncIterator[list[Record]]:
        """The rows of a statement, a page at a time; the server keeps the rest."""
        cursor = await self.connection.cursor(all_statements()[statement].numbered())
        while page := await cursor.fetch(_PAGE):
            yield page

    async def records_at(self, places: Sequence[tuple[UUID, datetime]]) -> dict[tuple[UUID, datetime], list[str]]:
        """The names of the records that jobs have at some instants."""
        job_ids, ats = [job_id for job_id, _ in places], [at for _, at in places]
        found: dict[tuple[UUID, datetime], list[str]] = {}
        if not places:
            return found
        for row in await self.database.fetch("verify_records_at", self.connection, job_ids=job_ids, ats=ats):
            name = show("skp", row["id"]) if row["is_range"] else show_execution(row["id"])
            found.setdefault((row["job_id"], row["at"]), []).append(name)
        return found

    async def suspects(self) -> list[Record]:
        """What looks stuck, the oldest first."""
        return await self._fetch("verify_stuck", _STUCK_LISTED)

    def can_be_acted_upon(self, suspect: Record) -> bool:
        """Whether somebody is alive who should act."""
        counts = {"scheduler": self.sizes["schedulers"], "worker": self.sizes["workers"], "nobody": 0}
        return bool(counts[suspect["actor"]])

    def stuck(self, suspects: Sequence[Record]) -> Check:
        """What is stuck; a warning, where nobody is alive who should act."""
        check = Check(code="stuck", title="Nothing is stuck", unit="unfinished")
        check.checked = sum(self.sizes[name] for name in UNFINISHED)
        for suspect in suspects:
            check.note(violation_from(suspect), is_warning=not self.can_be_acted_upon(suspect))
        return check


@asynccontextmanager
async def snapshot(database: Database, now: datetime | None) -> AsyncIterator[Look]:
    """A connection of its own, reading one snapshot by plans made for whole tables."""
    connection = await database.connect(is_patient=True)
    try:
        with translated(database.dsn):
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(PLANS)
                moment = now or await database.fetch_value("moment", connection)
                history_from = await database.fetch_value("get_fact", connection, key="history_from")
                sizes = await database.fetch_row("verify_sizes", connection, now=moment)
                floor = None if history_from is None else datetime.fromisoformat(history_from)
                yield Look(database, connection, moment, floor, sizes)
    finally:
        await connection.close()
