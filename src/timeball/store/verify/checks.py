"""One snapshot of the database, the checks that read it, and the report of what they found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.scheduling.civil_time import format_instant
from timeball.domain.values.ids import format_execution_id, format_id, format_job_id
from timeball.errors import quote_text
from timeball.store.db.pool import Connection, translated_errors
from timeball.store.db.statements import all_statements
from timeball.store.types import PARKED_AT

if TYPE_CHECKING:
    from timeball.store.db.database import Database, Record
    from timeball.store.db.rows import CitedCalendars

# The number of violations of a promise that are shown.
LISTED = 20
_LONGEST_TEXT = 200
_HIDDEN = frozenset({"why", "total", "is_warning", "actor"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that breaks a promise, and why; its columns are formatted for people."""

    why: str
    row: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.why}: {', '.join(f'{column} {value}' for column, value in self.row.items())}"

    def as_dict(self) -> dict[str, str]:
        return {"why": self.why, **self.row}


@dataclass(slots=True, kw_only=True)
class PromiseCheck:
    """One promise: how many records were checked, and the first violations."""

    code: str
    title: str
    unit: str
    checked: int = 0
    not_checkable: int = 0
    violations: list[Violation] = field(default_factory=list)
    total_violations: int = 0
    warnings: list[Violation] = field(default_factory=list)
    total_warnings: int = 0

    @property
    def holds(self) -> bool:
        return self.total_violations == 0

    def note(self, violation: Violation, *, is_warning: bool) -> None:
        """Count a violation, and keep it if it is one of the first."""
        if is_warning:
            self.total_warnings += 1
            kept = self.warnings
        else:
            self.total_violations += 1
            kept = self.violations
        if len(kept) < LISTED:
            kept.append(violation)

    def absorb(self, other: PromiseCheck) -> None:
        """Add the result of another check of the same promise."""
        self.checked += other.checked
        self.not_checkable += other.not_checkable
        self.violations = [*self.violations, *other.violations][:LISTED]
        self.total_violations += other.total_violations
        self.warnings = [*self.warnings, *other.warnings][:LISTED]
        self.total_warnings += other.total_warnings

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "title": self.title,
            "holds": self.holds,
            "checked": self.checked,
            "unit": self.unit,
            "not_checkable": self.not_checkable,
            "total_violations": self.total_violations,
            "violations": [violation.as_dict() for violation in self.violations],
            "total_warnings": self.total_warnings,
            "warnings": [warning.as_dict() for warning in self.warnings],
        }

    def lines(self) -> Iterator[str]:
        verdict = "holds" if self.holds else f"BROKEN by {self.total_violations:,}"
        unsure = f", {self.not_checkable:,} not checkable with these time-zone data" if self.not_checkable else ""
        yield f"{self.code:<8} {self.title}: {verdict} ({self.checked:,} {self.unit}{unsure})"
        yield from _listing("! ", self.violations, self.total_violations)
        yield from _listing("warning: ", self.warnings, self.total_warnings)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`, promise by promise."""

    checked_at: datetime
    checks: Sequence[PromiseCheck]

    @property
    def holds(self) -> bool:
        """Whether every promise holds; warnings do not break one."""
        return all(check.holds for check in self.checks)

    def check(self, code: str) -> PromiseCheck:
        """The check of one promise."""
        return next(check for check in self.checks if check.code == code)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs, ready for JSON."""
        return {
            "holds": self.holds,
            "checked_at": format_instant(self.checked_at),
            "checks": [check.as_dict() for check in self.checks],
        }

    def lines(self) -> Iterator[str]:
        """The report for people: what was checked, the violations, and at the end the verdict."""
        for check in self.checks:
            yield from check.lines()
        yield self._verdict()

    def _verdict(self) -> str:
        warnings = sum(check.total_warnings for check in self.checks)
        aside = f"; {warnings:,} warnings" if warnings else ""
        broken = [check for check in self.checks if not check.holds]
        if not broken:
            return f"Every promise holds, as of {format_instant(self.checked_at)}{aside}."
        rows = sum(check.total_violations for check in broken)
        names = ", ".join(check.code for check in broken)
        return f"Promises are broken, as of {format_instant(self.checked_at)}: {names}, by {rows:,} in all{aside}."


def violation_from(row: Mapping[str, Any]) -> Violation:
    """A violation from its row."""
    columns = {name: _text(name, value) for name, value in row.items() if name not in _HIDDEN and value is not None}
    return Violation(row["why"], columns)


def _text(column: str, value: Any) -> str:
    match value:
        case UUID() if column == "job_id":
            return format_job_id(value)
        case UUID() if column.endswith("execution_id"):
            return format_execution_id(value)
        case datetime():
            return format_instant(value)
        case _:
            return quote_text(str(value), _LONGEST_TEXT)


def _listing(mark: str, violations: Sequence[Violation], total: int) -> Iterator[str]:
    for violation in violations:
        yield f"    {mark}{violation}"
    if total > len(violations):
        yield f"    {mark}and {total - len(violations):,} more"


# Longer than a lease, the removal of a node, a takeover of shards and a few sweeps together.
STUCK_AFTER = timedelta(seconds=60)

# The sizes of the tables of unfinished executions.
UNFINISHED = ("due", "ready", "blocked", "running")

# The readings of the clock of the database by two workers may differ by this much.
_TOLERANCE = timedelta(milliseconds=10)
_STUCK_LISTED = 1_000
_PAGE = 5_000


# The statements compare whole tables, perhaps before an ANALYZE: with nested loops, a plan for empty tables would look up each row in all
# others. The server ends the verification if the client is gone. It does not end it while the client computes a page of occurrences
# without a statement: the transaction has no lock that others wait for.
PLANNER_SETTINGS = """
SET LOCAL enable_seqscan = on;
SET LOCAL enable_nestloop = off;
SET LOCAL client_connection_check_interval = '10s';
SET LOCAL idle_in_transaction_session_timeout = '10min';
SET LOCAL jit = off;
SET LOCAL timezone = 'UTC';
SET LOCAL work_mem = '64MB';
"""


@dataclass(frozen=True, slots=True)
class PromiseQuery:
    """A promise that one statement checks; *counts* are the names of the sizes of what it reads."""

    code: str
    title: str
    unit: str
    statement: str
    counts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifySnapshot:
    """One snapshot of the database."""

    database: Database
    connection: Connection
    now: datetime
    history_from: datetime | None
    sizes: Record

    async def run(self, question: PromiseQuery) -> PromiseCheck:
        """Check a promise."""
        rows = await self._fetch(question.statement, LISTED)
        check = PromiseCheck(code=question.code, title=question.title, unit=question.unit)
        check.checked = sum(self.sizes[name] for name in question.counts)
        for row in rows:
            check.note(violation_from(row), is_warning=row.get("is_warning", False))
        check.total_violations = next((row["total"] for row in rows if not row.get("is_warning")), 0)
        check.total_warnings = next((row["total"] for row in rows if row.get("is_warning")), 0)
        return check

    async def _fetch(self, statement: str, listed: int) -> list[Record]:
        values = {
            "now": self.now,
            "history_from": self.history_from,
            "listed": listed,
            "parked_at": PARKED_AT,
            "patience": STUCK_AFTER,
            "tolerance": _TOLERANCE,
        }
        parameters = {name: values[name] for name in all_statements()[statement].parameters}
        return await self.database.fetch(statement, self.connection, **parameters)

    async def pages(self, statement: str) -> AsyncIterator[list[Record]]:
        """The rows of a statement, a page at a time; the server keeps the rest."""
        cursor = await self.connection.cursor(all_statements()[statement].numbered())
        while page := await cursor.fetch(_PAGE):
            yield page

    async def calendars(self, versions: Sequence[Record]) -> CitedCalendars:
        """The calendars that versions of jobs cite."""
        return await self.database.calendars.of(versions, self.connection)

    async def records_at(self, places: Sequence[tuple[UUID, datetime]]) -> dict[tuple[UUID, datetime], list[str]]:
        """The names of the records of jobs at some instants."""
        job_ids, ats = [job_id for job_id, _ in places], [at for _, at in places]
        names: dict[tuple[UUID, datetime], list[str]] = {}
        if not places:
            return names
        for row in await self.database.fetch("verify_records_at", self.connection, job_ids=job_ids, ats=ats):
            name = format_id("skp", row["id"]) if row["is_range"] else format_execution_id(row["id"])
            names.setdefault((row["job_id"], row["at"]), []).append(name)
        return names

    async def suspects(self) -> list[Record]:
        """Executions and nodes that look stuck, the oldest first."""
        return await self._fetch("verify_stuck", _STUCK_LISTED)

    def can_be_acted_upon(self, suspect: Record) -> bool:
        """Whether a node is alive that should act."""
        counts = {"scheduler": self.sizes["schedulers"], "worker": self.sizes["workers"], "none": 0}
        return bool(counts[suspect["actor"]])

    def stuck(self, suspects: Sequence[Record]) -> PromiseCheck:
        """The check for stuck executions; a warning, if no node is alive that should act."""
        check = PromiseCheck(code="stuck", title="Nothing is stuck", unit="unfinished")
        check.checked = sum(self.sizes[name] for name in UNFINISHED)
        for suspect in suspects:
            check.note(violation_from(suspect), is_warning=not self.can_be_acted_upon(suspect))
        return check


@asynccontextmanager
async def snapshot(database: Database, now: datetime | None) -> AsyncIterator[VerifySnapshot]:
    """One snapshot on a connection of its own, with planner settings for whole tables."""
    connection = await database.connect(without_timeout=True)
    try:
        with translated_errors(database.dsn):
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(PLANNER_SETTINGS)
                moment = now or await database.fetch_value("moment", connection)
                history_from = await database.fetch_value("get_fact", connection, key="history_from")
                sizes = await database.fetch_row("verify_sizes", connection, now=moment)
                floor = None if history_from is None else datetime.fromisoformat(history_from)
                yield VerifySnapshot(database, connection, moment, floor, sizes)
    finally:
        await connection.close()
