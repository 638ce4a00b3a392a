"""The filtered lists, our only composed queries; and the overviews.

A list of executions is one branch per room and state, each read in the order of its own index and cut to the page, then
merged. So a page costs the same with a hundred executions and with a million. Only texts written here are glued together:
every value that comes from outside is a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from timeball.domain.execution import Execution, ExecutionState
from timeball.domain.ids import ExecutionId, JobId
from timeball.domain.job import Job, JobStatus
from timeball.domain.search import (
    EXACT_UP_TO,
    ExecutionFilter,
    JobFilter,
    JobOrder,
    Page,
    PageRequest,
    Total,
    first_id_at,
    read_cursor,
    time_of_id,
    write_cursor,
)
from timeball.store.database import Database
from timeball.store.jobs import Jobs
from timeball.store.placing import AuditEntry
from timeball.store.rows import execution_from, job_from
from timeball.store.searching import execution_condition, job_condition

# A list that takes longer is given up: its filter matches too little of too much.
_PATIENCE_SECONDS = 10
# How many rows of a room are looked at in one stretch of a search, and for how long stretches are added for one page.
_STRETCH = 10_000
_SEARCH_SECONDS = 2.0
_BY_ID = "id"
_FIRST_ID, _LAST_ID = UUID(int=0), UUID(int=2**128 - 1)

_COMMON = "id, job_id, origin, version, queue, priority, handler, scheduled_for, queued_at, attempts, lost, fence, tzdata, retry_of"
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


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands: whether anything of it lives, when it is next due, and how it last ended."""

    is_live: bool
    next_run_at: datetime | None
    last_id: ExecutionId | None
    last_state: ExecutionState | None
    last_finished_at: datetime | None


