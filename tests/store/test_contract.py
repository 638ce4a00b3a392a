"""Every method of the store keeps its contract in any order of calls: real SQL against a small model of the state tables.

The model knows for each execution its table, how often it was tried and lost, the claim of its row, and its payload. After every step all
tables are compared with it. Outcomes come from the holder, or long after another worker has the execution; nodes are removed and try to
renew; people cancel, pause, resume, edit and delete in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from tests.conftest import FreshDatabase
from tests.support.factories import (
    FAILURE,
    FROM_THE_FIRST,
    HANDLER,
    LEASE,
    OPERATOR,
    define_job,
    due_rows,
    first_execution_of,
    found,
    make_node,
    make_owner,
    plan_row,
    promote,
    record,
)
from timeball.domain import job_changes
from timeball.domain.execution import ClaimedExecution, DueKind, Failed, Lost, Outcome, Released, Snoozed, Succeeded
from timeball.domain.job import Job
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId, occurrence_id
from timeball.env import Env
from timeball.store.store import Store
from timeball.store.types import PARKED_AT, ClaimRequest, ShardOwnership
from timeball.testing import VirtualClock

EXAMPLES, STEPS = 12, 30
INTERVAL = timedelta(seconds=20)
MAX_RETRIES, MAX_LOST, MAX_RUNNING = 1, 2, 2

_WAITING = ("due", "ready", "blocked")
_EVERYTHING = """
    SELECT 'due' AS state_table, id, attempts, lost, fence, NULL::uuid AS claim_id, run_at, NULL AS stop, unique_key FROM timeball.due
    UNION ALL SELECT 'ready', id, attempts, lost, fence, NULL, run_at, NULL, unique_key FROM timeball.ready
    UNION ALL SELECT 'blocked', id, attempts, lost, fence, NULL, run_at, NULL, unique_key FROM timeball.blocked
    UNION ALL SELECT 'running', id, attempts, lost, fence, claim_id, run_at, stop, unique_key FROM timeball.running
    UNION ALL SELECT state, id, attempts, lost, fence, NULL, NULL, NULL, NULL FROM timeball.finished
