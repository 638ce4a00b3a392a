"""Verifies every promise from the data alone: one snapshot of the whole history, compared with the schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.scheduling.civil_time import MICROSECOND, tzdata_version
from timeball.domain.scheduling.ledger import (
    JobLedger,
    LedgerBounds,
    LedgerEntry,
    LedgerFlaw,
    PendingOccurrence,
    Promise,
    QuickLedgerCheck,
    VersionPeriod,
)
from timeball.domain.scheduling.schedule import Cron, Schedule
from timeball.domain.values.ids import filling_id
from timeball.store.db.rows import CitedCalendars, rule_from
from timeball.store.verify.checks import (
    LISTED,
    UNFINISHED,
    PromiseCheck,
    PromiseQuery,
    VerifyReport,
    VerifySnapshot,
    snapshot,
    violation_from,
)

if TYPE_CHECKING:
    from timeball.store.db.database import Database, Record

# Only the schedules tell which occurrences must have a record. So versions and records are read as two sorted streams, and compared job
# by job (`domain/scheduling/ledger.py`). The server sorts, and this process holds one page of each stream, so memory stays bounded.
# A job that a quick check finds in order needs no ledger.


async def check_ledger(look: VerifySnapshot) -> list[PromiseCheck]:
    """Compare the occurrences of every version of every job with the records."""
    books = _LedgerPage(look)
    async for page in look.pages("verify_records"):
        jobs = [
            (job_id, [LedgerEntry._make(row[1:]) for row in rows]) for job_id, rows in groupby(page, key=itemgetter(0))
        ]
        for job_id, runs in jobs[:-1]:
            await books.enter(job_id, runs, is_all=True)
        # The records of the last job may continue on the next page.
        await books.enter(*jobs[-1], is_all=False)
    return await books.close()


@dataclass(slots=True)
class _LedgerFlaws:
    """The number of flaws of one promise, and the first of them with their jobs."""

    total: int = 0
    listed: list[tuple[UUID, str | None, LedgerFlaw]] = field(default_factory=list)

    def add(self, job_id: UUID, job: str | None, flaw: LedgerFlaw) -> None:
        self.total += 1
        if self.total <= LISTED:
            self.listed.append((job_id, job, flaw))


class _LedgerPage:
    """The ledgers of all jobs, one open at a time, in the order of the jobs."""

    def __init__(self, look: VerifySnapshot) -> None:
        self._look = look
        self._tzdata = tzdata_version()
        self._glance = QuickLedgerCheck(look.history_from)
        self._versions = _grouped(look.pages("verify_versions"))
        self._next: tuple[UUID, list[Record]] | None = None
        self._is_started = False
        self._job_id: UUID | None = None
        self._ledger: JobLedger | None = None
        self._jobs = 0
        self._checked = 0
        self._not_checkable = dict.fromkeys(Promise, 0)
        self._flaws = {promise: _LedgerFlaws() for promise in Promise}

    async def enter(self, job_id: UUID, runs: Sequence[LedgerEntry], *, is_all: bool) -> None:
        """Enter the next records of a job; *is_all* if these are the last ones of the job."""
        if self._ledger is None or job_id != self._job_id:
            await self._pass_by(job_id)
            versions = await self._take(job_id)
            calendars = await self._look.calendars(versions)
            if is_all and self._is_plain(versions, runs, calendars):
                return
            self._open(job_id, versions, calendars)
        assert self._ledger is not None
        for run in runs:
            self._ledger.enter(run)

    async def close(self) -> list[PromiseCheck]:
        """Close the last ledger, and check the remaining jobs, which have no records; returns the checks."""
        await self._pass_by(None)
        self._close_ledger()
        return [await self._check(promise) for promise in Promise]

    async def _pass_by(self, until: UUID | None) -> None:
        if not self._is_started:
            self._is_started = True
            await self._turn()
        while self._next is not None and (until is None or self._next[0] < until):
            job_id, versions = self._next
            calendars = await self._look.calendars(versions)
            if not self._is_plain(versions, (), calendars):
                self._open(job_id, versions, calendars)
            await self._turn()

    async def _take(self, job_id: UUID) -> list[Record]:
        """The versions of a job, if there are any."""
        if self._next is None or self._next[0] != job_id:
            return []
        versions = self._next[1]
        await self._turn()
        return versions

    def _is_plain(self, versions: Sequence[Record], runs: Sequence[LedgerEntry], calendars: CitedCalendars) -> bool:
        """Whether the quick check finds a job in order; if so, the job is counted."""
        if len(versions) != 1 or not _stands(versions[0], runs):
            return False
        if not self._glance.sees_order(_span(versions[0], calendars), runs, versions[0]["pending_for"]):
            return False
        self._jobs += 1
        self._checked += sum(run.number or 0 for run in runs)
        return True

    async def _turn(self) -> None:
        self._next = await anext(self._versions, None)

    def _open(self, job_id: UUID, versions: Sequence[Record], calendars: CitedCalendars) -> None:
        self._close_ledger()
        self._job_id = job_id
        name = versions[-1]["name"] if versions else None
        outlook = _outlook(versions, self._look.history_from, self._tzdata)

        def report(flaw: LedgerFlaw) -> None:
            self._flaws[flaw.promise].add(job_id, name, flaw)

        self._ledger = JobLedger([_span(row, calendars) for row in versions], outlook, report)

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

    async def _check(self, promise: Promise) -> PromiseCheck:
        code, (title, unit) = promise.value, _TITLES[promise]
        number = {Promise.WATERMARK: self._jobs, Promise.BOUNDED: 0}.get(promise, self._checked)
        check = PromiseCheck(
            code=code, title=title, unit=unit, checked=number, not_checkable=self._not_checkable[promise]
        )
        flaws = self._flaws[promise]
        check.total_violations = flaws.total
        names = await self._look.records_at([(job_id, flaw.at) for job_id, _, flaw in flaws.listed if flaw.has_record])
        for job_id, job, flaw in flaws.listed:
            columns = {"job": job, "job_id": job_id, "version": flaw.version, "at": flaw.at}
            records = ", ".join(names.get((job_id, flaw.at), ())) if flaw.has_record else ""
            check.violations.append(violation_from({"why": flaw.why, **columns, "records": records or None}))
        return check


_TITLES = {
    Promise.RECORDED_ONCE: ("Every occurrence is recorded exactly once", "occurrences"),
    Promise.NO_PHANTOM: ("Every record is one its version named", "occurrences"),
    Promise.WATERMARK: ("Watermarks stand where the records end", "jobs"),
    Promise.BOUNDED: ("Attempts are bounded", "executions"),
}


async def check_backfills(look: VerifySnapshot) -> PromiseCheck:
    """Compare the executions of backfills with the schedules: each is at an instant of one, and what never ran is filled in once."""
    check = PromiseCheck(code="backfills", title=_BACKFILLS, unit="executions")
    job_id: UUID | None = None
    rules: list[Schedule] = []
    previous: UUID | None = None
    async for page in look.pages("verify_backfills"):
        for row in page:
            if row["job_id"] != job_id:
                job_id = row["job_id"]
                versions = await look.database.fetch("ledger_versions", look.connection, job_id=job_id)
                calendars = await look.calendars(versions)
                rules = [rule_from(version, calendars) for version in versions]
            check.checked += 1
            why = _flaw_of_backfill(row, previous)
            if why is None and not any(_names(rule, row["scheduled_for"]) for rule in rules):
                if any(isinstance(rule, Cron) for rule in rules):
                    # Another edition of the time-zone data, or of a calendar, may have named it.
                    check.not_checkable += 1
                else:
                    why = "a backfill ran an occurrence that no version of its job names"
            if why is not None:
                columns = {"job_id": job_id, "execution_id": row["id"], "at": row["scheduled_for"]}
                check.note(violation_from({"why": why, **columns}), is_warning=False)
            previous = row["id"]
    return check


def _flaw_of_backfill(row: Record, previous: UUID | None) -> str | None:
    if row["id"] == previous:
        return "an occurrence was filled in twice"
    if row["has_run"] and row["id"] == filling_id(row["job_id"], row["scheduled_for"]):
        return "an occurrence that ran was filled in"
    return None


def _names(rule: Schedule, at: datetime) -> bool:
    return rule.is_recurring and rule.next_after(at - MICROSECOND) == at


async def _grouped(pages: AsyncIterator[list[Record]]) -> AsyncIterator[tuple[UUID, list[Record]]]:
    """The versions of each job, across the borders of pages."""
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


def _stands(version: Record, runs: Sequence[LedgerEntry]) -> bool:
    """Whether the watermark of a recurring job has reached its last record, and its version's beginning."""
    if version["pending_for"] is None or version["kind"] not in ("every", "cron", "rrule"):
        return True
    watermark = version["pending_watermark"]
    return watermark is not None and watermark >= max([version["effective_from"], *(run.last for run in runs[-1:])])


