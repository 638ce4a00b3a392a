"""A page of executions: one branch per state table, each read in the order of its index, then merged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.search import ExecutionFilter, SearchRelation, SearchTerm, read_cursor, write_cursor
from timeball.domain.values.ids import id_created_at
from timeball.store.db.rows import execution_from
from timeball.store.search.query import (
    ENQUEUED_BY,
    MAX_CANDIDATES,
    META_TEXT,
    NamedJobs,
    QueryParameters,
    QueryReader,
    execution_condition,
    literal,
    means_no_job,
    name_condition,
)

_NAMES = "SELECT id, name FROM timeball.job WHERE name IS NOT NULL ORDER BY id LIMIT {limit}"


async def jobs_named(reader: QueryReader, terms: Sequence[SearchTerm]) -> NamedJobs:
    """The jobs that terms about names mean, including deleted ones; empty if there are too many names to read them all."""
    asked = [term for term in terms if term.field in ("", "job")]
    names = _NAMES.format(limit=MAX_CANDIDATES + 1)
    if not asked or await reader.count(names, QueryParameters(), MAX_CANDIDATES + 1) > MAX_CANDIDATES:
        return {}
    jobs = {}
    for term in asked:
        values = QueryParameters()
        text = f"SELECT job.id FROM ({names}) AS job WHERE {name_condition(term, values.add)}"
        jobs[term] = [row["id"] for row in await reader.fetch(text, values)]
    return jobs


_BY_ID = "id"
_FIRST_ID, _LAST_ID = UUID(int=0), UUID(int=2**128 - 1)

_COMMON = (
    "id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, retry_of, "
    "created_by, meta AS own_meta"
)
_WAITING = (
    "NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::uuid AS worker, NULL::text AS result_text, "
    "NULL::text AS error_type, NULL::text AS error, NULL::text AS reason, run_at, limit_key, unique_key, expires_at, "
    "NULL::real AS progress, NULL::text AS progress_note"
)
_RUNNING = (
    "CASE WHEN run_at <= {now} THEN greatest(claimed_at, run_at) END AS started_at, NULL::timestamptz AS finished_at, "
    "holder AS worker, NULL::text AS result_text, NULL::text AS error_type, NULL::text AS error, NULL::text AS reason, "
    "run_at, limit_key, unique_key, CASE WHEN run_at > {now} THEN expires_at END AS expires_at, progress, progress_note"
)
_FINISHED = (
    "started_at, finished_at, worker, result::text AS result_text, error_type, error, reason, "
    "NULL::timestamptz AS run_at, NULL::text AS limit_key, NULL::text AS unique_key, expires_at, "
    "NULL::real AS progress, NULL::text AS progress_note"
)


# Succeeded executions are read in the order of their ids: they are many, and have no index of their own.
_WITHOUT_INDEX = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SCHEDULED})


class ExecutionListQuery:
    """The executions that match a filter, the latest ids first; a position is an id."""

    def __init__(self, reader: QueryReader, filter_: ExecutionFilter, named: NamedJobs | None = None) -> None:
        self._reader = reader
        self._filter = filter_
        self._named = named or {}
        self._states = states = filter_.possible_states()
        self._terms = [term for term in filter_.terms if term.field != "status"]
        self._fingerprint = _only_fingerprint(self._terms, states)
        # The terms that an index serves; the others are conditions on each row.
        self._indexed_terms = [term for term in self._terms if term is self._fingerprint or _bounds_ids(term)]
        is_possible = bool(states) and not any(means_no_job(term, self._named) for term in filter_.terms)
        is_narrow = len(states) == len(ExecutionState) or not _WITHOUT_INDEX.intersection(states)
        self._indexed_states = tuple(ExecutionState) if _WITHOUT_INDEX.intersection(states) else states
        self._is_searched = is_possible and not (is_narrow and len(self._indexed_terms) == len(self._terms))

    async def end(self, start: UUID | None, length: int) -> UUID | None:
        """The position after *length* rows of one table."""
        if not self._is_searched:
            return None
        values = QueryParameters()
        order = self._order()
        branches = self._branches(values, start, None, only_indexed=True)
        ends = [f"({one} ORDER BY {order} OFFSET {int(length) - 1} LIMIT 1)" for one in branches]
        text = f"SELECT id FROM ({' UNION ALL '.join(ends)}) AS ends ORDER BY id DESC LIMIT 1"
        rows = await self._reader.fetch(text, values)
        return rows[0]["id"] if rows else None

    async def items(self, start: UUID | None, end: UUID | None, skip: int, limit: int) -> list[Execution]:
        """The matches of a chunk, up to a page."""
        values = QueryParameters()
        text = self._query(values, start, end, skip + limit)
        text += f" ORDER BY id DESC OFFSET {int(skip)} LIMIT {int(limit)}"
        # Joined outside of the page: only the jobs of the shown executions are read.
        text = (
            f"SELECT *, {ENQUEUED_BY} AS enqueued_by, {META_TEXT} AS meta_text FROM ({text}) AS page ORDER BY id DESC"
        )
        return [execution_from(row) for row in await self._reader.fetch(text, values)]

    async def count(self, start: UUID | None, end: UUID | None, limit: int) -> int:
        """The number of matches in a chunk."""
        values = QueryParameters()
        return await self._reader.count(self._query(values, start, end, limit), values, limit)

    async def estimate(self) -> int:
        """The number of matches, as the planner estimates it."""
        values = QueryParameters()
        return await self._reader.estimate(self._query(values, None, None, None), values)

    async def guess(self, exact_up_to: int) -> int | None:
        """None: they can be counted by their indexes."""
        return None

    async def explain(self, start: UUID | None, length: int, limit: int) -> str:
        """The plan of a page, for tests that check that it is read in the order of an index."""
        values = QueryParameters()
        end = await self.end(start, length)
        text = self._query(values, start, end, limit) + " ORDER BY id DESC"
        return await self._reader.explain(text, values)

    def start(self, cursor: str) -> UUID:
        """The id after which a page begins."""
        return UUID(read_cursor(cursor, _BY_ID, 1)[0])

    def cursor_after(self, item: Execution) -> str:
        """The cursor after an execution."""
        return self.cursor_at(item.id)

    def cursor_at(self, place: UUID) -> str:
        """The cursor after an id."""
        return write_cursor(_BY_ID, place)

    def moment_of(self, place: UUID) -> datetime:
        """The instant in an id."""
        return id_created_at(place)

    def _query(self, values: QueryParameters, start: UUID | None, end: UUID | None, limit: int | None) -> str:
        order = self._order()
        branches = [_limited(one, order, limit) for one in self._branches(values, start, end)]
        return f"SELECT * FROM ({' UNION ALL '.join(branches)}) AS found"

    def _order(self) -> str:
        """An order that only the index of the filter has, so that the planner uses no other index."""
        if self._filter.job_id is not None:
            return "job_id DESC, id DESC"
        return "id DESC" if self._fingerprint is None else "fingerprint DESC, id DESC"

    def _branches(
        self, values: QueryParameters, start: UUID | None, end: UUID | None, *, only_indexed: bool = False
    ) -> list[str]:
        """A SELECT for each table that can have matches; *only_indexed*: only the ids, by the indexed terms alone."""
        conditions = [] if start is None else [f"id < {values.add(start, 'uuid')}"]
        if end is not None:
            conditions.append(f"id >= {values.add(end, 'uuid')}")
        clock = self._reader.clock
        moment = clock.statement_now()
        # Only tests set the time; a parameter that some branches do not use would have no type.
        now = "now()" if moment is None else literal(moment)
        terms = self._indexed_terms if only_indexed else self._terms
        instant = clock.now()
        branches = []
        for table, columns, extra in _tables_of(self._indexed_states if only_indexed else self._states, now):
            select = f"SELECT {'id' if only_indexed else columns} FROM timeball.{table} WHERE"
            for own in _ownership(self._filter, values):
                asked = [execution_condition(term, table, values.add, now, instant, self._named) for term in terms]
                branches.append(f"{select} {' AND '.join([*extra, *conditions, *own, *asked]) or 'true'}")
        return branches


_Branch = tuple[str, str, list[str]]


def _tables_of(states: Sequence[ExecutionState], now: str) -> list[_Branch]:
    """For each table of these states: its name, its columns, and the conditions of the state."""

    def branch(table: str, state: str, columns: str, *conditions: str) -> _Branch:
        return table, f"{_COMMON}, {state} AS state, {columns}", list(conditions)

    running = _RUNNING.format(now=now)
    waits = {
        ExecutionState.SCHEDULED: [branch("due", "'scheduled'", _WAITING, "kind NOT IN ('retry', 'resume')")],
        ExecutionState.RETRYING: [branch("due", "'retrying'", _WAITING, "kind = 'retry'")],
        ExecutionState.QUEUED: [
            branch("ready", "'queued'", _WAITING),
            branch("blocked", "'queued'", _WAITING),
            branch("running", "'queued'", running, f"run_at > {now}"),
        ],
        ExecutionState.RUNNING: [branch("running", "'running'", running, f"run_at <= {now}")],
    }
    if len(states) == len(ExecutionState):
        return [*(one for some in waits.values() for one in some), branch("finished", "state", _FINISHED)]
    if not states:
        return [branch("finished", "state", _FINISHED, "false")]
    chosen: list[_Branch] = []
    for state in states:
        if state.is_final:
            chosen.append(branch("finished", "state", _FINISHED, f"state = '{state.value}'"))
        else:
            chosen += waits[state]
    return chosen


def _ownership(filter_: ExecutionFilter, values: QueryParameters) -> list[list[str]]:
    """The executions of a job: those with ids of their own, by the indexes on job_id; and the one with the id of the job."""
    if filter_.job_id is None:
        return [[]]
    place = values.add(filter_.job_id, "uuid")
    # Rows are compared, not job_id alone: only the index on (job_id, id) has their order. Otherwise the planner may
    # read the whole history by id to find the few executions of one job.
    span = [f"(job_id, id) >= ({place}, '{_FIRST_ID}'::uuid)", f"(job_id, id) <= ({place}, '{_LAST_ID}'::uuid)"]
    return [[*span, "job_id <> id"], [f"id = {place}", "job_id = id"]]


def _only_fingerprint(terms: Sequence[SearchTerm], states: Sequence[ExecutionState]) -> SearchTerm | None:
    """The term about a fingerprint, if there is one: the history has an index of them, and no other table has any."""
    if not states or not all(state.is_final for state in states):
        return None
    return next((term for term in terms if term.field == "fingerprint" and _is_one_value(term)), None)


def _bounds_ids(term: SearchTerm) -> bool:
    """Conditions on ids for bounds of time: ids are in the order of time, so every index can use them."""
    return term.field in ("after", "before") and _is_one_value(term)


def _is_one_value(term: SearchTerm) -> bool:
    return term.relation is SearchRelation.IS and len(term.values) == 1 and not term.is_negated


def _limited(branch: str, order: str, limit: int | None) -> str:
    # (SELECT ...): a planner that knows the limit, and believes that there are hardly more rows, would fetch and sort all of them.
    return f"({branch} ORDER BY {order} LIMIT (SELECT {int(limit)}))" if limit is not None else f"({branch})"