"""
_EMPTY = "job job_version due ready blocked running finished attempt skip_range node queue running_limit live_key audit"

Result = TypeVar("Result")


@dataclass
class Known:
    """An execution in the model; for a finished one, the table is its state."""

    state_table: str
    run_at: datetime
    scheduled_for: datetime
    job_id: JobId
    limit_key: str | None = None
    unique_key: str | None = None
    is_at_most_once: bool = False
    attempts: int = 0
    lost: int = 0
    fence: int = 0
    claim_id: ClaimId | None = None
    holder: Incarnation | None = None
    is_stopped: bool = False
    # The number in its payload. An execution that has never been promoted follows the edits of its job.
    payload: int = 0
    is_promoted: bool = False


@dataclass
class World:
    """A store on an empty database, and a loop to run it on."""

    runner: asyncio.Runner
    store: Store
    owner: ShardOwnership | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    async def begin_anew(self) -> None:
        """The same ids and the same time in every example."""
        self.store.env.clock = VirtualClock()
        self.store.env.random.seed(1833)
        async with self.store.database.transaction() as connection:
            # The ids repeat: an owner of the last example would count as one of this.
            await connection.execute("UPDATE timeball.shard SET owner = NULL")
            await connection.execute(f"TRUNCATE {', '.join(f'timeball.{name}' for name in _EMPTY.split())}")
        self.owner = await make_owner(self.store)


@pytest.fixture
def world(fresh_database: FreshDatabase) -> Iterator[World]:
    """One of the three: PostgreSQL 15, the embedded 18, PgBouncer in transaction mode."""
    with asyncio.Runner() as runner:
        env = Env(VirtualClock(), Random())
        store = Store(fresh_database.dsn, env, behind_pgbouncer=fresh_database.behind_pgbouncer)
        runner.run(store.open(migrates=False))
        yield World(runner, store)
        runner.run(store.close())


@pytest.mark.slow
def test_every_method_keeps_its_contract_in_any_order(world: World) -> None:
    run_state_machine_as_test(
        lambda: Contract(world),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@dataclass
class Worker:
    incarnation: Incarnation
    lease_until: datetime
    is_buried: bool = False


@dataclass
class Schedule:
    job: Job
    next_at: datetime = field(default_factory=lambda: PARKED_AT)


class Contract(RuleBasedStateMachine):
    claims: Bundle[ClaimedExecution] = Bundle("claims")

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.store = world, world.store
        self.known: dict[ExecutionId, Known] = {}
        self.keys: dict[str, ExecutionId] = {}
        self.paused: set[JobId] = set()
        self.deleted: set[JobId] = set()
        self.schedules: list[Schedule] = []
        self.workers: list[Worker] = []
        world.run(world.begin_anew())

    # what there is

    @property
    def now(self) -> datetime:
        return self.store.env.clock.now()

    @property
    def owner(self) -> ShardOwnership:
        assert self.world.owner is not None
        return self.world.owner

    @property
    def edge(self) -> datetime:
        return self.now + self.store.promotion_window

    def in_state_table(self, state_table: str) -> dict[ExecutionId, Known]:
        return {id_: each for id_, each in self.known.items() if each.state_table == state_table}

    # making

    @rule(
        after=st.sampled_from([0, 0, 0, 10]),
        key=st.sampled_from([None, None, "a"]),
        is_limited=st.booleans(),
        is_at_most_once=st.booleans(),
    )
    def enqueue(self, after: int, key: str | None, is_limited: bool, is_at_most_once: bool) -> None:
        limited = {"max_running": MAX_RUNNING, "limit_key": "narrow"} if is_limited else {}
        job = define_job(
            self.store,
            name=None,
            scheduled_at=self.now + timedelta(seconds=after),
            unique_key=key,
            max_retries=MAX_RETRIES,
            max_lost=MAX_LOST,
            payload={"number": 0},
            delivery="at_most_once" if is_at_most_once else "at_least_once",
            **limited,
        )
        first = first_execution_of(job, self.now)
        assert first is not None

        (created,) = self.world.run(self.store.enqueuer.create([job], [first]))

        if key is not None and key in self.keys:
            assert (created.is_new, created.execution_id) == (False, self.keys[key])
            return
        assert (created.is_new, created.execution_id) == (True, job.id)
        state_table = (
            "due" if first.run_at is not None and first.run_at > self.edge else "blocked" if is_limited else "ready"
        )
        run_at = first.run_at or self.now
        self.known[created.execution_id] = Known(
            state_table,
            run_at,
            run_at,
            job.id,
            job.limit_key,
            key,
            is_at_most_once=is_at_most_once,
            is_promoted=state_table != "due",
        )
        if key is not None:
            self.keys[key] = created.execution_id
        self.expect_promotions()

    @rule()
    def schedule(self) -> None:
        if len(self.schedules) < 2:
            spec = {"interval_seconds": INTERVAL.total_seconds(), "overlap": "allow", "misfire_grace_seconds": 86_400}
            job = define_job(self.store, max_retries=MAX_RETRIES, max_lost=MAX_LOST, payload={"number": 0}, **spec)
            first = first_execution_of(job, self.now)
            assert first is not None
            assert first.run_at is not None
            self.world.run(self.store.enqueuer.create([job], [first]))
            self.schedules.append(Schedule(job))
            self.expect_next(self.schedules[-1], first.run_at)

    def expect_next(self, schedule: Schedule, at: datetime) -> None:
        schedule.next_at = at
        self.known[occurrence_id(schedule.job.id, at)] = Known("due", at, at, schedule.job.id)

    @rule()
    def hire(self) -> None:
        if len(self.workers) < 3:
            incarnation = self.world.run(make_node(self.store))
            self.workers.append(Worker(incarnation, self.now + LEASE.span))

    # time

    @rule(seconds=st.sampled_from([0.3, 1, 5, 20]))
    def wait(self, seconds: float) -> None:
        clock = self.store.env.clock
        assert isinstance(clock, VirtualClock)
        clock.advance(seconds)

    @rule(number=st.integers(0, 2))
    def renew(self, number: int) -> None:
        if number < len(self.workers):
            worker = self.workers[number]
            renewal = self.world.run(self.store.nodes.renew(worker.incarnation, 0))

            is_alive = not worker.is_buried and worker.lease_until > self.now
            assert (renewal is not None) == is_alive
            if is_alive:
                worker.lease_until = self.now + LEASE.span

    @rule()
    def reap(self) -> None:
        buried = {incarnation for incarnation, *_ in self.world.run(self.store.nodes.remove_expired())}
        dead = [worker for worker in self.workers if not worker.is_buried and worker.lease_until < self.now]
        assert {worker.incarnation for worker in dead} <= buried
        for worker in dead:
            worker.is_buried = True

        orphans = self.world.run(self.store.executions.orphans(100))

        gone = {worker.incarnation for worker in self.workers if worker.is_buried}
        assert {orphan.claimed.id for orphan in orphans} == {
            id_ for id_, each in self.in_state_table("running").items() if each.holder in gone
        }
        self.workers = [worker for worker in self.workers if not worker.is_buried]
        for orphan in orphans:
            self.end(orphan.claimed, Lost(FAILURE))
        if self.owner.incarnation in buried:
            self.world.owner = self.world.run(make_owner(self.store))

    # moving

    @rule()
    def promote_what_is_due(self) -> None:
        rows = [row for row in self.world.run(due_rows(self.store)) if row.run_at <= self.edge]
        assert {row.id for row in rows} == {
            id_ for id_, each in self.in_state_table("due").items() if each.run_at <= self.edge
        }
        paused = [row for row in rows if row.is_paused and row.kind in (DueKind.RETRY, DueKind.SNOOZE)]
        if paused:
            self.world.run(self.store.executions.park(paused))
        moving = [row for row in rows if row not in paused]
        plans = [self.world.run(plan_row(self.store, row)) for row in moving]

        done = self.world.run(promote(self.store, plans, self.owner))

        assert done == {row.id for row in moving}
        for row in paused:
            self.known[row.id].run_at = PARKED_AT
        for row in moving:
            each = self.known[row.id]
            each.state_table, each.is_promoted = "blocked" if each.limit_key else "ready", True
        for schedule in self.schedules:
            if occurrence_id(schedule.job.id, schedule.next_at) in done:
                self.expect_next(schedule, schedule.next_at + INTERVAL)
        self.expect_promotions()

    @rule(target=claims, slots=st.integers(1, 3), number=st.integers(0, 2))
    def claim(self, slots: int, number: int) -> Any:
        if number >= len(self.workers):
            return multiple()
        worker, claim_id = self.workers[number], ClaimId(self.store.env.new_id())
        lanes = dict.fromkeys(self.world.run(self.store.executions.lanes()), FROM_THE_FIRST)
        request = ClaimRequest(worker.incarnation, [HANDLER], slots, 0)

        claimed = self.world.run(self.store.executions.claim(request, lanes, claim_id)).executions

        due = sorted(each.run_at for each in self.in_state_table("ready").values() if each.run_at <= self.now)
        assert sorted(each.run_at for each in claimed) == due[:slots], (
            "the most urgent, no more than asked for, none early"
        )
        for each in claimed:
            known = self.known[each.id]
            assert known.state_table == "ready"
            known.state_table, known.claim_id, known.holder = "running", claim_id, worker.incarnation
            known.attempts, known.fence = known.attempts + 1, known.fence + 1
            assert (each.fence, each.attempt, each.claim_id) == (known.fence, known.attempts, claim_id)
            assert json.loads(each.payload) == {"number": known.payload}
        again = self.world.run(self.store.executions.read_back_claim(worker.incarnation, claim_id))
        assert {(each.id, each.payload) for each in again} == {(each.id, each.payload) for each in claimed}
        return multiple(*claimed)

    # ending

    @rule(claimed=claims)
    def succeed(self, claimed: ClaimedExecution) -> None:
        refused = self.world.run(self.store.executions.finish_succeeded([self.finding(claimed, Succeeded())]))

        assert bool(refused) == (not self.is_current(claimed))
        if not refused:
            self.finish(claimed.id, "succeeded")

    @rule(claimed=claims, outcome=st.sampled_from([Failed(FAILURE), Released(), Snoozed(timedelta(seconds=5))]))
    def end_otherwise(self, claimed: ClaimedExecution, outcome: Outcome) -> None:
        self.end(claimed, outcome)

    def end(self, claimed: ClaimedExecution, outcome: Outcome) -> None:
        refused = self.world.run(record(self.store, [self.finding(claimed, outcome)]))

        assert bool(refused) == (not self.is_current(claimed))
        if not refused:
            self.follow(claimed.id, outcome)

    def finding(self, claimed: ClaimedExecution, outcome: Outcome) -> Any:
        return found(claimed, outcome, started_at=claimed.run_at, finished_at=max(self.now, claimed.run_at))

    def is_current(self, claimed: ClaimedExecution) -> bool:
        known = self.known[claimed.id]
        return known.state_table == "running" and (known.fence, known.claim_id) == (claimed.fence, claimed.claim_id)

    def follow(self, id_: ExecutionId, outcome: Outcome) -> None:
        """Move an execution after an accepted outcome."""
        each = self.known[id_]
        if isinstance(outcome, Lost):
            each.lost += 1
        elif not isinstance(outcome, Failed):
            each.attempts -= 1
        is_used_up = isinstance(outcome, Failed) and each.attempts - each.lost > MAX_RETRIES
        is_lost_for_good = isinstance(outcome, Lost) and (each.is_at_most_once or each.lost >= MAX_LOST)
        if is_used_up or is_lost_for_good:
            self.finish(id_, "dead")
        elif each.is_stopped or each.job_id in self.deleted:
            if each.is_stopped and isinstance(outcome, Released):
                each.attempts += 1
            self.finish(id_, "cancelled")
        elif isinstance(outcome, Released | Lost) and each.job_id not in self.paused:
            each.state_table, each.claim_id, each.holder = "ready", None, None
        else:
            each.state_table, each.claim_id, each.holder = "due", None, None
            each.run_at = self.read_run_at(id_, outcome)
            self.expect_promotions()

    def read_run_at(self, id_: ExecutionId, outcome: Outcome) -> datetime:
        """The back-off of a retry is random; it never begins in the past."""
        (run_at,) = [row["run_at"] for row in self.rows() if row["id"] == id_]
        assert self.now <= run_at <= self.now + timedelta(seconds=5 if isinstance(outcome, Snoozed) else 1)
        return run_at

    def finish(self, id_: ExecutionId, state: str) -> None:
        each = self.known[id_]
        each.state_table, each.claim_id, each.holder = state, None, None
        if each.unique_key is not None and self.keys.get(each.unique_key) == id_:
            del self.keys[each.unique_key]
        self.expect_promotions()

    # people

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.known:
            return
        id_ = data.draw(st.sampled_from(sorted(self.known)))
        each = self.known[id_]
        is_pending = each.state_table == "due" and any(id_ == self.pending_of(schedule) for schedule in self.schedules)

        reached = self.world.run(self.store.jobs.cancel([id_], "a person", OPERATOR))

        if each.state_table in _WAITING and not is_pending:
            assert reached == {id_}
            self.finish(id_, "cancelled")
        elif each.state_table == "running":
            assert reached == (set() if each.is_stopped else {id_})
            each.is_stopped = True
        else:
            assert reached == set()

    def pending_of(self, schedule: Schedule) -> ExecutionId:
        return occurrence_id(schedule.job.id, schedule.next_at)

    @rule(data=st.data(), verb=st.sampled_from(["pause", "resume", "delete"]))
    def change(self, data: st.DataObject, verb: str) -> None:
        scheduled = {schedule.job.id for schedule in self.schedules}
        jobs = sorted({each.job_id for each in self.known.values()} - scheduled - self.deleted)
        if not jobs:
            return
        job_id = data.draw(st.sampled_from(jobs))
        decide = {
            "pause": lambda snapshot: job_changes.pause_job(snapshot, None, None),
            "resume": job_changes.resume_job,
            "delete": lambda snapshot: job_changes.delete_job(snapshot, None),
        }[verb]

        self.world.run(self.store.jobs.change(job_id, decide, OPERATOR))

        getattr(self, f"expect_{verb}")(job_id, self.known[ExecutionId(job_id)])
        self.expect_promotions()

    @rule(data=st.data(), number=st.integers(1, 9))
    def edit(self, data: st.DataObject, number: int) -> None:
        scheduled = {schedule.job.id for schedule in self.schedules}
        jobs = sorted({each.job_id for each in self.known.values()} - scheduled - self.deleted)
        if jobs:
            job_id = data.draw(st.sampled_from(jobs))
            fields = {"payload": {"number": number}}
            self.world.run(
                self.store.jobs.change(
                    job_id, lambda seen: job_changes.edit_job(seen, fields, self.store.shards), OPERATOR
                )
            )

            each = self.known[ExecutionId(job_id)]
            if not each.is_promoted:
                each.payload = number

    def expect_pause(self, job_id: JobId, each: Known) -> None:
        self.paused.add(job_id)
        if each.state_table in _WAITING:
            each.state_table, each.run_at = "due", PARKED_AT

    def expect_resume(self, job_id: JobId, each: Known) -> None:
        if job_id in self.paused and each.state_table == "due" and each.run_at == PARKED_AT:
            each.run_at = max(self.now, each.scheduled_for)
        self.paused.discard(job_id)

    def expect_delete(self, job_id: JobId, each: Known) -> None:
        self.deleted.add(job_id)
        if each.state_table in _WAITING:
            self.finish(ExecutionId(job_id), "cancelled")

    # comparing

    def rows(self) -> list[Any]:
        async def read() -> list[Any]:
            async with self.store.database.transaction() as connection:
                return list(await connection.fetch(_EVERYTHING))

        return self.world.run(read())

    def expect_promotions(self) -> None:
        """Free places go to blocked executions, the earliest first."""
        waiting = self.in_state_table("blocked")
        taken = [each for each in self.known.values() if each.limit_key and each.state_table in ("ready", "running")]
        free = max(MAX_RUNNING - len(taken), 0)
        if not waiting or not free:
            return
        let_in = {row["id"] for row in self.rows() if row["state_table"] == "ready"} & waiting.keys()
        earliest = sorted(each.run_at for each in waiting.values())[:free]
        assert sorted(waiting[id_].run_at for id_ in let_in) == earliest
        for id_ in let_in:
            waiting[id_].state_table = "ready"

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        rows = self.rows()
        assert len(rows) == len({row["id"] for row in rows}), "an execution is in one table"
        assert {row["id"]: _as_found(row) for row in rows} == {id_: _as_known(e) for id_, e in self.known.items()}
        assert {row["unique_key"]: row["id"] for row in rows if row["unique_key"]} == self.keys

    @invariant()
    def no_more_run_than_may(self) -> None:
        running = [each for each in self.in_state_table("running").values() if each.limit_key]
        assert len(running) <= MAX_RUNNING


def _as_found(row: Any) -> tuple[Any, ...]:
    return (
        row["state_table"],
        row["attempts"],
        row["lost"],
        row["fence"],
        row["claim_id"],
        row["run_at"],
        bool(row["stop"]),
    )


def _as_known(each: Known) -> tuple[Any, ...]:
    is_over = each.state_table not in (*_WAITING, "running")
    run_at = None if is_over else each.run_at
    is_stopped = each.is_stopped and each.state_table == "running"
    return (each.state_table, each.attempts, each.lost, each.fence, each.claim_id, run_at, is_stopped)
