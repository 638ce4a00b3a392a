"""Lists and overviews: pages that are scanned in chunks within a time limit, totals, groups of dead letters, queues, audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.job import JobSituation
from timeball.domain.search import (
    EXACT_UP_TO,
    NO_FINGERPRINT,
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    PageRequest,
    RecentRuns,
    ResultPage,
    Total,
    read_cursor,
    where,
    write_cursor,
)
from timeball.domain.values.ids import ExecutionId, JobId, id_created_at
from timeball.store.db.columns import write_audit
from timeball.store.search.executions import ExecutionListQuery, jobs_named
from timeball.store.search.jobs import JobListQuery, candidate_jobs
from timeball.store.search.query import QueryParameters, QueryReader, group_of, ids_of_job

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.database import Database, WithinConnection
    from timeball.store.types import AuditEntry

_BY_ID = "id"
_BY_QUEUE = "queue"
# The number of queues in an overview.
MAX_QUEUES = 200
# The number of equal parts in which the deaths of a group are counted.
_TIME_SLICES = 24
# The number of rows of the first chunk of a scan, which is enough for most requests, and of each further one.
FIRST_CHUNK = 1_000
CHUNK = 10_000
# For how long further chunks are read for one page.
SCAN_SECONDS = 2.0

Item = TypeVar("Item")
Position = TypeVar("Position")


class ListingStore:
    """Reads lists and overviews."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = QueryReader(database)

    # executions

    async def executions(self, filter_: ExecutionFilter, request: PageRequest) -> ResultPage[Execution]:
        """A page of executions, the latest ids first; a page that is not full says how far the scan has come."""
        return await BoundedScan(self._reader, await self._search(filter_), request).page()

    async def _search(self, filter_: ExecutionFilter) -> ExecutionListQuery:
        named = await jobs_named(self._reader, filter_.terms)
        for term in filter_.terms:
            job_ids = ids_of_job(term, named)
            # The executions of a job have an index, so the rest of the history is not read.
            if filter_.job_id is None and len(job_ids) == 1 and not term.is_negated:
                filter_ = replace(filter_, job_id=JobId(job_ids[0]))
        groups = [group for term in filter_.terms if (group := group_of(term)) is not None]
        if groups:
            # Nothing in a group is older than the group, so the scan ends there.
            filter_ = replace(filter_, terms=(*filter_.terms, *where(after=id_created_at(groups[0]))))
        return ExecutionListQuery(self._reader, filter_, named)

    async def explain_executions(self, filter_: ExecutionFilter, request: PageRequest) -> str:
        """The plan of a page, for tests that check that it is read in the order of an index."""
        search = await self._search(filter_)
        start = None if request.cursor is None else search.start(request.cursor)
        return await search.explain(start, FIRST_CHUNK, request.limit + 1)

    async def execution_extras(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The payload of an execution (JSON text), its fingerprint, and whether it was asked to stop."""
        row = await self._database.fetch_row("execution_extras", id=execution_id)
        return {} if row is None else dict(row)

    # jobs

    async def jobs(self, filter_: JobFilter, order: JobOrder, request: PageRequest) -> ResultPage[Job]:
        """A page of jobs that are not deleted; a page that is not full says how far the scan has come."""
        # The orders by name read only jobs with a name anyway.
        led = replace(filter_, is_named=False) if order.is_by_name else filter_
        only = await candidate_jobs(self._reader, led)
        return await BoundedScan(self._reader, JobListQuery(self._reader, filter_, order, only), request).page()

    async def job_situations(
        self, ids: Sequence[JobId], connection: WithinConnection | None = None
    ) -> dict[JobId, JobSituation]:
        """The situations of these jobs."""
        rows = await self._database.fetch("job_situations", connection, ids=list(ids))
        return {JobId(row["id"]): _situation_from(row) for row in rows}

    async def job_names(self, ids: Sequence[JobId]) -> dict[JobId, str | None]:
        """The names of these jobs, including deleted ones."""
        rows = await self._database.fetch("names_of_jobs", ids=list(ids))
        return {JobId(row["id"]): row["name"] for row in rows}

    async def recent_runs(self, ids: Sequence[JobId], count: int) -> dict[JobId, RecentRuns]:
        """The states and durations of the latest executions of each of these jobs, the oldest first."""
        rows = await self._database.fetch("recent_runs_of_jobs", ids=list(ids), count=count)
        return {JobId(row["id"]): _runs_from(row) for row in rows}

    # dead letters

    async def dead_groups(self, limit: int, by: DeadLetterGrouping = DeadLetterGrouping.ERROR) -> list[DeadLetterGroup]:
        """The latest dead executions in groups, the largest first."""
        rows = await self._database.fetch(
            "dead_groups",
            limit=EXACT_UP_TO,
            groups=limit,
            by=by.value,
            no_fingerprint=NO_FINGERPRINT,
            parts=_TIME_SLICES,
        )
        return [_group_from(row, by) for row in rows]

    async def dead_count(self, apart_from: str | None = None) -> int:
        """The number of dead executions that are not settled, counted up to 10,000; those of a queue may be left out."""
        return int(await self._database.fetch_value("count_dead", limit=EXACT_UP_TO, apart_from=apart_from))

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: AuditEntry) -> set[ExecutionId]:
        """Take dead executions off the dead-letter list; returns those that were on it."""
        note = self._database.env.new_id()

        async def work(connection: Any) -> set[ExecutionId]:
            rows = await self._database.fetch("settle", connection, ids=list(ids), how=how)
            if rows:
                facts = {"executions": [str(row["execution_id"]) for row in rows[:100]], "count": len(rows)}
                await write_audit(
                    self._database,
                    connection,
                    note,
                    audit,
                    f"dead_letter.{how}",
                    f"{len(rows)} executions",
                    None,
                    facts,
                )
            return {ExecutionId(row["execution_id"]) for row in rows}

        settled: set[ExecutionId] = await self._database.once(work, note)
        return settled

    # overviews

    async def queues(
        self, name: str | None = None, *, after: str | None = None, limit: int = MAX_QUEUES, by_need: bool = False
    ) -> list[dict[str, Any]]:
        """Queues with depth, oldest instant, pause and limit; one of them, if its name is given.

        At most *limit*, by name after *after*; or *by_need*, those first whose oldest execution has waited longest.
        `total` in each is the number of all queues.
        """
        rows = await self._database.fetch(
            "queue_overview", name=name, after=after, rows=limit, by_need=by_need, limit=EXACT_UP_TO
        )
        return [dict(row) for row in rows]

    async def queue_page(self, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """Queues by name, a page at a time."""
        after = None if request.cursor is None else read_cursor(request.cursor, _BY_QUEUE, 2)[0]
        rows = await self.queues(after=after, limit=request.limit + 1)
        shown = rows[: request.limit]
        cursor = write_cursor(_BY_QUEUE, shown[-1]["name"], UUID(int=0)) if len(rows) > request.limit else None
        return ResultPage(shown, cursor)

    async def waiting_counts(self) -> dict[str, int]:
        """The numbers of scheduled, retrying, queued and running executions, each counted up to 10,001."""
        return dict(await self._database.fetch_row("waiting_counts", limit=EXACT_UP_TO) or {})

    async def schema(self) -> int:
        """The number of the latest migration in this database."""
        return int(await self._database.fetch_value("applied_schema") or 0)

    async def ownerless_shards(self) -> int:
        """The number of shards without a living owner."""
        return int(await self._database.fetch_value("ownerless_shards") or 0)

    async def audit(self, subject: str | None, actor: str | None, request: PageRequest) -> ResultPage[dict[str, Any]]:
        """A page of the audit, the latest first."""
        values = QueryParameters()
        conditions = ["true"]
        if subject is not None:
            conditions.append(f"subject = {values.add(subject, 'text')}")
        if actor is not None:
            conditions.append(f"actor = {values.add(actor, 'text')}")
        if request.cursor is not None:
            place = values.add(UUID(read_cursor(request.cursor, _BY_ID, 1)[0]), "uuid")
            conditions.append(f"id < {place}")
        text = (
            "SELECT id, at, actor, place, action, subject, reason, before::text AS before, after::text AS after "
            f"FROM timeball.audit WHERE {' AND '.join(conditions)} ORDER BY id DESC "
            f"OFFSET {int(request.offset)} LIMIT {int(request.limit) + 1}"
        )
        rows = [dict(row) for row in await self._reader.fetch(text, values)]
        items = rows[: request.limit]
        return ResultPage(items, write_cursor(_BY_ID, items[-1]["id"]) if len(rows) > request.limit else None)


def _group_from(row: Any, by: DeadLetterGrouping) -> DeadLetterGroup:
    fields = dict(row)
    counts = dict(zip(fields.pop("parts"), fields["deaths"], strict=True))
    fields["deaths"] = [counts.get(part, 0) for part in range(1, _TIME_SLICES + 1)]
    return DeadLetterGroup(
        **fields | {"by": by} | {names: sorted(set(fields[names])) for names in ("handlers", "queues")}
    )


def _runs_from(row: Any) -> RecentRuns:
    return RecentRuns((row["states"] or [])[::-1], (row["milliseconds"] or [])[::-1])


def _situation_from(row: Any) -> JobSituation:
    return JobSituation(
        row["is_live"],
        row["next_run_at"],
        None if row["last_id"] is None else ExecutionId(row["last_id"]),
        None if row["last_state"] is None else ExecutionState(row["last_state"]),
        row["last_finished_at"],
    )


class ScannedList(Protocol[Item, Position]):
    """A list that can be scanned in chunks; a position is where one chunk ends and the next begins."""

    async def end(self, start: Position | None, length: int) -> Position | None:
        """The end of a chunk of *length* rows that begins at *start*; None is the end of the list."""
        ...

    async def items(self, start: Position | None, end: Position | None, skip: int, limit: int) -> list[Item]:
        """The matches of a chunk, in order."""
        ...

    async def count(self, start: Position | None, end: Position | None, limit: int) -> int:
        """The number of matches in a chunk, counted up to *limit*."""
        ...

    async def estimate(self) -> int:
        """The number of all matches, as the planner estimates it."""
        ...

    async def guess(self, exact_up_to: int) -> int | None:
        """The number of all matches, estimated from a few candidates; None if there are few enough to check each."""
        ...

    def start(self, cursor: str) -> Position:
        """The position of a cursor."""
        ...

    def cursor_after(self, item: Item) -> str:
        """The cursor after an item."""
        ...

    def cursor_at(self, place: Position) -> str:
        """The cursor after a position."""
        ...

    def moment_of(self, place: Position) -> datetime | None:
        """The instant up to which a scan has come at a position; None if the list is not in the order of time."""
        ...


class BoundedScan(Generic[Item, Position]):
    """One request to a list: a page, and a total if it is requested, both within one time limit.

    The list is scanned in its own order, one chunk of rows at a time. Each chunk is one query that reads no more than its rows. A page that
    is not full when its time is up says how far the scan has come, and its cursor continues from there. So a request ends soon, however
    rare the matches are, and a client that follows the cursors sees all of them.
    """

    def __init__(self, reader: QueryReader, search: ScannedList[Item, Position], request: PageRequest) -> None:
        self._search = search
        self._request = request
        self._clock = reader.clock
        self._deadline = self._clock.monotonic() + SCAN_SECONDS

    async def page(self) -> ResultPage[Item]:
        """The page."""
        request, search = self._request, self._search
        begun = None if request.cursor is None else search.start(request.cursor)
        matches, end, looked_at = await self._gather(begun)
        items = matches[: request.limit]
        if len(matches) > request.limit:
            return ResultPage(items, search.cursor_after(items[-1]), await self._total())
        if end is None:
            is_all = begun is None and request.offset == 0 and request.with_total
            return ResultPage(items, None, Total(len(items), is_exact=True) if is_all else await self._total())
        # The time is up, and a total would cost as much again.
        total = Total(request.offset + len(items), is_exact=False) if request.with_total else None
        return ResultPage(items, search.cursor_at(end), total, search.moment_of(end), looked_at)

    async def _gather(self, begun: Position | None) -> tuple[list[Item], Position | None, int]:
        """The items of the page and one more, if there are so many; the position where the scan stopped; and the number of rows it read."""
        matches: list[Item] = []
        start, skip, looked_at = begun, self._request.offset, 0
        while True:
            length = CHUNK if looked_at else FIRST_CHUNK
            end = await self._search.end(start, length)
            looked_at += length
            passed = await self._passed(start, end, skip)
            if passed is None:
                matches += await self._search.items(start, end, skip, self._request.limit + 1 - len(matches))
            skip = 0 if passed is None else skip - passed
            if end is None or len(matches) > self._request.limit or self._is_over():
                return matches, end, looked_at
            start = end

    async def _passed(self, start: Position | None, end: Position | None, skip: int) -> int | None:
        """The number of items of a chunk that are skipped, if all of them are."""
        if not skip or end is None:
            return None
        passed = await self._search.count(start, end, skip + 1)
        return None if passed > skip else passed

    async def _total(self) -> Total | None:
        """The number of matches: exact up to the requested number, beyond it an estimate; or the number that was found in time."""
        if not self._request.with_total:
            return None
        limit = self._request.exact_up_to
        guessed = await self._search.guess(limit)
        if guessed is not None:
            return Total(guessed, is_exact=False)
        counted, start, length = 0, None, FIRST_CHUNK
        while True:
            end = await self._search.end(start, length)
            length = CHUNK
            counted += await self._search.count(start, end, limit + 1 - counted)
            if counted > limit:
                return Total(max(await self._search.estimate(), counted), is_exact=False)
            if end is None or self._is_over():
                return Total(counted, is_exact=end is None)
            start = end

    def _is_over(self) -> bool:
        return bool(self._clock.monotonic() >= self._deadline)
