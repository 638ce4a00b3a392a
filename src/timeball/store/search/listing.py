"""Pages, totals and overviews that people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.search import (
    EXACT_UP_TO,
    NO_FINGERPRINT,
    DeadLetterGroup,
    DeadLetterGrouping,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    JobSituation,
    PageRequest,
    RecentRuns,
    ResultPage,
    read_cursor,
    write_cursor,
)
from timeball.domain.values.ids import ExecutionId, JobId
from timeball.store.audit import write_audit
from timeball.store.search.conditions import ids_of_job
from timeball.store.search.executions import ExecutionListQuery, jobs_named
from timeball.store.search.jobs import JobListQuery, candidate_jobs
from timeball.store.search.scan import BoundedScan, QueryParameters, QueryReader

if TYPE_CHECKING:
    from timeball.domain.job import Job
    from timeball.store.db.database import Database
    from timeball.store.types import AuditEntry

_BY_ID = "id"
_BY_QUEUE = "queue"
# The number of queues in an overview.
MAX_QUEUES = 200
# The number of equal parts in which the deaths of a group are counted.
_TIME_SLICES = 24


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
        return ExecutionListQuery(self._reader, filter_, named)

    async def explain_executions(self, filter_: ExecutionFilter, request: PageRequest) -> str:
        """The plan of a page, for tests that check that it is read in the order of an index."""
        search = await self._search(filter_)
        start = None if request.cursor is None else search.start(request.cursor)
        return await search.explain(start, request.limit + 1)

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

    async def job_situations(self, ids: Sequence[JobId]) -> dict[JobId, JobSituation]:
        """The situations of these jobs."""
        rows = await self._database.fetch("job_situations", ids=list(ids))
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

    async def dead_count(self) -> int:
        """The number of dead executions that are not settled, counted up to 10,000."""
        return int(await self._database.fetch_value("count_dead", limit=EXACT_UP_TO))

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
