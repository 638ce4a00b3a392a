"""Composed queries, and search terms as their conditions; every value from outside is a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson

from timeball.domain.execution import ExecutionState
from timeball.domain.job import JobStatus
from timeball.domain.search import JOB_FIELDS, NO_FINGERPRINT, SearchFieldKind, SearchRelation, SearchTerm
from timeball.domain.values.ids import first_id_at, parse_id
from timeball.errors import InvalidInput

if TYPE_CHECKING:
    from timeball.store.db.database import Database
    from timeball.store.db.rows import CitedCalendars

# The most ids of a candidate query, and of names that are read to find jobs.
MAX_CANDIDATES = 10_000
# A query that takes longer is cancelled. A scan goes in chunks, each of which ends long before.
_TIMEOUT_SECONDS = 10

AddParameter = Callable[[Any, str], str]
_NO_TEXT = "NULL::text"
_STARTED = {"finished": "started_at", "running": "greatest(claimed_at, run_at)"}
_ERRORS = {"finished": ("error_type", "error")}
_WORKERS = {"finished": "worker", "running": "holder"}
_OPERATORS = {SearchRelation.IS: "=", SearchRelation.MORE: ">", SearchRelation.LESS: "<"}
# The author of an enqueued execution is that of its job.
ENQUEUED_BY = "CASE WHEN origin = 'enqueue' THEN (SELECT job.created_by FROM timeball.job WHERE job.id = job_id) END"
# The meta of the executions of a page as text: their own, or that of their job.
META_TEXT = (
    "coalesce(own_meta, (SELECT CASE WHEN job.version = page.version THEN job.meta ELSE timeball.meta_of(job.id, page.version) END "
    "FROM timeball.job WHERE job.id = job_id))::text"
)
# The ids of the jobs that each term about names means, if they were read beforehand.
NamedJobs = Mapping[SearchTerm, Sequence[UUID]]


class QueryParameters:
    """The parameters of a composed query, in the order they were added."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def add(self, value: Any, kind: str) -> str:
        """Add a value, and return its placeholder."""
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