def _span(row: Record, calendars: CitedCalendars) -> VersionPeriod:
    return VersionPeriod(
        version=row["version"],
        rule=rule_from(row, calendars),
        after=row["effective_from"],
        until=row["effective_until"],
        max_executions=row["max_executions"],
        tzdata=row["tzdata"],
    )


def _outlook(versions: Sequence[Record], history_from: datetime | None, tzdata: str) -> LedgerBounds:
    if not versions:
        return LedgerBounds(history_from=history_from, tzdata=tzdata)
    row = versions[-1]
    pending = None
    if row["pending_for"] is not None:
        pending = PendingOccurrence(
            scheduled_for=row["pending_for"], tzdata=row["pending_tzdata"], watermark=row["pending_watermark"]
        )
    return LedgerBounds(
        pending=pending,
        is_deleted=row["job_deleted_at"] is not None,
        paused_from=row["job_paused_from"],
        history_from=history_from,
        tzdata=tzdata,
    )


# Except for the ledger, each promise is one statement (`sql/verify.sql`) that returns the rows which break it.
#
# An open snapshot holds back the vacuum of a live system, so nothing waits while it is open. Some rows only look stuck: the node of an
# execution is just being removed, or a place has just become free. They are read once more after a few seconds, in another snapshot;
# those that are still there are stuck. If no node is alive that could act, that is a warning and not a broken promise.