class Listing:
    """Everything that is read for people: pages, totals, overviews."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs

    # executions

    async def executions(self, wanted: ExecutionFilter, request: PageRequest) -> Page[Execution]:
        """A page of executions, the latest ids first.

        What no index leads to is searched for in stretches, for a short while; a page that is not full by then says how
        far the search has come, and its cursor goes on from there.
        """
        before = None if request.cursor is None else UUID(read_cursor(request.cursor, _BY_ID, 1)[0])
        clock = self._database.env.clock
        deadline = clock.monotonic() + _SEARCH_SECONDS
        is_searched = request.page is None and _needs_search(wanted)
        found: list[Execution] = []
        floor = before
        while len(found) <= request.limit:
            before = floor
            floor = await self._end_of_stretch(wanted, before) if is_searched else None
            found += await self._stretch(wanted, request, before, floor)
            if floor is None or clock.monotonic() >= deadline:
                break
        items = found[: request.limit]
        total = await self._total_of_executions(wanted) if request.with_total else None
        if len(found) > request.limit:
            return Page(items, write_cursor(_BY_ID, items[-1].id), total)
        if floor is None:
            return Page(items, None, total)
        return Page(items, write_cursor(_BY_ID, floor), total, searched_to=time_of_id(floor))

    async def _stretch(
        self, wanted: ExecutionFilter, request: PageRequest, before: UUID | None, floor: UUID | None
    ) -> list[Execution]:
        values = _Values()
        text = self._execution_query(wanted, values, before, request.offset + request.limit + 1, floor)
        text += f" ORDER BY id DESC OFFSET {int(request.offset)} LIMIT {int(request.limit) + 1}"
        return [execution_from(row) for row in await self._fetch(text, values)]

    async def _end_of_stretch(self, wanted: ExecutionFilter, before: UUID | None) -> UUID | None:
        """Down to which id one stretch goes: as far as it takes to look at so many rows of one room; None is to the end."""
        values = _Values()
        only_indexed = replace(wanted, handler=None, queue=None, origin=None, terms=(), is_unsettled=False)
        branches = self._execution_branches(only_indexed, values, before, None)
        order = _order_of(wanted)
        ends = [f"(SELECT id FROM ({one}) AS room ORDER BY {order} OFFSET {_STRETCH - 1} LIMIT 1)" for one in branches]
        text = f"SELECT id FROM ({' UNION ALL '.join(ends)}) AS ends ORDER BY id DESC LIMIT 1"
        rows = await self._fetch(text, values)
        return rows[0]["id"] if rows else None

    async def _total_of_executions(self, wanted: ExecutionFilter) -> Total:
        values = _Values()
        text = self._execution_query(wanted, values, None, EXACT_UP_TO + 1)
        estimate = _Values()
        whole = self._execution_query(wanted, estimate, None, None)
        return await self._total(text, values, whole, estimate)

    def _execution_query(
        self,
        wanted: ExecutionFilter,
        values: _Values,
        before: UUID | None,
        limit: int | None,
        floor: UUID | None = None,
    ) -> str:
        order = _order_of(wanted)
        branches = [_cut(one, order, limit) for one in self._execution_branches(wanted, values, before, floor)]
        return f"SELECT * FROM ({' UNION ALL '.join(branches)}) AS found"

    def _execution_branches(
        self, wanted: ExecutionFilter, values: _Values, before: UUID | None, floor: UUID | None
    ) -> list[str]:
        conditions = _execution_conditions(wanted, values, before)
        if floor is not None:
            conditions.append(f"id >= {values.add(floor, 'uuid')}")
        moment = self._database.env.clock.statement_now()
        # Only tests move the time; a parameter that some branches do not use would have no type.
        now = "now()" if moment is None else _literal(moment)
        terms = [term for term in wanted.terms if term.field != "status"]
        instant = self._database.env.clock.now()
        branches = []
        for room, select, extra in _branches(wanted, now):
            for own in _ownership(wanted, values):
                asked = [execution_condition(term, room, values.add, now, instant) for term in terms]
                branches.append(f"{select} {' AND '.join([*extra, *conditions, *own, *asked]) or 'true'}")
        return branches

    async def explain_executions(self, wanted: ExecutionFilter, request: PageRequest) -> str:
        """The plan of a page: tests look whether it is read in the order of an index."""
        values = _Values()
        before = None if request.cursor is None else UUID(read_cursor(request.cursor, _BY_ID, 1)[0])
        text = self._execution_query(wanted, values, before, request.limit + 1) + " ORDER BY id DESC"
        rows = await self._fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {text}", values)
        return "\n".join(row[0] for row in rows)

    async def execution_extras(self, execution_id: ExecutionId) -> dict[str, Any]:
        """The payload an execution has of its own (JSON text), its fingerprint, and whether it was asked to stop."""
        row = await self._database.fetch_row("execution_extras", id=execution_id)
        return {} if row is None else dict(row)

    # jobs

    async def jobs(self, wanted: JobFilter, order: JobOrder, request: PageRequest) -> Page[Job]:
        """A page of jobs that are not deleted."""
        values = _Values()
        column = "name" if order in (JobOrder.NAME, JobOrder.NAME_BACKWARDS) else "id"
        is_descending = order in (JobOrder.NEWEST, JobOrder.NAME_BACKWARDS)
        conditions = _job_conditions(wanted, values, self._database.env.clock.now())
        if column == "name":
            conditions.append("job.name IS NOT NULL")
        if request.cursor is not None:
            position, last_id = read_cursor(request.cursor, order.value, 2)
            place = values.add(position, "text") if column == "name" else values.add(UUID(last_id), "uuid")
            conditions.append(f"job.{column} {'<' if is_descending else '>'} {place}")
        direction = "DESC" if is_descending else "ASC"
        text = (
            f"SELECT *, payload::text AS payload_text FROM timeball.job WHERE {' AND '.join(conditions)} "
            f"ORDER BY job.{column} {direction} OFFSET {int(request.offset)} LIMIT {int(request.limit) + 1}"
        )
        found = [job_from(row) for row in await self._fetch(text, values)]
        items = found[: request.limit]
        cursor = write_cursor(order.value, items[-1].name, items[-1].id) if len(found) > request.limit else None
        return Page(items, cursor, await self._total_of_jobs(wanted) if request.with_total else None)

    async def _total_of_jobs(self, wanted: JobFilter) -> Total:
        values = _Values()
        conditions = _job_conditions(wanted, values, self._database.env.clock.now())
        text = f"SELECT job.id FROM timeball.job WHERE {' AND '.join(conditions)}"
        return await self._total(f"{text} LIMIT {EXACT_UP_TO + 1}", values, text, values)

    async def standings(self, ids: Sequence[JobId]) -> dict[JobId, Standing]:
        """How these jobs stand."""
        rows = await self._database.fetch("standing_of_jobs", ids=list(ids))
        return {JobId(row["id"]): _standing_from(row) for row in rows}

    async def job_names(self, ids: Sequence[JobId]) -> dict[JobId, str | None]:
        """What these jobs are called; a deleted one keeps its name here."""
        rows = await self._database.fetch("names_of_jobs", ids=list(ids))
        return {JobId(row["id"]): row["name"] for row in rows}

    async def recent_runs(self, ids: Sequence[JobId], count: int) -> dict[JobId, list[dict[str, Any]]]:
        """How the latest executions of each of these jobs ended, the oldest first."""
        found: dict[JobId, list[dict[str, Any]]] = {job_id: [] for job_id in ids}
        for row in await self._database.fetch("recent_runs_of_jobs", ids=list(ids), count=count):
            found[JobId(row["job_id"])].insert(0, dict(row))
        return found

    # dead letters

    async def dead_groups(self, limit: int) -> list[dict[str, Any]]:
        """The latest dead, by what killed them, the largest group first."""
        rows = await self._database.fetch("dead_groups", most=EXACT_UP_TO, limit=limit)
        return [dict(row) for row in rows]

    async def settle(self, ids: Sequence[ExecutionId], how: str, audit: AuditEntry) -> set[ExecutionId]:
        """Take dead executions off the dead-letter list; returns those that were on it."""

        async def work(connection: Any) -> set[ExecutionId]:
            rows = await self._database.fetch("settle", connection, ids=list(ids), how=how)
            if rows:
                facts = {"executions": [str(row["execution_id"]) for row in rows[:100]], "count": len(rows)}
                await self._jobs.audit(connection, audit, f"dead_letter.{how}", f"{len(rows)} executions", None, facts)
            return {ExecutionId(row["execution_id"]) for row in rows}

        settled: set[ExecutionId] = await self._database.repeat(work)
        return settled

    # overviews

    async def queues(self, name: str | None = None) -> list[dict[str, Any]]:
        """Queues with depth, oldest instant, pause and limit; one of them, if it is named."""
        return [dict(row) for row in await self._database.fetch("queue_overview", name=name, most=EXACT_UP_TO)]

    async def waiting_counts(self) -> dict[str, int]:
        """How much is scheduled, retrying, queued and running, each counted up to 10,001."""
        return dict(await self._database.fetch_row("waiting_counts", most=EXACT_UP_TO) or {})

    async def schema(self) -> int:
        """The number of the latest migration in this database."""
        return int(await self._database.fetch_value("applied_schema") or 0)

    async def ownerless_shards(self) -> int:
        """How many shards nobody alive looks after."""
        return int(await self._database.fetch_value("ownerless_shards") or 0)

    async def audit(self, subject: str | None, actor: str | None, request: PageRequest) -> Page[dict[str, Any]]:
        """What was changed, and by whom, the latest first."""
        values = _Values()
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
        found = [dict(row) for row in await self._fetch(text, values)]
        items = found[: request.limit]
        return Page(items, write_cursor(_BY_ID, items[-1]["id"]) if len(found) > request.limit else None)

    # running

    async def _total(self, capped: str, values: _Values, whole: str, whole_values: _Values) -> Total:
        rows = await self._fetch(
            f"SELECT count(*) FROM (SELECT 1 FROM ({capped}) AS whole LIMIT {EXACT_UP_TO + 1}) AS few",
            values,
        )
        if rows[0][0] <= EXACT_UP_TO:
            return Total(rows[0][0], is_exact=True)
        plan = await self._fetch(f"EXPLAIN (FORMAT JSON) {whole}", whole_values)
        estimate = orjson.loads(plan[0][0])[0]["Plan"]["Plan Rows"]
        return Total(max(int(estimate), EXACT_UP_TO + 1), is_exact=False)

    async def _fetch(self, text: str, values: _Values) -> list[Any]:
        async with self._database.connection() as connection:
            if not self._database.behind_pgbouncer:
                rows: list[Any] = await connection.fetch(text, *values.given, timeout=_PATIENCE_SECONDS)
                return rows
            async with connection.transaction():
                return list(await connection.fetch(text, *values.given, timeout=_PATIENCE_SECONDS))


class _Values:
    """The parameters of a composed query, in the order they were added."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def add(self, value: Any, kind: str) -> str:
        """Give a value, get its place."""
        self.given.append(value)
        return f"${len(self.given)}::{kind}"


