"""Whether the promises hold: the whole history of a database, read in one snapshot.

Most promises are one statement each (`sql/verify.sql`) that returns the rows which break it. The ledger is not: what
should have been recorded is known to the schedules alone, so versions and records are read as two sorted streams and
compared job by job (`domain/ledger.py`). Memory stays bounded whatever the size: the server sorts, we hold a page of
each stream and the first few rows of each violation.

A snapshot holds back the vacuum of a live system, so nothing is waited for while it is open. What only looks stuck (a
node buried this very moment, a place just freed) is looked at once more after a few seconds, in a snapshot of its own;
what is still there is stuck. If nobody is alive to act, that is no broken promise but a warning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from timeball.domain.civil_time import tzdata_version
from timeball.domain.ids import show, show_execution, show_job
from timeball.domain.instants import shown, stamp
from timeball.domain.ledger import Flaw, JobLedger, Outlook, Pending, Promise, Run, Span
from timeball.store.database import Connection, Database, Record, translated
from timeball.store.rooms import PARKED_AT
from timeball.store.rows import job_from
from timeball.store.statements import all_statements

LISTED = 20
# Longer than a lease, a burial, a take-over and a few sweeps together.
PATIENCE = timedelta(seconds=60)
SECOND_LOOK = timedelta(seconds=5)

# Two workers' readings of the one clock may differ by this much.
_TOLERANCE = timedelta(milliseconds=10)
_STUCK_LISTED = 1_000
_PAGE = 5_000
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that breaks a promise, and why; its columns as people read them."""

    why: str
    row: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.why}: {', '.join(f'{column} {value}' for column, value in self.row.items())}"

    def as_dict(self) -> dict[str, str]:
        return {"why": self.why, **self.row}


@dataclass(slots=True, kw_only=True)
class Check:
    """One promise: how many things were looked at, and the first of the rows that break it."""

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
        """Count a row, and keep it if it is one of the first."""
        if is_warning:
            self.total_warnings += 1
            kept = self.warnings
        else:
            self.total_violations += 1
            kept = self.violations
        if len(kept) < LISTED:
            kept.append(violation)

    def absorb(self, other: Check) -> None:
        """Add what another check found about the same promise."""
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
class Report:
    """What `verify` found, promise by promise."""

    checked_at: datetime
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether every promise holds; warnings do not break one."""
        return all(check.holds for check in self.checks)

    def check(self, code: str) -> Check:
        """The check of one promise."""
        return next(check for check in self.checks if check.code == code)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs, ready for JSON."""
        return {
            "holds": self.holds,
            "checked_at": stamp(self.checked_at),
            "checks": [check.as_dict() for check in self.checks],
        }

    def lines(self) -> Iterator[str]:
        """The report for people: what was checked, the rows that break a promise, and at the end the verdict."""
        for check in self.checks:
            yield from check.lines()
        yield self._verdict()

    def _verdict(self) -> str:
        warnings = sum(check.total_warnings for check in self.checks)
        aside = f"; {warnings:,} warnings" if warnings else ""
        broken = [check for check in self.checks if not check.holds]
        if not broken:
            return f"Every promise holds, as of {stamp(self.checked_at)}{aside}."
        rows = sum(check.total_violations for check in broken)
        names = ", ".join(check.code for check in broken)
        return f"Promises are broken, as of {stamp(self.checked_at)}: {names}, by {rows:,} in all{aside}."


async def verify(database: Database, now: datetime | None = None, *, second_look: timedelta = SECOND_LOOK) -> Report:
    """Check every promise over the whole history that is kept; changes nothing, and may run on a live system.

    *now* is for tests: without it the database's clock decides. What looks stuck is believed to be after a *second_look*.
    """
    async with _snapshot(database, now) as look:
        ledger = await _check_ledger(look)
        others = [await look.run(question) for question in _QUESTIONS]
        suspects = await look.suspects()
    if second_look and any(look.can_be_acted_upon(suspect) for suspect in suspects):
        await database.env.clock.sleep(second_look.total_seconds())
        async with _snapshot(database, now) as again:
            remaining = {_identity(suspect) for suspect in await again.suspects()}
        suspects = [suspect for suspect in suspects if _identity(suspect) in remaining]
    return Report(look.now, _in_order([*ledger, *others, look.stuck(suspects)]))


@dataclass(frozen=True, slots=True)
class _Question:
    """A promise that one statement can check; *counts* names the sizes of what it looks at."""

    code: str
    title: str
    unit: str
    statement: str
    counts: tuple[str, ...]