RECHECK_AFTER = timedelta(seconds=5)

_BACKFILLS = "What was missed is filled in once"

_QUERIES = (
    PromiseQuery(
        "tables", "An execution is in one state table", "executions", "verify_state_tables", (*UNFINISHED, "finished")
    ),
    PromiseQuery("S4", "Fences strictly increase", "attempts", "verify_fences", ("attempts", "running")),
    PromiseQuery("S5", "A claim has one outcome", "outcomes", "verify_outcomes", ("attempts", "started")),
    PromiseQuery("ends", "What has ended agrees with its end", "outcomes", "verify_ends", ("attempts", "finished")),
    PromiseQuery("S6", "Nothing starts early", "starts", "verify_never_early", ("attempts", "started")),
    PromiseQuery("S7", "Attempts are bounded", "executions", "verify_budgets", (*UNFINISHED, "finished")),
    PromiseQuery("S8", "Nothing vanishes", "one-offs and unfinished", "verify_conservation", ("one_offs", *UNFINISHED)),
    PromiseQuery("S9", "Limits are kept", "limits", "verify_limits", ("limits",)),
    PromiseQuery("overlap", "Runs of a job do not overlap", "runs", "verify_overlap", ("started_by_schedule",)),
    PromiseQuery("expiry", "Only what has not begun in time expires", "expiring", "verify_expiry", ("expiring",)),
    PromiseQuery("freezes", "Nothing starts in a freeze", "freezes", "verify_freezes", ("freezes",)),
    PromiseQuery(
        "follow-ups", "Every end is followed as it should be, once", "ends", "verify_follow_ups", ("followed",)
    ),
    PromiseQuery("backfills", _BACKFILLS, "executions", "verify_fillings", ("filled_ranges",)),
    PromiseQuery("keys", "A key has one unfinished execution", "keys", "verify_keys", ("keys",)),
    PromiseQuery("due", "What is pending agrees with its job", "pending rows", "verify_due", ("pending",)),
    PromiseQuery("waiting", "What waits or runs agrees with its job", "unfinished", "verify_waiting", UNFINISHED),
)
_ORDER = (
    "S1",
    "S2",
    "S3",
    "tables",
    "S4",
    "S5",
    "ends",
    "S6",
    "S7",
    "S8",
    "S9",
    "overlap",
    "expiry",
    "freezes",
    "follow-ups",
    "backfills",
    "keys",
    "due",
    "waiting",
    "stuck",
)


async def verify(
    database: Database, now: datetime | None = None, *, second_look: timedelta = RECHECK_AFTER
) -> VerifyReport:
    """Check every promise over the whole history that is kept; changes nothing, and may run on a live system.

    *now* is for tests: without it the clock of the database decides. Rows that look stuck are checked again after *second_look*.
    """
    async with snapshot(database, now) as look:
        ledger = await check_ledger(look)
        others = [await look.run(question) for question in _QUERIES]
        others.append(await check_backfills(look))
        suspects = await look.suspects()
    if second_look and any(look.can_be_acted_upon(suspect) for suspect in suspects):
        await database.env.clock.sleep(second_look.total_seconds())
        async with snapshot(database, now) as again:
            remaining = {_identity(suspect) for suspect in await again.suspects()}
        suspects = [suspect for suspect in suspects if _identity(suspect) in remaining]
    return VerifyReport(look.now, _in_order([*ledger, *others, look.stuck(suspects)]))


def _in_order(checks: Sequence[PromiseCheck]) -> list[PromiseCheck]:
    """The checks in the order of the report; the ledger and a statement may both check one promise."""
    merged: dict[str, PromiseCheck] = {}
    for check in checks:
        if check.code in merged:
            merged[check.code].absorb(check)
        else:
            merged[check.code] = check
    return [merged[code] for code in _ORDER]


def _identity(suspect: Record) -> tuple[Any, ...]:
    return suspect["why"], suspect["execution_id"], suspect["since"]
