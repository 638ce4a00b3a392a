"""A page of jobs.

Among a million one-offs, what people look for is mostly rare: the paused, the recurring, what is tagged, what runs just now.
Each of those has an index, or a room, that leads to it. Where a filter has such leads and they are short, only the jobs they
lead to are looked at; all else is searched for in stretches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from timeball.domain.execution import ExecutionState
from timeball.domain.ids import first_id_at, made_at
from timeball.domain.job import Job, JobStatus
from timeball.domain.search import JobFilter, JobOrder, read_cursor, write_cursor
from timeball.store.composing import Reader, Values
from timeball.store.rows import job_from
from timeball.store.searching import job_condition

Place = UUID | str
_FIRST_ID = UUID(int=0)
# An id bears the moment at which the job was put together, `created_at` that of its transaction.
_APART = timedelta(days=1)
# So many of very many are judged, where only about how many there are is asked for.
_FEW = 100


class JobSearch:
    """The jobs that a filter leaves; a place is an id, or a name in the orders by name."""

    def __init__(self, reader: Reader, wanted: JobFilter, order: JobOrder, only: Sequence[bytes] | None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._order = order
        self._by_name = order.is_by_name
        self._is_descending = order in (JobOrder.NEWEST, JobOrder.NAME_BACKWARDS)
        self._column = "name" if self._by_name else "id"
        is_filtered = replace(wanted, is_named=False) != JobFilter() or (wanted.is_named and not self._by_name)
        self._is_searched = is_filtered and only is None
        self._only = None if only is None else sorted(only, reverse=self._is_descending)

    async def end(self, start: Place | None, length: int) -> Place | None:
        """As far as it takes to look at so many jobs."""
        if self._only is not None:
            # By name all of them are looked at, but few have one.
            behind = [] if self._by_name else self._among_only(start, None)
            return UUID(bytes=behind[length - 1]) if len(behind) > length else None
        if not self._is_searched:
            return None
        values = Values()
        conditions = self._bounds(values, start, None)
        text = (
            f"SELECT job.{self._column} FROM timeball.job WHERE {' AND '.join(conditions)} "
            f"{self._ordered()} OFFSET {int(length) - 1} LIMIT 1"
        )
        rows = await self._reader.fetch(text, values)
        return rows[0][0] if rows else None

    async def items(self, start: Place | None, end: Place | None, skip: int, most: int) -> list[Job]:
        """A page's worth of a stretch."""
        values = Values()
        text = self._query("*, payload::text AS payload_text", values, start, end)
        text += f" {self._ordered()} OFFSET {int(skip)} LIMIT {int(most)}"
        return [job_from(row) for row in await self._reader.fetch(text, values)]

    async def count(self, start: Place | None, end: Place | None, most: int) -> int:
        """How many match within a stretch."""
        values = Values()
        return await self._reader.count(self._query("job.id", values, start, end), values, most)

    async def estimate(self) -> int:
        """How many there are, as the planner believes."""
        values = Values()
        return await self._reader.estimate(self._query("job.id", values, None, None), values)

    async def guess(self, exact_up_to: int) -> int | None:
        """How many of those that were led to match, if each has to be looked up in the rooms: by the share of the first few."""
        only = self._only or []
        if len(only) <= exact_up_to or not _asks_how_it_stands(self._wanted):
            return None
        few = JobSearch(self._reader, self._wanted, self._order, only[:_FEW])
        return round(await few.count(None, None, _FEW) * len(only) / _FEW)

    async def explain(self, start: Place | None, end: Place | None, most: int) -> str:
        """The plan of a stretch: tests look at what it reads."""
        values = Values()
        text = self._query("*, payload::text AS payload_text", values, start, end)
        return await self._reader.explain(f"{text} {self._ordered()} LIMIT {int(most)}", values)

    def start(self, cursor: str) -> Place:
        """Behind which id, or name, a page begins."""
        name, last_id = read_cursor(cursor, self._order.value, 2)
        return name or "" if self._by_name else UUID(last_id)

    def cursor_after(self, item: Job) -> str:
        """Behind a job."""
        return write_cursor(self._order.value, item.name, item.id)

    def cursor_at(self, place: Place) -> str:
        """Behind an id, or a name."""
        name, last_id = (place, _FIRST_ID) if self._by_name else (None, place)
        return write_cursor(self._order.value, name, last_id)

    def moment_of(self, place: Place) -> datetime | None:
        """The instant that an id bears."""
        return made_at(place) if isinstance(place, UUID) else None

    def _query(self, columns: str, values: Values, start: Place | None, end: Place | None) -> str:
        conditions = self._bounds(values, start, end)
        if self._only is not None:
            few = [UUID(bytes=id_) for id_ in (self._only if self._by_name else self._among_only(start, end))]
            conditions.append(f"job.id = ANY ({values.add(few, 'uuid[]')})")
        conditions += _conditions(self._wanted, values, self._reader.clock.now())
        return f"SELECT {columns} FROM timeball.job WHERE {' AND '.join(conditions)}"

    def _among_only(self, start: Place | None, end: Place | None) -> list[bytes]:
        """The jobs that were led to, within a stretch and in its order."""
        ids = self._only or []
        first = self._number_behind(start) if isinstance(start, UUID) else 0
        last = self._number_behind(end) if isinstance(end, UUID) else len(ids)
        return ids[first:last]

    def _number_behind(self, place: UUID) -> int:
        """How many of the jobs that were led to do not lie behind a place."""
        sign = -1 if self._is_descending else 1
        return bisect_right(self._only or [], sign * place.int, key=lambda id_: sign * int.from_bytes(id_))

    def _bounds(self, values: Values, start: Place | None, end: Place | None) -> list[str]:
        """What the index that the list is read by knows of."""
        kind = "text" if self._by_name else "uuid"
        beyond, within = ("<", ">=") if self._is_descending else (">", "<=")
        bounds = (
            ["job.name IS NOT NULL", "job.deleted_at IS NULL"] if self._by_name else _id_bounds(self._wanted, values)
        )
        if start is not None:
            bounds.append(f"job.{self._column} {beyond} {values.add(start, kind)}")
        if end is not None:
            bounds.append(f"job.{self._column} {within} {values.add(end, kind)}")
        return bounds or ["true"]

    def _ordered(self) -> str:
        return f"ORDER BY job.{self._column} {'DESC' if self._is_descending else 'ASC'}"


