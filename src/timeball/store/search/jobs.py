"""A page of jobs, by candidates from indexes where a filter has any.

Among a million one-offs, most filters mean few jobs: paused, recurring or tagged ones, or jobs that run now. Each of those has an index, or
a state table, from which the candidates can be read. If there are few candidates, only those are checked; otherwise the list is scanned in
chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from timeball.domain.execution import ExecutionState
from timeball.domain.job import Job, JobStatus
from timeball.domain.scheduling.schedule import ScheduleKind
from timeball.domain.search import JobFilter, JobOrder, SearchRelation, SearchTerm, read_cursor, write_cursor
from timeball.domain.values.ids import first_id_at, id_created_at
from timeball.store.db.rows import job_from
from timeball.store.search.query import MAX_CANDIDATES, QueryParameters, QueryReader, id_in, instant_of, job_condition

# A candidate query returns every job that can match one term of the filter, and perhaps others, which are checked afterwards. One that
# returns more than ten thousand ids is not used. Ids are bytes here: most of them are only counted and sorted, which needs no objects.

_ID_BYTES = 16

_RECURRING = "SELECT id FROM timeball.job WHERE kind <> 'once'"
_PAUSED = "SELECT id FROM timeball.job WHERE paused_at IS NOT NULL"
_TAGGED = "SELECT id FROM timeball.job WHERE tags IS NOT NULL"
_OWNED = "SELECT id FROM timeball.job WHERE owner IS NOT NULL"
_NAMED = "SELECT id FROM timeball.job WHERE name IS NOT NULL"


_ENDED = "SELECT job_id FROM timeball.finished WHERE state = '{state}' AND state <> 'succeeded'"
_IN_STATE = {
    ExecutionState.SCHEDULED: ("SELECT job_id FROM timeball.due",),
    ExecutionState.RETRYING: ("SELECT job_id FROM timeball.due WHERE kind = 'retry'",),
    ExecutionState.QUEUED: ("SELECT job_id FROM timeball.ready", "SELECT job_id FROM timeball.blocked"),
    ExecutionState.RUNNING: ("SELECT job_id FROM timeball.running",),
    ExecutionState.DEAD: (_ENDED.format(state="dead"),),
    ExecutionState.CANCELLED: (_ENDED.format(state="cancelled"),),
    ExecutionState.SKIPPED: (_ENDED.format(state="skipped"),),
}
_ALIVE = (ExecutionState.SCHEDULED, ExecutionState.QUEUED, ExecutionState.RUNNING)
_DUE = """
SELECT due.job_id
FROM timeball.shard
CROSS JOIN LATERAL (
    SELECT job_id
    FROM timeball.due
    WHERE due.shard = shard.id
      AND due.run_at >= coalesce({low}, '-infinity')
      AND due.run_at <= coalesce({high}, 'infinity')
    ORDER BY due.shard, due.run_at
    LIMIT {limit}
) AS due"""


class CandidateQuery:
    """Queries that return ids, with their parameters."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.values = QueryParameters()


async def candidate_jobs(reader: QueryReader, filter_: JobFilter) -> list[bytes] | None:
    """The jobs that all candidate queries return; None if none of them is short enough."""
    candidates: set[bytes] | None = None
    for lead in _candidate_queries(filter_, reader.clock.now()):
        ids = await _candidate_ids(reader, lead)
        if ids is not None:
            candidates = ids if candidates is None else candidates & ids
    return None if candidates is None else list(candidates)


async def _candidate_ids(reader: QueryReader, lead: CandidateQuery) -> set[bytes] | None:
    cut = " UNION ALL ".join(f"({text} LIMIT {MAX_CANDIDATES + 1})" for text in lead.texts)
    # All ids in one value: a row for each takes the server, the network and the driver many times as long.
    rows = await reader.fetch(f"SELECT string_agg(uuid_send(led.id), '') FROM ({cut}) AS led (id)", lead.values)
    ids: bytes = rows[0][0] or b""
    if len(ids) > MAX_CANDIDATES * _ID_BYTES:
        return None
    return {ids[place : place + _ID_BYTES] for place in range(0, len(ids), _ID_BYTES)}


def _candidate_queries(filter_: JobFilter, moment: datetime) -> Iterator[CandidateQuery]:
    if filter_.is_named:
        yield CandidateQuery(_NAMED)
    due_from, due_until = _bound(filter_, "due_after", moment), _bound(filter_, "due_before", moment)
    if due_from is not None or due_until is not None:
        yield _query_by_due(due_from, due_until)
    for term in filter_.terms:
        if not term.is_negated:
            yield from _queries_of_term(term)


