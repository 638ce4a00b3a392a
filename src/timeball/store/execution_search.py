"""A page of executions.

A list of executions is one branch per room and state, each read in the order of its own index and cut to the page, then
merged. So a page costs the same with a hundred executions and with a million; what no index leads to is searched for in
stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from timeball.domain.dead_letters import NO_FINGERPRINT
from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.ids import first_id_at, made_at
from timeball.domain.search import ExecutionFilter, read_cursor, write_cursor
from timeball.store import stretches
from timeball.store.composing import Reader, Values, literal
from timeball.store.rows import execution_from
from timeball.store.searching import ENQUEUED_BY, NamedJobs, execution_condition, means_no_job

_BY_ID = "id"
_FIRST_ID, _LAST_ID = UUID(int=0), UUID(int=2**128 - 1)

_COMMON = (
    "id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, retry_of, "
    "created_by"
)
_WAITING = (
    "NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::uuid AS worker, NULL::text AS result_text, "
    "NULL::text AS error_type, NULL::text AS error, NULL::text AS reason, run_at, limit_key, unique_key"
)
_RUNNING = (
    "CASE WHEN run_at <= {now} THEN greatest(claimed_at, run_at) END AS started_at, NULL::timestamptz AS finished_at, "
    "holder AS worker, NULL::text AS result_text, NULL::text AS error_type, NULL::text AS error, NULL::text AS reason, "
    "run_at, limit_key, unique_key"
)
_FINISHED = (
    "started_at, finished_at, worker, result::text AS result_text, error_type, error, reason, "
    "NULL::timestamptz AS run_at, NULL::text AS limit_key, NULL::text AS unique_key"
)


# Succeeded ones, the many, are read in the order of their ids: no index leads to them where they are few.
_WITHOUT_INDEX = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SCHEDULED})


class ExecutionSearch:
    """The executions that a filter leaves, the latest ids first; a place is an id."""

    def __init__(self, reader: Reader, wanted: ExecutionFilter, named: NamedJobs | None = None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._named = named or {}
        states = wanted.possible_states()
        is_possible = bool(states) and not any(means_no_job(term, self._named) for term in wanted.terms)
        self._is_searched = is_possible and _needs_search(wanted, states)
        indexed_states = () if _WITHOUT_INDEX.intersection(states) else states
        self._indexed = ExecutionFilter(
            states=indexed_states,
            job_id=wanted.job_id,
            fingerprint=wanted.fingerprint,
            since=wanted.since,
            until=wanted.until,
        )

    async def end(self, start: UUID | None, length: int) -> UUID | None:
        """As far as it takes to look at so many rows of one room."""
        if not self._is_searched:
            return None
        values = Values()
        order = _order_of(self._wanted)
        branches = self._branches(self._indexed, values, start, None, only_ids=True)
        ends = [f"({one} ORDER BY {order} OFFSET {int(length) - 1} LIMIT 1)" for one in branches]
        text = f"SELECT id FROM ({' UNION ALL '.join(ends)}) AS ends ORDER BY id DESC LIMIT 1"
        rows = await self._reader.fetch(text, values)
        return rows[0]["id"] if rows else None

    async def items(self, start: UUID | None, end: UUID | None, skip: int, most: int) -> list[Execution]:
        """A page's worth of a stretch."""
        values = Values()
        text = self._query(values, start, end, skip + most)
        text += f" ORDER BY id DESC OFFSET {int(skip)} LIMIT {int(most)}"
        # Around the page: the jobs of what is shown are looked up, and no others.
        text = f"SELECT *, {ENQUEUED_BY} AS enqueued_by FROM ({text}) AS page ORDER BY id DESC"
        return [execution_from(row) for row in await self._reader.fetch(text, values)]

    async def count(self, start: UUID | None, end: UUID | None, most: int) -> int:
        """How many match within a stretch."""
        values = Values()
        return await self._reader.count(self._query(values, start, end, most), values, most)

    async def estimate(self) -> int:
        """How many there are, as the planner believes."""
        values = Values()
        return await self._reader.estimate(self._query(values, None, None, None), values)

    async def guess(self, exact_up_to: int) -> int | None:
        """They can be counted where they lie."""
        return None

    async def explain(self, start: UUID | None, most: int) -> str:
        """The plan of a page: tests look whether it is read in the order of an index."""
        values = Values()
        end = await self.end(start, stretches.FIRST_STRETCH)
        text = self._query(values, start, end, most) + " ORDER BY id DESC"
        return await self._reader.explain(text, values)

    def start(self, cursor: str) -> UUID:
        """Behind which id a page begins."""
        return UUID(read_cursor(cursor, _BY_ID, 1)[0])

    def cursor_after(self, item: Execution) -> str:
        """Behind an execution."""
        return self.cursor_at(item.id)

    def cursor_at(self, place: UUID) -> str:
        """Behind an id."""
        return write_cursor(_BY_ID, place)

    def moment_of(self, place: UUID) -> datetime:
        """The instant that an id bears."""
        return made_at(place)

    def _query(self, values: Values, start: UUID | None, end: UUID | None, limit: int | None) -> str:
        order = _order_of(self._wanted)
        branches = [_cut(one, order, limit) for one in self._branches(self._wanted, values, start, end)]
        return f"SELECT * FROM ({' UNION ALL '.join(branches)}) AS found"

    def _branches(
        self, wanted: ExecutionFilter, values: Values, start: UUID | None, end: UUID | None, *, only_ids: bool = False
    ) -> list[str]:
        conditions = _conditions(wanted, values, start)
        if end is not None:
            conditions.append(f"id >= {values.add(end, 'uuid')}")
        clock = self._reader.clock
        moment = clock.statement_now()
        # Only tests move the time; a parameter that some branches do not use would have no type.
        now = "now()" if moment is None else literal(moment)
        terms = [term for term in wanted.terms if term.field != "status"]
        instant = clock.now()
        branches = []
        for room, columns, extra in _rooms_of(wanted, now):
            select = f"SELECT {'id' if only_ids else columns} FROM timeball.{room} WHERE"
            for own in _ownership(wanted, values):
                asked = [execution_condition(term, room, values.add, now, instant, self._named) for term in terms]
                branches.append(f"{select} {' AND '.join([*extra, *conditions, *own, *asked]) or 'true'}")
        return branches