_UNFINISHED = ("due", "ready", "blocked", "running")
_QUESTIONS = (
    _Question("rooms", "An execution is in one room", "executions", "verify_rooms", (*_UNFINISHED, "finished")),
    _Question("S4", "Fences strictly increase", "attempts", "verify_fences", ("attempts", "running")),
    _Question("S5", "A claim has one outcome", "outcomes", "verify_outcomes", ("attempts", "started")),
    _Question("S6", "Nothing starts early", "starts", "verify_never_early", ("attempts", "started")),
    _Question("S7", "Tries are bounded", "executions", "verify_budgets", (*_UNFINISHED, "finished")),
    _Question("S8", "Nothing vanishes", "one-offs and unfinished", "verify_conservation", ("one_offs", *_UNFINISHED)),
    _Question("S9", "Limits are kept", "limits", "verify_limits", ("limits",)),
    _Question("overlap", "Runs of a job do not overlap", "runs", "verify_overlap", ("started_by_schedule",)),
    _Question("keys", "A key has one unfinished execution", "keys", "verify_keys", ("keys",)),
    _Question("due", "What is pending agrees with its job", "pending rows", "verify_due", ("pending",)),
)
_ORDER = ("S1", "S2", "S3", "rooms", "S4", "S5", "S6", "S7", "S8", "S9", "overlap", "keys", "due", "stuck")


def _in_order(checks: Sequence[Check]) -> list[Check]:
    """The checks as they are shown; the ledger and a statement may both have found something about one promise."""
    merged: dict[str, Check] = {}
    for check in checks:
        if check.code in merged:
            merged[check.code].absorb(check)
        else:
            merged[check.code] = check
    return [merged[code] for code in _ORDER]


@dataclass(frozen=True, slots=True)
class _Look:
    """One snapshot of the database."""

    database: Database
    connection: Connection
    now: datetime
    history_from: datetime | None
    sizes: Record

    async def run(self, question: _Question) -> Check:
        rows = await self._fetch(question.statement, LISTED)
        check = Check(code=question.code, title=question.title, unit=question.unit)
        check.checked = sum(self.sizes[name] for name in question.counts)
        for row in rows:
            check.note(_violation(row), is_warning=row.get("is_warning", False))
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
        check = Check(code="stuck", title="Nothing is stuck", unit="unfinished")
        check.checked = sum(self.sizes[name] for name in _UNFINISHED)
        for suspect in suspects:
            check.note(_violation(suspect), is_warning=not self.can_be_acted_upon(suspect))
        return check


def _identity(suspect: Record) -> tuple[Any, ...]:
    return suspect["why"], suspect["execution_id"], suspect["since"]


@asynccontextmanager
async def _snapshot(database: Database, now: datetime | None) -> AsyncIterator[_Look]:
    """A connection of its own, reading one snapshot by plans made for whole tables."""
    connection = await database.connect(is_patient=True)
    try:
        with translated(database.dsn):
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(_PLANS)
                moment = now or await database.fetch_value("moment", connection)
                history_from = await database.fetch_value("get_fact", connection, key="history_from")
                sizes = await database.fetch_row("verify_sizes", connection, now=moment)
                floor = None if history_from is None else datetime.fromisoformat(history_from)
                yield _Look(database, connection, moment, floor, sizes)
    finally:
        await connection.close()


# Whole tables are compared with one another, maybe before anybody has counted their rows: a plan that believes them empty
# would look each row up in all the others. And a proof that nobody waits for any more ends.
_PLANS = """
SET LOCAL enable_seqscan = on;
SET LOCAL enable_nestloop = off;
SET LOCAL client_connection_check_interval = '10s';
SET LOCAL jit = off;
SET LOCAL timezone = 'UTC';
SET LOCAL work_mem = '64MB';
"""


# the ledger


async def _check_ledger(look: _Look) -> list[Check]:
    """Compare what every version of every job names with what was recorded."""
    books = _Books(look)
    async for page in look.pages("verify_records"):
        for job_id, runs in groupby(page, key=itemgetter(0)):
            ledger = await books.of(job_id)
            for run in runs:
                ledger.enter(Run._make(run[1:]))
    return await books.close()


@dataclass(slots=True)
class _Flaws:
    """How many flaws there are of one promise, and the first of them with their jobs."""

    total: int = 0
    listed: list[tuple[UUID, str | None, Flaw]] = field(default_factory=list)

    def add(self, job_id: UUID, job: str | None, flaw: Flaw) -> None:
        self.total += 1
        if self.total <= LISTED:
            self.listed.append((job_id, job, flaw))