_Branch = tuple[str, str, list[str]]


def _branches(wanted: ExecutionFilter, now: str) -> list[_Branch]:
    """For each room that can hold what is wanted: its name, what to select, and the conditions that make the state."""

    def branch(room: str, state: str, columns: str, *conditions: str) -> _Branch:
        return room, f"SELECT {_COMMON}, {state} AS state, {columns} FROM timeball.{room} WHERE", list(conditions)

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


def _ownership(wanted: ExecutionFilter, values: _Values) -> list[list[str]]:
    """A job's executions: those under ids of their own, by the indexes on job_id; and the one that bears the job's id."""
    if wanted.job_id is None:
        return [[]]
    place = values.add(wanted.job_id, "uuid")
    # Rows are compared, not job_id alone: only the index on (job_id, id) has their order. Otherwise the planner may
    # walk the whole history by id to find the few executions of one job.
    span = [f"(job_id, id) >= ({place}, '{_FIRST_ID}'::uuid)", f"(job_id, id) <= ({place}, '{_LAST_ID}'::uuid)"]
    return [[*span, "job_id <> id"], [f"id = {place}", "job_id = id"]]


def _needs_search(wanted: ExecutionFilter) -> bool:
    """Whether something is asked for that no index leads to: it may be as rare as it likes."""
    terms = any(term.field != "status" for term in wanted.terms)
    return (
        terms
        or wanted.is_unsettled
        or any(value is not None for value in (wanted.handler, wanted.queue, wanted.origin))
    )


