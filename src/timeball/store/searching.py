"""Terms of a search as conditions. Only texts written here are glued together; every value from outside is a parameter.

Executions live in rooms with different columns, so each room says what it has; what it has not, holds for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from timeball.domain.dead_letters import NO_FINGERPRINT
from timeball.domain.execution import ExecutionState
from timeball.domain.ids import first_id_at, parse_id
from timeball.domain.job import JobStatus
from timeball.domain.query import Relation, Term
from timeball.errors import InvalidInput

Place = Callable[[Any, str], str]

_NOTHING = "NULL::text"
_STARTED = {"finished": "started_at", "running": "greatest(claimed_at, run_at)"}
_ERRORS = {"finished": ("error_type", "error")}
_WORKERS = {"finished": "worker", "running": "holder"}
_OPERATORS = {Relation.IS: "=", Relation.MORE: ">", Relation.LESS: "<"}
# The author of an enqueued execution is that of its job.
ENQUEUED_BY = "CASE WHEN origin = 'enqueue' THEN (SELECT job.created_by FROM timeball.job WHERE job.id = job_id) END"
# The jobs that a term about names means, where they could be told beforehand.
NamedJobs = Mapping[Term, Sequence[UUID]]


def execution_condition(
    term: Term, room: str, place: Place, now: str, moment: datetime, named: NamedJobs | None = None
) -> str:
    """What must hold of a row in this room; states are chosen by room before."""
    return _negated(term, _in_room(term, room, place, now, moment, named or {}))


def _in_room(term: Term, room: str, place: Place, now: str, moment: datetime, named: NamedJobs) -> str:
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
        case "queue" | "handler" | "origin":
            return _texts(term.field, term, place)
        case "created_by":
            return _author(f"coalesce(created_by, {ENQUEUED_BY})", term, place)
        case "priority" | "attempts":
            return _compared(term.field, term, place, "integer")
        case "worker":
            return id_in(term, "wrk", place, _WORKERS.get(room, "NULL::uuid"))
        case "error":
            return _any(_texts(column, term, place) for column in _ERRORS.get(room, (_NOTHING,)))
        case "fingerprint":
            own = f"coalesce(fingerprint, '{NO_FINGERPRINT}')"
            return _texts(own if room == "finished" else _NOTHING, term, place)
        case "settled":
            is_settled = "EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = id)"
            return _any(is_settled if value == "yes" else f"NOT {is_settled}" for value in term.values)
        case "late":
            return _compared(f"{_STARTED.get(room, now)} - scheduled_for", term, place, "interval")
        case "waits":
            # As the number of what is late now counts it: what could be taken at once, if a slot were free.
            return _compared(f"{now} - run_at" if room == "ready" else "NULL::interval", term, place, "interval")
        case "took":
            return _compared(_took(room, now), term, place, "interval")
        case "payload":
            kept = f"CASE WHEN job.version = {room}.version THEN job.payload ELSE timeball.payload_of(job_id, {room}.version) END"
            whole = f"coalesce({room}.payload, (SELECT {kept} FROM timeball.job WHERE job.id = job_id))"
            return _texts(f"({whole} #>> {place(list(term.path), 'text[]')})", term, place)
        case "after":
            return _any(f"id >= {place(first_id_at(_at(value, moment)), 'uuid')}" for value in term.values)
        case "before":
            return _any(f"id < {place(first_id_at(_at(value, moment)), 'uuid')}" for value in term.values)
    raise AssertionError(term.field)


def name_condition(term: Term, place: Place) -> str:
    """What must hold of a job's name, as a term about executions says it."""
    return _like("job.name", term, place) if term.field == "" else _texts("job.name", term, place)


def ids_of_job(term: Term, named: NamedJobs) -> list[UUID]:
    """The jobs whose executions a term asks for, if it asks for jobs."""
    if term.field != "job":
        return []
    return list({*named.get(term, ()), *_ids_among(term, "job")})


def means_no_job(term: Term, named: NamedJobs) -> bool:
    """Whether a term asks for executions of a job, or for one by its id, and there can be none."""
    if term.is_negated or term not in named or named[term]:
        return False
    return not _ids_among(term, "exe" if term.field == "" else "job")