class QueryReader:
    """Runs composed queries. Only text of this package is composed; every value from outside is a parameter."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def clock(self) -> Any:
        """The clock of scans."""
        return self._database.env.clock

    async def fetch(self, text: str, values: QueryParameters) -> list[Any]:
        """The rows of a query."""
        async with self._database.connection() as connection:
            rows: list[Any] = await connection.fetch(text, *values.given, timeout=_TIMEOUT_SECONDS)
            return rows

    async def calendars(self, rows: Sequence[Any]) -> CitedCalendars:
        """The calendars that rows of jobs cite."""
        return await self._database.calendars.of(rows)

    async def count(self, text: str, values: QueryParameters, limit: int) -> int:
        """The number of rows of a query, counted up to *limit*."""
        counted = f"SELECT count(*) FROM (SELECT 1 FROM ({text}) AS whole LIMIT {int(limit)}) AS few"
        return int((await self.fetch(counted, values))[0][0])

    async def estimate(self, text: str, values: QueryParameters) -> int:
        """The number of rows of a query, as the planner estimates it: nothing is read."""
        plan = await self.fetch(f"EXPLAIN (FORMAT JSON) {text}", values)
        return int(orjson.loads(plan[0][0])[0]["Plan"]["Plan Rows"])

    async def explain(self, text: str, values: QueryParameters) -> str:
        """Run a query, and return its plan with what it read."""
        rows = await self.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}", values)
        return "\n".join(row[0] for row in rows)


def literal(moment: datetime) -> str:
    """An instant as part of the text."""
    return f"'{moment.isoformat()}'::timestamptz"


def execution_condition(
    term: SearchTerm, table: str, place: AddParameter, now: str, moment: datetime, named: NamedJobs | None = None
) -> str:
    """The condition on a row of this table. The caller has chosen the tables by state."""
    return _negated(term, _in_table(term, table, place, now, moment, named or {}))


def _in_table(term: SearchTerm, table: str, place: AddParameter, now: str, moment: datetime, named: NamedJobs) -> str:
    match term.field:
        case "" | "job":
            own = id_in(term, "exe", place) if term.field == "" else id_in(term, "job", place, "job_id")
            if means_no_job(term, named):
                return "false"
            if term in named:
                return f"({own} OR job_id = ANY ({place(list(named[term]), 'uuid[]')}))"
            return f"({own} OR {_of_job(name_condition(term, place))})"
        case "tag":
            return _of_job(_any_tag(term, place))
        case "group":
            return _of_job(f"job.group_id IS NOT NULL AND {id_in(term, 'grp', place, 'job.group_id')}")
        case "queue" | "handler" | "origin":
            return _texts(term.field, term, place)
        case "created_by":
            return _author(f"coalesce(created_by, {ENQUEUED_BY})", term, place)
        case "priority" | "attempts":
            return _compared(term.field, term, place, "integer")
        case "worker":
            return id_in(term, "wrk", place, _WORKERS.get(table, "NULL::uuid"))
        case "error":
            return _any(_texts(column, term, place) for column in _ERRORS.get(table, (_NO_TEXT,)))
        case "fingerprint":
            if term.values == (NO_FINGERPRINT,) and table == "finished":
                return "fingerprint IS NULL"
            is_indexed = NO_FINGERPRINT not in term.values and term.relation is SearchRelation.IS
            column = "fingerprint" if is_indexed else f"coalesce(fingerprint, '{NO_FINGERPRINT}')"
            return _texts(column if table == "finished" else _NO_TEXT, term, place)
        case "settled":
            is_settled = "EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = id)"
            return _any(is_settled if value == "yes" else f"NOT {is_settled}" for value in term.values)
        case "late":
            return _compared(f"{_STARTED.get(table, now)} - scheduled_for", term, place, "interval")
        case "waits":
            # As the gauge of late executions counts them: those that a free slot would have taken at once.
            return _compared(f"{now} - run_at" if table == "ready" else "NULL::interval", term, place, "interval")
        case "took":
            return _compared(_took(table, now), term, place, "interval")
        case "payload" | "meta" as name:
            kept = f"CASE WHEN job.version = {table}.version THEN job.{name} ELSE timeball.{name}_of(job_id, {table}.version) END"
            whole = f"coalesce({table}.{name}, (SELECT {kept} FROM timeball.job WHERE job.id = job_id))"
            return _texts(f"({whole} #>> {place(list(term.path), 'text[]')})", term, place)
        case "after":
            return _any(f"id >= {place(first_id_at(instant_of(value, moment)), 'uuid')}" for value in term.values)
        case "before":
            return _any(f"id < {place(first_id_at(instant_of(value, moment)), 'uuid')}" for value in term.values)
    raise AssertionError(term.field)


def name_condition(term: SearchTerm, place: AddParameter) -> str:
    """The condition on the name of a job, for a term about executions."""
    return _like("job.name", term, place) if term.field == "" else _texts("job.name", term, place)


def ids_of_job(term: SearchTerm, named: NamedJobs) -> list[UUID]:
    """The jobs whose executions a term means, if it is about jobs."""
    if term.field != "job":
        return []
    return list({*named.get(term, ()), *_ids_among(term, "job")})


def group_of(term: SearchTerm) -> UUID | None:
    """The group whose executions a term means, if it means one."""
    ids = _ids_among(term, "grp") if term.field == "group" and not term.is_negated else []
    return ids[0] if len(ids) == 1 else None


def means_no_job(term: SearchTerm, named: NamedJobs) -> bool:
    """Whether a term is about the executions of a job, or about one id, and no execution can match."""
    if term.is_negated or term not in named or named[term]:
        return False
    return not _ids_among(term, "exe" if term.field == "" else "job")


def job_condition(
    term: SearchTerm,
    place: AddParameter,
    moment: datetime,
    *,
    status: Callable[[JobStatus], str],
    states: Callable[[Sequence[ExecutionState]], str],
) -> str:
    """The condition on a job, without its status."""
    return _negated(term, _of_definition(term, place, moment, status, states))


def _of_definition(
    term: SearchTerm,
    place: AddParameter,
    moment: datetime,
    status: Callable[[JobStatus], str],
    states: Callable[[Sequence[ExecutionState]], str],
) -> str:
    match term.field:
        case "":
            return f"({id_in(term, 'job', place, 'job.id')} OR (job.name IS NOT NULL AND {_like('job.name', term, place)}))"
        case "status":
            own = [status(JobStatus(str(value))) for value in term.values if value in list(JobStatus)]
            ended = [ExecutionState(str(value)) for value in term.values if value not in list(JobStatus)]
            return _any([*own, *([states(ended)] if ended else [])])
        case "created_by":
            return _author("job.created_by", term, place)
        case "tag":
            return _any_tag(term, place)
        case "payload" | "meta" as name:
            column = f"(job.{name} #>> {place(list(term.path), 'text[]')})" if term.path else f"job.{name}::text"
            return _texts(column, term, place)
        case "after":
            return _any(f"job.created_at >= {place(instant_of(value, moment), 'timestamptz')}" for value in term.values)
        case "before":
            return _any(f"job.created_at < {place(instant_of(value, moment), 'timestamptz')}" for value in term.values)
        case "due_after" | "due_before":
            operator = ">=" if term.field == "due_after" else "<"
            bound = _any(
                f"due.run_at {operator} {place(instant_of(value, moment), 'timestamptz')}" for value in term.values
            )
            # A value, not EXISTS: for EXISTS the planner may read the whole table.
            due = "SELECT true FROM timeball.due WHERE due.job_id = job.id AND due.kind = 'occurrence'"
            return f"({due} AND {bound} LIMIT 1) IS NOT NULL"
    field = JOB_FIELDS[term.field]
    assert field.column is not None, f"no condition for {term.field}"
    column = f"job.{field.column}"
    is_number = field.kind is SearchFieldKind.NUMBER
    return _compared(column, term, place, "integer") if is_number else _texts(column, term, place)


def _negated(term: SearchTerm, condition: str) -> str:
    return f"({condition}) IS NOT TRUE" if term.is_negated else condition


def _any(conditions: Iterable[str]) -> str:
    return f"({' OR '.join(conditions)})"


def _texts(column: str, term: SearchTerm, place: AddParameter) -> str:
    if term.relation is SearchRelation.LIKE:
        return f"{column} ILIKE ANY ({place([_pattern(str(value)) for value in term.values], 'text[]')})"
    if term.relation is SearchRelation.CONTAINS:
        return _any(f"strpos(lower({column}), lower({place(str(value), 'text')})) > 0" for value in term.values)
    if len(term.values) == 1:
        return f"{column} = {place(str(term.values[0]), 'text')}"
    return f"{column} = ANY ({place([str(value) for value in term.values], 'text[]')})"


def _like(column: str, term: SearchTerm, place: AddParameter) -> str:
    """A bare word may be anywhere in the text."""
    patterns = [_pattern(f"*{value}*") for value in term.values]
    return f"{column} ILIKE ANY ({place(patterns, 'text[]')})"


def _author(column: str, term: SearchTerm, place: AddParameter) -> str:
    """An author is given in full, by the id of a key, or by the name of a key."""
    if term.relation is SearchRelation.LIKE:
        return _texts(column, term, place)
    whole, key, name = column, f"split_part({column}, ' ', 1)", f"substr({column}, strpos({column}, ' ') + 1)"
    return _any(_texts(part, term, place) for part in (whole, key, name))


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def _compared(expression: str, term: SearchTerm, place: AddParameter, kind: str) -> str:
    operator = _OPERATORS[term.relation]
    return _any(f"({expression}) {operator} {place(value, kind)}" for value in term.values)


def _took(table: str, now: str) -> str:
    if table == "finished":
        return "finished_at - started_at"
    return f"{now} - {_STARTED[table]}" if table == "running" else "NULL::interval"


def id_in(term: SearchTerm, prefix: str, place: AddParameter, column: str = "id") -> str:
    """The condition that a column is one of the ids among the values of a term."""
    ids = _ids_among(term, prefix)
    return f"{column} = ANY ({place(ids, 'uuid[]')})" if ids else "false"


def _ids_among(term: SearchTerm, prefix: str) -> list[UUID]:
    return [id_ for value in term.values if (id_ := _parsed(prefix, str(value))) is not None]


def _parsed(prefix: str, text: str) -> UUID | None:
    try:
        return parse_id(prefix, text)
    except InvalidInput:
        return None


def _of_job(condition: str) -> str:
    """A condition on the job of each row, as a value: for EXISTS the planner may read all jobs."""
    return f"(SELECT {condition} FROM timeball.job WHERE job.id = job_id)"


def _any_tag(term: SearchTerm, place: AddParameter) -> str:
    if term.relation is SearchRelation.LIKE:
        return f"EXISTS (SELECT 1 FROM unnest(job.tags) AS tag WHERE {_texts('tag', term, place)})"
    return f"job.tags && {place([str(value) for value in term.values], 'text[]')}"


def instant_of(value: Any, moment: datetime) -> datetime:
    """The instant of a bound, which may be relative to now."""
    return moment + value if isinstance(value, timedelta) else value