def _order_of(wanted: ExecutionFilter) -> str:
    return "id DESC" if wanted.job_id is None else "job_id DESC, id DESC"


def _execution_conditions(wanted: ExecutionFilter, values: _Values, before: UUID | None) -> list[str]:
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
    if wanted.fingerprint is not None:
        conditions.append(f"fingerprint = {values.add(wanted.fingerprint, 'text')}")
    if wanted.is_unsettled:
        conditions.append("NOT EXISTS (SELECT 1 FROM timeball.settled WHERE settled.execution_id = id)")
    return conditions


def _literal(moment: datetime) -> str:
    return f"'{moment.isoformat()}'::timestamptz"


def _cut(branch: str, order: str, limit: int | None) -> str:
    return f"({branch} ORDER BY {order} LIMIT {int(limit)})" if limit is not None else f"({branch})"


_LIVE = " OR ".join(  # noqa: FLY002
    [
        "EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.kind = 'occurrence')",
        "EXISTS (SELECT 1 FROM timeball.due WHERE due.id = job.id)",
        "EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.job_id <> due.id AND due.kind <> 'resume')",
        "EXISTS (SELECT 1 FROM timeball.ready WHERE ready.id = job.id)",
        "EXISTS (SELECT 1 FROM timeball.ready WHERE ready.job_id = job.id AND ready.job_id <> ready.id)",
        "EXISTS (SELECT 1 FROM timeball.blocked WHERE blocked.job_id = job.id)",
        "EXISTS (SELECT 1 FROM timeball.running WHERE running.id = job.id)",
        "EXISTS (SELECT 1 FROM timeball.running WHERE running.job_id = job.id AND running.job_id <> running.id)",
    ]
)
_STATUS = {
    JobStatus.PAUSED: "job.paused_at IS NOT NULL",
    JobStatus.ACTIVE: f"(job.paused_at IS NULL AND (job.kind = 'manual' OR {_LIVE}))",
    JobStatus.FINISHED: f"(job.paused_at IS NULL AND job.kind <> 'manual' AND NOT ({_LIVE}))",
}
_ENDED_AS = """
EXISTS (
    SELECT 1
    FROM (
        (
            SELECT id, state
            FROM timeball.finished
            WHERE (finished.job_id, finished.id) >= (job.id, '00000000-0000-0000-0000-000000000000'::uuid)
              AND (finished.job_id, finished.id) <= (job.id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
              AND finished.job_id <> finished.id
            ORDER BY job_id DESC, id DESC
            LIMIT 1
        )
        UNION ALL
        SELECT id, state FROM timeball.finished WHERE finished.id = job.id
        ORDER BY id DESC
        LIMIT 1
    ) AS latest
    WHERE latest.state = ANY ({states})
)"""
_IN_DUE = (
    "EXISTS (SELECT 1 FROM timeball.due "
    "WHERE ((due.job_id = job.id AND due.job_id <> due.id) OR due.id = job.id) AND due.kind {kinds})"
)
_IN_ROOM = "EXISTS (SELECT 1 FROM timeball.{room} WHERE ({room}.job_id = job.id AND {room}.job_id <> {room}.id) OR {room}.id = job.id)"
_HAS_ONE = {
    ExecutionState.SCHEDULED: _IN_DUE.format(kinds="NOT IN ('retry', 'resume')"),
    ExecutionState.RETRYING: _IN_DUE.format(kinds="= 'retry'"),
    ExecutionState.QUEUED: f"({_IN_ROOM.format(room='ready')} OR {_IN_ROOM.format(room='blocked')})",
    ExecutionState.RUNNING: _IN_ROOM.format(room="running"),
}