def job_condition(
    term: Term,
    place: Place,
    moment: datetime,
    *,
    status: Callable[[JobStatus], str],
    states: Callable[[Sequence[ExecutionState]], str],
) -> str:
    """What must hold of a job; how it stands is asked elsewhere."""
    return _negated(term, _of_definition(term, place, moment, status, states))


def _of_definition(
    term: Term,
    place: Place,
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
        case "name" | "queue" | "handler" | "kind":
            return _texts(f"job.{term.field}", term, place)
        case "created_by":
            return _author("job.created_by", term, place)
        case "zone":
            return _texts("job.timezone", term, place)
        case "tag":
            return _any_tag(term, place)
        case "priority":
            return _compared("job.priority", term, place, "integer")
        case "payload":
            return _texts(f"(job.payload #>> {place(list(term.path), 'text[]')})", term, place)
        case "after":
            return _any(f"job.created_at >= {place(_at(value, moment), 'timestamptz')}" for value in term.values)
        case "before":
            return _any(f"job.created_at < {place(_at(value, moment), 'timestamptz')}" for value in term.values)
    raise AssertionError(term.field)


def _negated(term: Term, condition: str) -> str:
    return f"({condition}) IS NOT TRUE" if term.is_negated else condition


def _any(conditions: Any) -> str:
    return f"({' OR '.join(conditions)})"


def _texts(column: str, term: Term, place: Place) -> str:
    if term.relation is Relation.LIKE:
        return f"{column} ILIKE ANY ({place([_pattern(str(value)) for value in term.values], 'text[]')})"
    return f"{column} = ANY ({place([str(value) for value in term.values], 'text[]')})"


def _like(column: str, term: Term, place: Place) -> str:
    """A bare word may stand anywhere."""
    patterns = [_pattern(f"*{value}*") for value in term.values]
    return f"{column} ILIKE ANY ({place(patterns, 'text[]')})"


def _author(column: str, term: Term, place: Place) -> str:
    """An author is named in full, by the id of a key alone, or by the name that a key was given."""
    if term.relation is Relation.LIKE:
        return _texts(column, term, place)
    whole, key, name = column, f"split_part({column}, ' ', 1)", f"substr({column}, strpos({column}, ' ') + 1)"
    return _any(_texts(part, term, place) for part in (whole, key, name))


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def _compared(expression: str, term: Term, place: Place, kind: str) -> str:
    operator = _OPERATORS[term.relation]
    return _any(f"({expression}) {operator} {place(value, kind)}" for value in term.values)


def _took(room: str, now: str) -> str:
    if room == "finished":
        return "finished_at - started_at"
    return f"{now} - {_STARTED[room]}" if room == "running" else "NULL::interval"


def id_in(term: Term, prefix: str, place: Place, column: str = "id") -> str:
    """Whether a column holds one of the ids among the values of a term."""
    ids = _ids_among(term, prefix)
    return f"{column} = ANY ({place(ids, 'uuid[]')})" if ids else "false"


def _ids_among(term: Term, prefix: str) -> list[UUID]:
    return [found for value in term.values if (found := _parsed(prefix, str(value))) is not None]


def _parsed(prefix: str, text: str) -> UUID | None:
    try:
        return parse_id(prefix, text)
    except InvalidInput:
        return None


def _of_job(condition: str) -> str:
    """A look at the job of each row, as a value: a planner would turn EXISTS into a reading of all jobs."""
    return f"(SELECT {condition} FROM timeball.job WHERE job.id = job_id)"


def _any_tag(term: Term, place: Place) -> str:
    if term.relation is Relation.LIKE:
        return f"EXISTS (SELECT 1 FROM unnest(job.tags) AS tag WHERE {_texts('tag', term, place)})"
    return f"job.tags && {place([str(value) for value in term.values], 'text[]')}"


def _at(value: Any, moment: datetime) -> datetime:
    return moment + value if isinstance(value, timedelta) else value