def _queries_of_term(term: SearchTerm) -> Iterator[CandidateQuery]:
    match term.field:
        case "status":
            words = [str(value) for value in term.values]
            yield from _queries_of_status(
                [JobStatus(word) if word in list(JobStatus) else ExecutionState(word) for word in words]
            )
        case "kind" if ScheduleKind.ONCE.value not in term.values:
            yield CandidateQuery(_RECURRING)
        case "tag":
            yield CandidateQuery(_TAGGED)
        case "name":
            yield CandidateQuery(_NAMED)
        case "owner":
            yield _query_by_owner(term)
        case "":
            yield _query_by_name_or_id(term)


def _query_by_owner(term: SearchTerm) -> CandidateQuery:
    lead = CandidateQuery()
    if term.relation is SearchRelation.IS:
        owners = lead.values.add([str(value) for value in term.values], "text[]")
        lead.texts = (f"{_OWNED} AND owner = ANY ({owners})",)
    else:
        lead.texts = (_OWNED,)
    return lead


def _query_by_name_or_id(term: SearchTerm) -> CandidateQuery:
    lead = CandidateQuery()
    own = f"SELECT id FROM timeball.job WHERE {id_in(term, 'job', lead.values.add)}"
    lead.texts = (_NAMED, own)
    return lead


def _queries_of_status(words: Sequence[JobStatus | ExecutionState]) -> Iterator[CandidateQuery]:
    """The candidate query of a status; none if most jobs have it."""
    texts: list[str] = []
    for word in words:
        match word:
            case JobStatus.PAUSED:
                texts.append(_PAUSED)
            case JobStatus.ACTIVE:
                texts += [
                    f"{_RECURRING} AND (kind = 'manual' OR after_id IS NOT NULL)",
                    *(text for state in _ALIVE for text in _IN_STATE[state]),
                ]
            case JobStatus.FINISHED | ExecutionState.SUCCEEDED:
                return
            case _:
                texts += _IN_STATE[word]
    yield CandidateQuery(*texts)


def _query_by_due(due_from: datetime | None, due_until: datetime | None) -> CandidateQuery:
    lead = CandidateQuery()
    low = lead.values.add(due_from, "timestamptz")
    high = lead.values.add(due_until, "timestamptz")
    lead.texts = (_DUE.format(low=low, high=high, limit=MAX_CANDIDATES + 1),)
    return lead


JobPosition = UUID | str
_FIRST_ID = UUID(int=0)


# An id has the moment at which the program made the job; `created_at` is that of its transaction.
_CLOCK_TOLERANCE = timedelta(days=1)


# The number of candidates that are checked for an estimate.
_SAMPLE = 100