def _job_conditions(wanted: JobFilter, values: _Values, moment: datetime) -> list[str]:
    conditions = ["job.deleted_at IS NULL"]
    for term in wanted.terms:
        conditions.append(
            job_condition(
                term, values.add, moment, status=_STATUS.__getitem__, states=lambda some: _state_condition(some, values)
            )
        )
    if wanted.status is not None:
        conditions.append(_STATUS[wanted.status])
    if wanted.states:
        conditions.append(_state_condition(wanted.states, values))
    for column, value in (("kind", wanted.kind), ("handler", wanted.handler), ("queue", wanted.queue)):
        if value is not None:
            conditions.append(f"job.{column} = {values.add(str(value), 'text')}")
    if wanted.tag is not None:
        conditions.append(f"{values.add(wanted.tag, 'text')} = ANY (job.tags)")
    if wanted.is_named:
        conditions.append("job.name IS NOT NULL")
    if wanted.search is not None:
        # As text, not as a pattern; only named jobs can be found by name, and those have an index of their own.
        conditions.append(
            f"job.name IS NOT NULL AND strpos(lower(job.name), lower({values.add(wanted.search, 'text')})) > 0"
        )
    if wanted.payload is not None:
        conditions.append(f"strpos(lower(job.payload::text), lower({values.add(wanted.payload, 'text')})) > 0")
    if wanted.created_from is not None:
        conditions.append(f"job.created_at >= {values.add(wanted.created_from, 'timestamptz')}")
    if wanted.created_until is not None:
        conditions.append(f"job.created_at <= {values.add(wanted.created_until, 'timestamptz')}")
    if wanted.due_from is not None or wanted.due_until is not None:
        low = values.add(wanted.due_from, "timestamptz")
        high = values.add(wanted.due_until, "timestamptz")
        conditions.append(
            "EXISTS (SELECT 1 FROM timeball.due WHERE due.job_id = job.id AND due.kind = 'occurrence' "
            f"AND due.run_at >= coalesce({low}, '-infinity') AND due.run_at <= coalesce({high}, 'infinity'))"
        )
    return conditions


def _state_condition(states: Sequence[ExecutionState], values: _Values) -> str:
    """Something of the job waits or runs in one of these states, or its latest ended execution ended so."""
    parts = [_HAS_ONE[state] for state in states if not state.is_final]
    ended = [state.value for state in states if state.is_final]
    if ended:
        parts.append(_ENDED_AS.format(states=values.add(ended, "text[]")))
    return f"({' OR '.join(parts)})"


def _standing_from(row: Any) -> Standing:
    return Standing(
        row["is_live"],
        row["next_run_at"],
        None if row["last_id"] is None else ExecutionId(row["last_id"]),
        None if row["last_state"] is None else ExecutionState(row["last_state"]),
        row["last_finished_at"],
    )