def _asks_how_it_stands(wanted: JobFilter) -> bool:
    return bool(wanted.status or wanted.states) or any(term.field == "status" for term in wanted.terms)


def _id_bounds(wanted: JobFilter, values: Values) -> list[str]:
    """Ids are in the order of creation, nearly: the exact instants are compared besides."""
    bounds = []
    if wanted.created_from is not None:
        bounds.append(f"job.id >= {values.add(first_id_at(wanted.created_from - _APART), 'uuid')}")
    if wanted.created_until is not None:
        bounds.append(f"job.id < {values.add(first_id_at(wanted.created_until + _APART), 'uuid')}")
    return bounds


# Looks into the rooms are values, not EXISTS: a planner may answer many of those by reading a whole room.
def _has_one(room: str, *conditions: str) -> str:
    return f"(SELECT true FROM timeball.{room} WHERE {' AND '.join(conditions)} LIMIT 1) IS NOT NULL"


def _in_room(room: str, *conditions: str) -> str:
    """Enqueued executions bear their job's id; the indexes on job_id leave them out, so both are asked for."""
    own = _has_one(room, f"{room}.id = job.id", *conditions)
    others = _has_one(room, f"{room}.job_id = job.id", f"{room}.job_id <> {room}.id", *conditions)
    return f"({own} OR {others})"


_HAS_ONE = {
    ExecutionState.SCHEDULED: _in_room("due", "due.kind NOT IN ('retry', 'resume')"),
    ExecutionState.RETRYING: _in_room("due", "due.kind = 'retry'"),
    ExecutionState.QUEUED: f"({_in_room('ready')} OR {_has_one('blocked', 'blocked.job_id = job.id')})",
    ExecutionState.RUNNING: _in_room("running"),
}
_WAITS = _in_room("due", "due.kind <> 'resume'")
_LIVE = f"({_WAITS} OR {_HAS_ONE[ExecutionState.QUEUED]} OR {_HAS_ONE[ExecutionState.RUNNING]})"
_STATUS = {
    JobStatus.PAUSED: "job.paused_at IS NOT NULL",
    JobStatus.ACTIVE: f"(job.paused_at IS NULL AND (job.kind = 'manual' OR {_LIVE}))",
    JobStatus.FINISHED: f"(job.paused_at IS NULL AND job.kind <> 'manual' AND NOT {_LIVE})",
}
# Rows are compared, not job_id alone: otherwise the planner may walk the whole history by id to find the latest of one job.
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


def _conditions(wanted: JobFilter, values: Values, moment: datetime) -> list[str]:
    def states(some: Sequence[ExecutionState]) -> str:
        return _state_condition(some, values)

    conditions = ["job.deleted_at IS NULL"]
    for term in wanted.terms:
        conditions.append(job_condition(term, values.add, moment, status=_STATUS.__getitem__, states=states))
    if wanted.status is not None:
        conditions.append(_STATUS[wanted.status])
    if wanted.states:
        conditions.append(states(wanted.states))
    for column, value in (("kind", wanted.kind), ("handler", wanted.handler), ("queue", wanted.queue)):
        if value is not None:
            conditions.append(f"job.{column} = {values.add(str(value), 'text')}")
    if wanted.tag is not None:
        conditions.append(f"job.tags @> {values.add([wanted.tag], 'text[]')}")
    if wanted.is_named:
        conditions.append("job.name IS NOT NULL")
    if wanted.search is not None:
        # As text, not as a pattern.
        conditions.append(f"strpos(lower(job.name), lower({values.add(wanted.search, 'text')})) > 0")
    if wanted.payload is not None:
        conditions.append(f"strpos(lower(job.payload::text), lower({values.add(wanted.payload, 'text')})) > 0")
    return [*conditions, *_dates(wanted, values)]


def _dates(wanted: JobFilter, values: Values) -> list[str]:
    dates = []
    if wanted.created_from is not None:
        dates.append(f"job.created_at >= {values.add(wanted.created_from, 'timestamptz')}")
    if wanted.created_until is not None:
        dates.append(f"job.created_at <= {values.add(wanted.created_until, 'timestamptz')}")
    if wanted.due_from is not None or wanted.due_until is not None:
        low = values.add(wanted.due_from, "timestamptz")
        high = values.add(wanted.due_until, "timestamptz")
        within = f"due.run_at BETWEEN coalesce({low}, '-infinity') AND coalesce({high}, 'infinity')"
        dates.append(_has_one("due", "due.job_id = job.id", "due.kind = 'occurrence'", within))
    return dates


def _state_condition(states: Sequence[ExecutionState], values: Values) -> str:
    """Something of the job waits or runs in one of these states, or its latest ended execution ended so."""
    parts = [_HAS_ONE[state] for state in states if not state.is_final]
    ended = [state.value for state in states if state.is_final]
    if ended:
        parts.append(_ENDED_AS.format(states=values.add(ended, "text[]")))
    return f"({' OR '.join(parts)})"