class JobListQuery:
    """The jobs that match a filter; a position is an id, or a name in the orders by name."""

    def __init__(self, reader: QueryReader, filter_: JobFilter, order: JobOrder, only: Sequence[bytes] | None) -> None:
        self._reader = reader
        self._filter = filter_
        self._order = order
        self._by_name = order.is_by_name
        self._is_descending = order in (JobOrder.NEWEST, JobOrder.NAME_BACKWARDS)
        self._column = "name" if self._by_name else "id"
        is_filtered = replace(filter_, is_named=False) != JobFilter() or (filter_.is_named and not self._by_name)
        self._is_searched = is_filtered and only is None
        self._only = None if only is None else sorted(only, reverse=self._is_descending)

    async def end(self, start: JobPosition | None, length: int) -> JobPosition | None:
        """The position after *length* jobs."""
        if self._only is not None:
            # In the orders by name all jobs are read, but few have a name.
            after = [] if self._by_name else self._candidates_between(start, None)
            return UUID(bytes=after[length - 1]) if len(after) > length else None
        if not self._is_searched:
            return None
        values = QueryParameters()
        conditions = self._bounds(values, start, None)
        text = (
            f"SELECT job.{self._column} FROM timeball.job WHERE {' AND '.join(conditions)} "
            f"{self._ordered()} OFFSET {int(length) - 1} LIMIT 1"
        )
        rows = await self._reader.fetch(text, values)
        return rows[0][0] if rows else None

    async def items(self, start: JobPosition | None, end: JobPosition | None, skip: int, limit: int) -> list[Job]:
        """The matches of a chunk, up to a page."""
        values = QueryParameters()
        text = self._query("*, payload::text AS payload_text", values, start, end)
        text += f" {self._ordered()} OFFSET {int(skip)} LIMIT {int(limit)}"
        rows = await self._reader.fetch(text, values)
        calendars = await self._reader.calendars(rows)
        return [job_from(row, calendars) for row in rows]

    async def count(self, start: JobPosition | None, end: JobPosition | None, limit: int) -> int:
        """The number of matches in a chunk."""
        values = QueryParameters()
        return await self._reader.count(self._query("job.id", values, start, end), values, limit)

    async def estimate(self) -> int:
        """The number of matches, as the planner estimates it."""
        values = QueryParameters()
        return await self._reader.estimate(self._query("job.id", values, None, None), values)

    async def guess(self, exact_up_to: int) -> int | None:
        """The number of candidates that match, if each has to be looked up in the state tables: by the share of the first few."""
        only = self._only or []
        if len(only) <= exact_up_to or not _filters_by_status(self._filter):
            return None
        few = JobListQuery(self._reader, self._filter, self._order, only[:_SAMPLE])
        return round(await few.count(None, None, _SAMPLE) * len(only) / _SAMPLE)

    async def explain(self, start: JobPosition | None, end: JobPosition | None, limit: int) -> str:
        """The plan of a chunk, for tests that check what it reads."""
        values = QueryParameters()
        text = self._query("*, payload::text AS payload_text", values, start, end)
        return await self._reader.explain(f"{text} {self._ordered()} LIMIT {int(limit)}", values)

    def start(self, cursor: str) -> JobPosition:
        """The id or name after which a page begins."""
        name, last_id = read_cursor(cursor, self._order.value, 2)
        return name or "" if self._by_name else UUID(last_id)

    def cursor_after(self, item: Job) -> str:
        """The cursor after a job."""
        return write_cursor(self._order.value, item.name, item.id)

    def cursor_at(self, place: JobPosition) -> str:
        """The cursor after an id or a name."""
        name, last_id = (place, _FIRST_ID) if self._by_name else (None, place)
        return write_cursor(self._order.value, name, last_id)

    def moment_of(self, place: JobPosition) -> datetime | None:
        """The instant in an id."""
        return id_created_at(place) if isinstance(place, UUID) else None

    def _query(self, columns: str, values: QueryParameters, start: JobPosition | None, end: JobPosition | None) -> str:
        conditions = self._bounds(values, start, end)
        if self._only is not None:
            few = [UUID(bytes=id_) for id_ in (self._only if self._by_name else self._candidates_between(start, end))]
            conditions.append(f"job.id = ANY ({values.add(few, 'uuid[]')})")
        conditions += _conditions(self._filter, values, self._reader.clock.now())
        return f"SELECT {columns} FROM timeball.job WHERE {' AND '.join(conditions)}"

    def _candidates_between(self, start: JobPosition | None, end: JobPosition | None) -> list[bytes]:
        """The candidates of a chunk, in its order."""
        ids = self._only or []
        first = self._number_behind(start) if isinstance(start, UUID) else 0
        last = self._number_behind(end) if isinstance(end, UUID) else len(ids)
        return ids[first:last]

    def _number_behind(self, place: UUID) -> int:
        """The number of candidates up to a position."""
        sign = -1 if self._is_descending else 1
        return bisect_right(self._only or [], sign * place.int, key=lambda id_: sign * int.from_bytes(id_))

    def _bounds(self, values: QueryParameters, start: JobPosition | None, end: JobPosition | None) -> list[str]:
        """The condition of the index by which the list is read."""
        kind = "text" if self._by_name else "uuid"
        beyond, within = ("<", ">=") if self._is_descending else (">", "<=")
        bounds = (
            ["job.name IS NOT NULL", "job.deleted_at IS NULL"]
            if self._by_name
            else _id_bounds(self._filter, values, self._reader.clock.now())
        )
        if start is not None:
            bounds.append(f"job.{self._column} {beyond} {values.add(start, kind)}")
        if end is not None:
            bounds.append(f"job.{self._column} {within} {values.add(end, kind)}")
        return bounds or ["true"]

    def _ordered(self) -> str:
        return f"ORDER BY job.{self._column} {'DESC' if self._is_descending else 'ASC'}"


def _filters_by_status(filter_: JobFilter) -> bool:
    return any(term.field == "status" for term in filter_.terms)