class _Books:
    """The ledgers of all jobs, one open at a time, in the order of the jobs."""

    def __init__(self, look: _Look) -> None:
        self._look = look
        self._versions = _grouped(look.pages("verify_versions"))
        self._next: tuple[UUID, list[Record]] | None = None
        self._is_started = False
        self._job_id: UUID | None = None
        self._ledger: JobLedger | None = None
        self._jobs = 0
        self._checked = 0
        self._not_checkable = dict.fromkeys(Promise, 0)
        self._flaws = {promise: _Flaws() for promise in Promise}

    async def of(self, job_id: UUID) -> JobLedger:
        """The ledger of a job; those of the jobs before it are closed."""
        if self._ledger is None or job_id != self._job_id:
            await self._pass_by(job_id)
            has_versions = self._next is not None and self._next[0] == job_id
            versions = self._next[1] if self._next is not None and has_versions else []
            self._open(job_id, versions)
            if has_versions:
                await self._turn()
        assert self._ledger is not None
        return self._ledger

    async def close(self) -> list[Check]:
        """Close the last ledger, and those of the jobs behind it, which have no records; returns what all of them found."""
        await self._pass_by(None)
        self._close_ledger()
        return [await self._check(promise) for promise in Promise]

    async def _pass_by(self, until: UUID | None) -> None:
        if not self._is_started:
            self._is_started = True
            await self._turn()
        while self._next is not None and (until is None or self._next[0] < until):
            self._open(*self._next)
            await self._turn()

    async def _turn(self) -> None:
        self._next = await anext(self._versions, None)

    def _open(self, job_id: UUID, versions: Sequence[Record]) -> None:
        self._close_ledger()
        self._job_id = job_id
        name = versions[-1]["name"] if versions else None
        outlook = _outlook(versions, self._look.history_from)

        def report(flaw: Flaw) -> None:
            self._flaws[flaw.promise].add(job_id, name, flaw)

        self._ledger = JobLedger([_span(row) for row in versions], outlook, report)

    def _close_ledger(self) -> None:
        ledger = self._ledger
        if ledger is None:
            return
        ledger.close()
        self._ledger = None
        self._jobs += 1
        self._checked += ledger.checked
        for promise, number in ledger.not_checkable.items():
            self._not_checkable[promise] += number

    async def _check(self, promise: Promise) -> Check:
        code, (title, unit) = promise.value, _TITLES[promise]
        number = {Promise.WATERMARK: self._jobs, Promise.BOUNDED: 0}.get(promise, self._checked)
        check = Check(code=code, title=title, unit=unit, checked=number, not_checkable=self._not_checkable[promise])
        flaws = self._flaws[promise]
        check.total_violations = flaws.total
        names = await self._look.records_at([(job_id, flaw.at) for job_id, _, flaw in flaws.listed if flaw.has_record])
        for job_id, job, flaw in flaws.listed:
            columns = {"job": job, "job_id": job_id, "version": flaw.version, "at": flaw.at}
            records = ", ".join(names.get((job_id, flaw.at), ())) if flaw.has_record else ""
            check.violations.append(_violation({"why": flaw.why, **columns, "records": records or None}))
        return check


_TITLES = {
    Promise.RECORDED_ONCE: ("Every occurrence is recorded exactly once", "occurrences"),
    Promise.NO_PHANTOM: ("Every record is one its version named", "occurrences"),
    Promise.WATERMARK: ("Watermarks stand where the records end", "jobs"),
    Promise.BOUNDED: ("Tries are bounded", "executions"),
}


async def _grouped(pages: AsyncIterator[list[Record]]) -> AsyncIterator[tuple[UUID, list[Record]]]:
    """The versions of each job together, across the borders of pages."""
    job_id: UUID | None = None
    versions: list[Record] = []
    async for page in pages:
        for row in page:
            if row["job_id"] != job_id:
                if job_id is not None:
                    yield job_id, versions
                job_id, versions = row["job_id"], []
            versions.append(row)
    if job_id is not None:
        yield job_id, versions


def _span(row: Record) -> Span:
    job = job_from(row)
    return Span(
        version=job.version,
        rule=job.rule,
        after=row["effective_from"],
        until=row["effective_until"],
        max_executions=job.max_executions,
    )


def _outlook(versions: Sequence[Record], history_from: datetime | None) -> Outlook:
    if not versions:
        return Outlook(history_from=history_from, tzdata=tzdata_version())
    row = versions[-1]
    pending = None
    if row["pending_for"] is not None:
        pending = Pending(scheduled_for=row["pending_for"], tzdata=row["pending_tzdata"])
    return Outlook(
        pending=pending,
        is_deleted=row["job_deleted_at"] is not None,
        paused_from=row["job_paused_from"],
        history_from=history_from,
        tzdata=tzdata_version(),
    )


# rows as people read them

_HIDDEN = frozenset({"why", "total", "is_warning", "actor"})


def _violation(row: Mapping[str, Any]) -> Violation:
    columns = {name: _text(name, value) for name, value in row.items() if name not in _HIDDEN and value is not None}
    return Violation(row["why"], columns)


def _text(column: str, value: Any) -> str:
    match value:
        case UUID() if column == "job_id":
            return show_job(value)
        case UUID() if column.endswith("execution_id"):
            return show_execution(value)
        case datetime():
            return stamp(value)
        case _:
            return shown(str(value), _LONGEST_TEXT)


def _listing(mark: str, violations: Sequence[Violation], total: int) -> Iterator[str]:
    for violation in violations:
        yield f"    {mark}{violation}"
    if total > len(violations):
        yield f"    {mark}and {total - len(violations):,} more"
