"""The ledger of a job: what became of each occurrence of a span, and what is expected.

A page is read in batches until it is full. Each batch reads at most a page of every kind of record, in the order of an index. A filter
may pass over many records: a page that has looked at `MAX_LOOKED_AT` of them ends there, and its cursor goes on from that place. So a
page costs the same whatever the span is.

What calendars and clock changes leave out has no record: it is computed from the versions of the job, and each line of it is put before the
first record that comes after it.

`page` answers fronts. `lines` and `at` are for other questions about occurrences: all lines of a span, and the line of one instant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING
from uuid import UUID

from timeball.domain.execution import Origin
from timeball.domain.freeze import frozen_windows
from timeball.domain.policies import SkipReason, Verdict
from timeball.domain.scheduling.civil_time import MAX_INSTANT, MICROSECOND, MIN_INSTANT, format_instant
from timeball.domain.scheduling.verdicts import JobOutlook, LedgerLine, left_out_lines
from timeball.domain.search import MAX_PAGE_SIZE, PageRequest, ResultPage, foreign_cursor, read_cursor, write_cursor
from timeball.domain.values.ids import first_id_at, id_created_at
from timeball.errors import InvalidInput
from timeball.store.ledger import LedgerReads, LedgerWindow

if TYPE_CHECKING:
    from timeball.domain.freeze import Freeze
    from timeball.domain.job import Job
    from timeball.domain.scheduling.ledger import VersionPeriod
    from timeball.store.ledger import LedgerStore
    from timeball.store.store import Store

# The span that is shown if none is asked for.
DEFAULT_BEHIND, DEFAULT_AHEAD = timedelta(days=7), timedelta(hours=24)
MAX_LOOKED_AT = 5_000
# A filter may pass over most of a batch, so that larger ones are worth their while.
_FILTERED_BATCH = 1_000
_MILLISECOND = timedelta(milliseconds=1)
_LEFT_OUT = frozenset(reason for reason in SkipReason if reason.is_left_out)
_LAST_KEY = first_id_at(MAX_INSTANT + _MILLISECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """Which lines: those that touch [since, until], of these verdicts and reasons; all if none are given.

    Without *with_left_out*, only records and what is expected: nothing that the schedule itself leaves out.
    """

    since: datetime
    until: datetime
    verdicts: frozenset[Verdict] = frozenset()
    reasons: frozenset[str] = frozenset()
    newest_first: bool = False
    with_left_out: bool = True

    def __post_init__(self) -> None:
        if self.until < self.since:
            raise InvalidInput(
                f"until is {format_instant(self.until)}, expected an instant that is not before from, "
                f"which is {format_instant(self.since)}",
                field="until",
            )

    def may_have(self, *verdicts: Verdict) -> bool:
        """Whether lines of one of these verdicts are asked for."""
        return not self.verdicts or not self.verdicts.isdisjoint(verdicts)

    def matches(self, line: LedgerLine) -> bool:
        """Whether a line is asked for."""
        return (
            line.last >= self.since
            and line.first <= self.until
            and (not self.verdicts or line.verdict in self.verdicts)
            and (not self.reasons or line.reason in self.reasons)
        )

    @property
    def reads(self) -> LedgerReads | None:
        """Which records can hold such lines; None if none can."""
        if self.reasons and (self.reasons <= _LEFT_OUT or not self.may_have(Verdict.SKIPPED)):
            return None
        if self.reasons or self.verdicts == {Verdict.SKIPPED}:
            return LedgerReads.SKIPS
        if self.may_have(Verdict.RAN, Verdict.SKIPPED):
            return LedgerReads.ALL
        return LedgerReads.UNFINISHED if self.may_have(Verdict.RUNNING, Verdict.WAITING) else None

    @property
    def has_left_out(self) -> bool:
        """Whether what the schedule leaves out may be asked for."""
        has_reason = not self.reasons or not self.reasons.isdisjoint(_LEFT_OUT)
        return self.with_left_out and has_reason and self.may_have(Verdict.SKIPPED, Verdict.EXPECTED)


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """A page of the ledger. Records from before *history_from* were deleted."""

    page: ResultPage[LedgerLine]
    query: LedgerQuery
    now: datetime
    history_from: datetime | None


@dataclass(frozen=True, slots=True)
class LedgerSurroundings:
    """The lines before and after an instant. Records from before *history_from* were deleted."""

    before: LedgerLine | None
    after: LedgerLine | None
    history_from: datetime | None


class LedgerQueries:
    """Reads the ledgers of jobs."""

    def __init__(self, store: Store, ledger: LedgerStore) -> None:
        self._store = store
        self._ledger = ledger

    def default_span(self) -> tuple[datetime, datetime]:
        """The last seven days and the next 24 hours."""
        now = self._store.env.clock.now()
        return now - DEFAULT_BEHIND, now + DEFAULT_AHEAD

    async def page(self, job: Job, query: LedgerQuery, request: PageRequest) -> LedgerPage:
        """A page of lines in the order of time. A page that is not full may have a cursor: it has looked at enough."""
        # First what lies ahead, then the records: what moves in between is seen twice and told once, and never missed.
        outlook, history_from = await self._ledger.outlook(job)
        freezes = await self._freezes_of(job) if query.until > outlook.now else None
        if freezes and job.rule.is_recurring:
            windows = (window for window in frozen_windows(freezes) if window.end > outlook.now)
            outlook = outlook.in_freezes(windows, job.jitter, job.misfire.cap)
        reading = _LedgerReading(self._ledger, job, query, outlook, request)
        if query.has_left_out and not job.is_enqueued:
            await reading.find_left_out()
        page = await reading.page()
        if freezes is None and any(line.verdict is Verdict.WAITING for line in page.items):
            freezes = await self._freezes_of(job)
        if freezes:
            lines = [_with_freeze(line, freezes, outlook.now, job.jitter) for line in page.items]
            page = replace(page, items=lines)
        return LedgerPage(page, query, outlook.now, history_from)

    async def _freezes_of(self, job: Job) -> list[Freeze]:
        freezes = (await self._store.freezes.list()).freezes
        return [freeze for freeze in freezes if freeze.holds(job.queue, job.id, job.tags)]

    async def lines(self, job: Job, query: LedgerQuery) -> AsyncIterator[LedgerLine]:
        """Every line of a span, page after page."""
        request = PageRequest(limit=MAX_PAGE_SIZE)
        while True:
            page = (await self.page(job, query, request)).page
            for line in page.items:
                yield line
            if page.next_cursor is None:
                return
            request = replace(request, cursor=page.next_cursor)

    async def at(self, job: Job, instant: datetime) -> LedgerLine | None:
        """The line that holds an instant; None if nothing was or is to be due at it. A backfill's only if there is no other.

        Of ranges it is the one that begins last: days that calendars leave out may lie within the occurrences of one outage.
        """
        query = LedgerQuery(since=instant, until=instant)
        lines = (await self.page(job, query, PageRequest(limit=MAX_PAGE_SIZE))).page.items
        by_start = sorted(lines, key=lambda line: line.first, reverse=True)
        return min(by_start, key=lambda line: (line.origin is Origin.BACKFILL, line.is_gap), default=None)

    async def near(self, job: Job, instant: datetime) -> LedgerSurroundings:
        """The last line that begins before an instant, and the first one that ends after it; what is left out is none of them."""
        request = PageRequest(limit=1)
        before = LedgerQuery(since=MIN_INSTANT, until=instant - MICROSECOND, newest_first=True, with_left_out=False)
        after = LedgerQuery(since=instant + MICROSECOND, until=MAX_INSTANT, with_left_out=False)
        earlier, later = await self.page(job, before, request), await self.page(job, after, request)
        return LedgerSurroundings(
            next(iter(earlier.page.items), None), next(iter(later.page.items), None), earlier.history_from
        )

    async def left_out(self, job: Job, since: datetime, until: datetime) -> list[LedgerLine]:
        """What the schedule leaves out of [since, until]."""
        query = LedgerQuery(since=since, until=until, reasons=_LEFT_OUT)
        return [line async for line in self.lines(job, query)]

    async def range_recorded_at(self, job: Job, first: datetime) -> datetime | None:
        """When the range of skipped occurrences that begins at an instant was recorded; None if there is no such record."""
        ranges = await self._ledger.ranges(job.id, first + MICROSECOND, 1)
        return next((one.recorded_at for one in ranges if one.first == first), None)

    async def version_at(self, job: Job, instant: datetime) -> VersionPeriod | None:
        """The version of a recurring job that was responsible for an instant; None before the first one."""
        return await self._ledger.version_at(job.id, instant)

    async def versions(self, job: Job) -> list[VersionPeriod]:
        """The versions of a recurring job with the periods that they answer for, the first one first."""
        return await self._ledger.versions(job.id)


def _with_freeze(line: LedgerLine, freezes: Sequence[Freeze], now: datetime, jitter: timedelta) -> LedgerLine:
    """A line with the freeze that holds it now, or will hold it; of several, the one that ends last."""
    if line.is_left_out or line.reason == SkipReason.PAUSED or line.verdict not in (Verdict.WAITING, Verdict.EXPECTED):
        return line
    at = now if line.verdict is Verdict.WAITING else line.first + jitter
    holding = [freeze for freeze in freezes if freeze.covers(at)]
    return line.held_by(max(holding, key=lambda freeze: freeze.until_at)) if holding else line


class _LedgerReading:
    """One page while it is read."""

    def __init__(
        self, store: LedgerStore, job: Job, query: LedgerQuery, outlook: JobOutlook, request: PageRequest
    ) -> None:
        self._store = store
        self._job = job
        self._query = query
        self._outlook = outlook
        self._limit = request.limit
        self._order = f"ledger {'newest' if query.newest_first else 'oldest'} first"
        self._cursor = None if request.cursor is None else _position(request.cursor, self._order)
        self._lines: list[LedgerLine] = []
        self._told: set[UUID] = set()
        self._looked_at = 0
        self._left_out: Iterator[LedgerLine] = iter(())
        self._next_left_out: LedgerLine | None = None

    async def find_left_out(self) -> None:
        """Reads the versions that leave something out of the span: what it is will be computed line by line."""
        since, until = self._span()
        periods = await self._store.versions_leaving_out(self._job.id, since, until)
        if periods and periods[-1].until is None:
            # A job that has used up its executions leaves nothing out any more.
            end = self._outlook.last_before(until)
            if self._has_ended:
                end = await self._store.last_recorded_at(self._job.id) or periods[-1].after
            periods[-1] = replace(periods[-1], until=end)
        newest_first = self._query.newest_first
        self._left_out = chain.from_iterable(
            left_out_lines(period, since, until, self._outlook.now, newest_first=newest_first)
            for period in (reversed(periods) if newest_first else periods)
        )
        self._next_left_out = next(self._left_out, None)

    @property
    def _has_ended(self) -> bool:
        """Whether the job has used up its executions."""
        is_over = self._outlook.pending is None and self._outlook.pause is None
        return is_over and self._job.max_executions is not None

    async def page(self) -> ResultPage[LedgerLine]:
        """Reads the page."""
        if self._query.newest_first:
            self._add(self._ahead())
            stopped_at = await self._add_records()
        else:
            stopped_at = await self._add_records()
            if stopped_at is None:
                self._add(self._ahead())
        self._add_left_out(stopped_at)
        if len(self._lines) > self._limit:
            kept = self._lines[: self._limit]
            return ResultPage(kept, write_cursor(self._order, kept[-1].key))
        if stopped_at is None:
            return ResultPage(self._lines)
        return ResultPage(
            self._lines,
            write_cursor(self._order, stopped_at),
            searched_to=id_created_at(stopped_at),
            looked_at=self._looked_at,
        )

    def _is_full(self) -> bool:
        """Whether there is one line more than the page shows: then another page follows."""
        return len(self._lines) > self._limit

    def _add(self, lines: Iterable[LedgerLine]) -> None:
        if self._is_full():
            return
        for line in lines:
            self._add_left_out(line.key)
            if self._is_full():
                return
            self._add_one(line)
            if self._is_full():
                return

    def _add_one(self, line: LedgerLine) -> None:
        if line.key not in self._told and not self._is_behind(line.key) and self._query.matches(line):
            self._told.add(line.key)
            self._lines.append(line)

    def _add_left_out(self, up_to: UUID | None) -> None:
        """Adds what is left out and comes before a key; all of it, if there is none."""
        while self._next_left_out is not None and not self._is_full():
            line = self._next_left_out
            if up_to is not None and (line.key < up_to if self._query.newest_first else line.key > up_to):
                return
            self._add_one(line)
            self._next_left_out = next(self._left_out, None)

    def _is_behind(self, key: UUID) -> bool:
        """Whether an earlier page has told a line."""
        if self._cursor is None:
            return False
        return key >= self._cursor if self._query.newest_first else key <= self._cursor

    async def _add_records(self) -> UUID | None:
        """Adds records until the page is full or there are no more; otherwise returns the key up to which they were read."""
        reads = self._query.reads
        if reads is None:
            return None
        if self._job.is_enqueued:
            one_off = await self._store.one_off(self._job.id)
            self._add(() if one_off is None else (one_off,))
        window = self._window()
        while not self._is_full():
            batch = await self._store.records(
                self._job.id, window, reads, self._batch_size(), backwards=self._query.newest_first
            )
            self._add(batch.lines)
            self._looked_at += batch.looked_at
            if batch.read_to is None or self._is_full():
                return None
            if self._looked_at >= MAX_LOOKED_AT:
                return batch.read_to
            window = window.beyond(batch.read_to, backwards=self._query.newest_first)
        return None

    def _batch_size(self) -> int:
        if self._query.verdicts or self._query.reasons or self._looked_at:
            return _FILTERED_BATCH
        return self._limit + 1

    def _window(self) -> LedgerWindow:
        window = LedgerWindow.between(self._query.since, self._query.until)
        if self._cursor is None:
            return window
        return window.beyond(self._cursor, backwards=self._query.newest_first)

    def _span(self) -> tuple[datetime, datetime]:
        """What is left of the span behind the cursor."""
        since, until = self._query.since, self._query.until
        if self._cursor is None:
            return since, until
        at = id_created_at(self._cursor)
        return (since, min(until, at + _MILLISECOND)) if self._query.newest_first else (max(since, at), until)

    def _ahead(self) -> Iterator[LedgerLine]:
        """The lines without a record, from the cursor on."""
        since, until = self._span()
        # They may be without end: a filter that few of them can match must not walk along all.
        has_expected, reasons = self._query.may_have(Verdict.EXPECTED), self._query.reasons
        if self._query.newest_first:
            expected = self._outlook.expected_back(since, until, reasons) if has_expected else ()
            return chain(expected, reversed(self._outlook.certain(since, until)))
        expected = self._outlook.expected(since, until, reasons) if has_expected else ()
        return chain(self._outlook.certain(since, until), expected)


def _position(cursor: str, order: str) -> UUID:
    (position,) = read_cursor(cursor, order, 1)
    key = UUID(position)
    if key > _LAST_KEY:
        raise foreign_cursor()
    return key