def _bound(filter_: JobFilter, field: str, moment: datetime) -> datetime | None:
    """The instant of the term about this field, if there is just one."""
    terms = [term for term in filter_.terms if term.field == field and not term.is_negated]
    if len(terms) != 1 or len(terms[0].values) != 1:
        return None
    return instant_of(terms[0].values[0], moment)


def _id_bounds(filter_: JobFilter, values: QueryParameters, moment: datetime) -> list[str]:
    """Conditions on ids for bounds of creation: ids are nearly in that order, and the exact instants are compared as well."""
    bounds = []
    created_from, created_until = _bound(filter_, "after", moment), _bound(filter_, "before", moment)
    if created_from is not None:
        bounds.append(f"job.id >= {values.add(first_id_at(created_from - _CLOCK_TOLERANCE), 'uuid')}")
    if created_until is not None:
        bounds.append(f"job.id < {values.add(first_id_at(created_until + _CLOCK_TOLERANCE), 'uuid')}")
    return bounds


# Look-ups in the state tables are values, not EXISTS: for EXISTS the planner may read a whole table.
def _has_one(table: str, *conditions: str) -> str:
    return f"(SELECT true FROM timeball.{table} WHERE {' AND '.join(conditions)} LIMIT 1) IS NOT NULL"


def _in_table(table: str, *conditions: str) -> str:
    """An enqueued execution has the id of its job; the indexes on job_id leave it out, so both are searched."""
    own = _has_one(table, f"{table}.id = job.id", *conditions)
    others = _has_one(table, f"{table}.job_id = job.id", f"{table}.job_id <> {table}.id", *conditions)
    return f"({own} OR {others})"


_HAS_ONE = {
    ExecutionState.SCHEDULED: _in_table("due", "due.kind NOT IN ('retry', 'resume')"),
    ExecutionState.RETRYING: _in_table("due", "due.kind = 'retry'"),
    ExecutionState.QUEUED: f"({_in_table('ready')} OR {_has_one('blocked', 'blocked.job_id = job.id')})",
    ExecutionState.RUNNING: _in_table("running"),
}
_WAITS = _in_table("due", "due.kind <> 'resume'")
_LIVE = f"({_WAITS} OR {_HAS_ONE[ExecutionState.QUEUED]} OR {_HAS_ONE[ExecutionState.RUNNING]})"
_STATUS = {
    JobStatus.PAUSED: "job.paused_at IS NOT NULL",
    JobStatus.ACTIVE: f"(job.paused_at IS NULL AND (job.kind = 'manual' OR job.after_id IS NOT NULL OR {_LIVE}))",
    JobStatus.FINISHED: f"(job.paused_at IS NULL AND job.kind <> 'manual' AND job.after_id IS NULL AND NOT {_LIVE})",
}


# Rows are compared, not job_id alone: otherwise the planner may read the whole history by id to find the latest of one job.
_ENDED_AS = f"""
(
    SELECT latest.state
    FROM (
        (
            SELECT id, state
            FROM timeball.finished
            WHERE (finished.job_id, finished.id) >= (job.id, '{_FIRST_ID}'::uuid)
              AND (finished.job_id, finished.id) <= (job.id, '{UUID(int=2**128 - 1)}'::uuid)
              AND finished.job_id <> finished.id
            ORDER BY job_id DESC, id DESC
            LIMIT 1
        )
        UNION ALL
        SELECT id, state FROM timeball.finished WHERE finished.id = job.id
        ORDER BY id DESC
        LIMIT 1
    ) AS latest
) = ANY ({{states}})"""


def _conditions(filter_: JobFilter, values: QueryParameters, moment: datetime) -> list[str]:
    def states(some: Sequence[ExecutionState]) -> str:
        return _state_condition(some, values)

    conditions = ["job.deleted_at IS NULL"]
    for term in filter_.terms:
        conditions.append(job_condition(term, values.add, moment, status=_STATUS.__getitem__, states=states))
    if filter_.is_named:
        conditions.append("job.name IS NOT NULL")
    return conditions


def _state_condition(states: Sequence[ExecutionState], values: QueryParameters) -> str:
    """An unfinished execution of the job has one of these states, or its latest finished one ended so."""
    parts = [_HAS_ONE[state] for state in states if not state.is_final]
    ended = [state.value for state in states if state.is_final]
    if ended:
        parts.append(_ENDED_AS.format(states=values.add(ended, "text[]")))
    return f"({' OR '.join(parts)})"