_Branch = tuple[str, str, list[str]]


def _rooms_of(wanted: ExecutionFilter, now: str) -> list[_Branch]:
    """For each room that can hold what is wanted: its name, its columns, and the conditions that make the state."""

    def branch(room: str, state: str, columns: str, *conditions: str) -> _Branch:
        return room, f"{_COMMON}, {state} AS state, {columns}", list(conditions)

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
    states = wanted.possible_states()
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


def _ownership(wanted: ExecutionFilter, values: Values) -> list[list[str]]:
    """A job's executions: those under ids of their own, by the indexes on job_id; and the one that bears the job's id."""
    if wanted.job_id is None:
        return [[]]
    place = values.add(wanted.job_id, "uuid")
    # Rows are compared, not job_id alone: only the index on (job_id, id) has their order. Otherwise the planner may
    # walk the whole history by id to find the few executions of one job.
    span = [f"(job_id, id) >= ({place}, '{_FIRST_ID}'::uuid)", f"(job_id, id) <= ({place}, '{_LAST_ID}'::uuid)"]
    return [[*span, "job_id <> id"], [f"id = {place}", "job_id = id"]]


def _needs_search(wanted: ExecutionFilter, states: Sequence[ExecutionState]) -> bool:
    """Whether something is asked for that no index leads to: it may be as rare as it likes."""
    is_some = len(states) < len(ExecutionState) and bool(_WITHOUT_INDEX.intersection(states))
    return (
        any(term.field != "status" for term in wanted.terms)
        or is_some
        or wanted.is_unsettled
        or any(value is not None for value in (wanted.handler, wanted.queue, wanted.origin))
    )


def _order_of(wanted: ExecutionFilter) -> str:
    """An order that only the index has which leads to what is wanted, so that no planner walks by another one."""
    if wanted.job_id is not None:
        return "job_id DESC, id DESC"
    return "id DESC" if wanted.fingerprint is None else "fingerprint DESC, id DESC"


def _conditions(wanted: ExecutionFilter, values: Values, before: UUID | None) -> list[str]:
    conditions = []
    if before is not None:
        conditions.append(f"id < {values.add(before, 'uuid')}")
    if wanted.since is not None:
        conditions.append(f"id >= {values.add(first_id_at(wanted.since), 'uuid')}")
    if wanted.until is not None:
        # The millisecond of *until* itself belongs to it.
        after = first_id_at(wanted.until + timedelta(milliseconds=1))
        conditions.append(f"id < {values.add(after, 'uuid')}")
    for column, value in (("handler", wanted.handler), ("queue", wanted.queue), ("origin", wanted.origin)):
        if value is not None:
            conditions.append(f"{column} = {values.add(str(value), 'text')}")
    if wanted.fingerprint == NO_FINGERPRINT:
        conditions.append("fingerprint IS NULL")
    elif wanted.fingerprint is not None:
        conditions.append(f"fingerprint = {values.add(wanted.fingerprint, 'text')}")
    if wanted.is_unsettled:
        conditions.append("NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = id)")
    return conditions


def _cut(branch: str, order: str, limit: int | None) -> str:
    # (SELECT ...): a planner that knows how many are wanted, and believes that there are hardly more, would fetch and sort all there are.
    return f"({branch} ORDER BY {order} LIMIT (SELECT {int(limit)}))" if limit is not None else f"({branch})"
