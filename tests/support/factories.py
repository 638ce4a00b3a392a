"""Jobs, nodes and claims for tests: each fills in what the test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from timeball.domain.alerts import AlertEvaluation, AlertFact, AlertId, AlertMember, Severity
from timeball.domain.execution import ClaimedExecution, ErrorInfo, FinishedAttempt, Origin, Outcome, Succeeded
from timeball.domain.job import Job
from timeball.domain.job import define_job as domain_define_job
from timeball.domain.job_fields import TIME_FIELDS, JobSpec
from timeball.domain.lifecycle import Decision, decide
from timeball.domain.node import Lease, Node, NodeKind
from timeball.domain.scheduling.occurrences import DueRow, Promotion, first_occurrence, plan_promotion
from timeball.domain.values.ids import ClaimId, ExecutionId, Incarnation, JobId
from timeball.domain.wakeup import LanePosition
from timeball.store.store import Store
from timeball.store.types import AuditEntry, ClaimRequest, FirstExecution, ShardOwnership

ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
FROM_THE_FIRST = LanePosition(ALWAYS)
HANDLER = "tests:noop"
TZDATA = "2026a"
OPERATOR = AuditEntry("somebody", "a test")
LEASE = Lease(span=timedelta(seconds=15), interval=timedelta(seconds=5))
FAILURE = ErrorInfo(type="ValueError", message="no", traceback="a stack", top_frame="f:1", fingerprint="abc")


# A call that follows a run, with every field that is stored of it.
WHOLE_CALL: dict[str, Any] = {
    "handler": "after",
    "payload": {"of": 1},
    "tags": ["t"],
    "queue": "after",
    "priority": 51,
    "max_retries": 4,
    "max_lost": 5,
    "initial_backoff_ms": 6,
    "max_backoff_ms": 7,
    "timeout_ms": 8,
    "delivery": "at_most_once",
    "max_running": 9,
    "limit_key": "after",
    "start_within_seconds": 10,
}


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


# jobs


def or_manual(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job, which runs only when it is triggered if they name no time."""
    return fields if fields.keys() & set(TIME_FIELDS) else fields | {"schedule": "manual"}


def define_job(store: Store, **fields: Any) -> Job:
    """A checked job that is not stored yet, with a name unless one is given; without a time it is a manual one."""
    fields = {"handler": HANDLER} | or_manual(fields)
    job_id = JobId(store.env.new_id())
    if "name" not in fields:
        fields["name"] = f"job-{job_id.hex[-8:]}"
    known = fields.pop("known_calendars", {})
    return domain_define_job(JobSpec(**fields), job_id, store.env.clock.now(), store.shards, calendars=known)


def first_execution_of(job: Job, now: datetime) -> FirstExecution | None:
    """The first execution of a job, as every front makes it."""
    first = first_occurrence(job, now)
    if first is None:
        return None
    return FirstExecution(
        id=first.id,
        job_id=job.id,
        origin=Origin.ENQUEUE if job.is_enqueued else Origin.SCHEDULE,
        run_at=first.run_at,
        scheduled_for=first.scheduled_for,
        watermark=None if job.is_enqueued else first.watermark,
        tzdata=None if job.is_enqueued else TZDATA,
        executions_left=first.executions_left,
    )


async def make_job(store: Store, **fields: Any) -> Job:
    """A stored job with its first occurrence; one that is only triggered by hand, unless a schedule is given."""
    job = define_job(store, **fields)
    first = first_execution_of(job, store.env.clock.now())
    await store.enqueuer.create([job], [first] if first else [])
    return await read_job(store, job.id)


async def make_recurring(store: Store, every: int = 60, **fields: Any) -> Job:
    """A stored job that runs every minute, for the first time in a minute."""
    return await make_job(store, interval_seconds=every, **fields)


async def enqueue(store: Store, after: float = 0, **fields: Any) -> ExecutionId:
    """A one-off, due now or some seconds ahead (or ago, if negative)."""
    due_at = store.env.clock.now() + seconds(after)
    job = await make_job(store, name=None, scheduled_at=due_at, **fields)
    return ExecutionId(job.id)


async def read_job(store: Store, job_id: JobId) -> Job:
    return (await store.jobs.find([job_id]))[job_id]


# nodes


async def make_node(store: Store, kind: NodeKind = NodeKind.WORKER, **fields: Any) -> Incarnation:
    """A living node."""
    incarnation = Incarnation(store.env.new_id())
    wanted: dict[str, Any] = {"incarnation": incarnation, "kind": kind, "name": "a node", "lease": LEASE}
    await store.nodes.register(Node(**wanted | fields))
    return incarnation


async def make_owner(store: Store) -> ShardOwnership:
    """A living scheduler that owns every shard."""
    incarnation = await make_node(store, NodeKind.SCHEDULER)
    epochs = await store.nodes.take_shards(incarnation, range(store.shards))
    return ShardOwnership(incarnation, epochs)


# due ─► ready


async def due_rows(store: Store) -> list[DueRow]:
    """Everything in `due`, as a scheduler reads it."""
    century = timedelta(days=36_500)
    marks = await store.executions.look_ahead(dict.fromkeys(range(store.shards), ALWAYS), century, 10_000)
    rows = {row.id: row for row in await store.executions.due_rows([mark.id for mark in marks])}
    return [rows[mark.id] for mark in marks]


async def due_row(store: Store, job_id: JobId) -> DueRow:
    """The one row that a job has in `due`."""
    (row,) = [row for row in await due_rows(store) if row.job_id == job_id]
    return row


async def plan_row(store: Store, row: DueRow, *, is_busy: bool = False) -> Promotion:
    """What the scheduler would do with a row now."""
    jobs = await store.jobs.find([row.job_id])
    planned = plan_promotion(row, jobs.get(row.job_id), store.env.clock.now(), is_busy=is_busy)
    assert isinstance(planned, Promotion)
    return planned


async def promote(store: Store, promotions: Sequence[Promotion], owner: ShardOwnership) -> set[ExecutionId]:
    return await store.executions.promote(promotions, owner, store.promotion_window, TZDATA)


async def promote_due(store: Store, owner: ShardOwnership) -> set[ExecutionId]:
    """Promote all that is due by now."""
    edge = store.env.clock.now() + store.promotion_window
    promotions = [await plan_row(store, row) for row in await due_rows(store) if row.run_at <= edge]
    return await promote(store, promotions, owner)


# ready ─► running ─► finished


async def claim_all(store: Store, slots: int = 100, holds: int = 0, **wish: Any) -> list[ClaimedExecution]:
    """Claim what is ready, in all lanes, for one worker; most urgent first only within a batch of one."""
    claim_id = wish.pop("claim_id", None) or ClaimId(store.env.new_id())
    worker = wish.pop("worker", None) or await make_node(store)
    handlers = wish.pop("handlers", [HANDLER])
    lanes = dict.fromkeys(await store.executions.lanes(), FROM_THE_FIRST)
    claims = await store.executions.claim(ClaimRequest(worker, handlers, slots, holds), lanes, claim_id)
    return claims.executions


def found(claimed: ClaimedExecution, outcome: Outcome | None = None, **times: datetime | None) -> FinishedAttempt:
    """What came of a claim: a success, a second after its instant, unless said otherwise."""
    started_at = times.get("started_at", claimed.run_at + seconds(1))
    finished_at = times.get("finished_at") or claimed.run_at + seconds(2)
    return FinishedAttempt(claimed, outcome or Succeeded(), started_at, finished_at)


async def record(store: Store, findings: Sequence[FinishedAttempt], chance: float = 0.5) -> list[FinishedAttempt]:
    """Record outcomes as a worker does, once: asked where they lead, then moved; returns those that did not move."""
    moves = await moves_of(store, findings, chance)
    moving = [move.attempt for move in moves]
    stale = [finding for finding in findings if finding not in moving]
    return stale + await store.executions.record_transitions(moves)


async def moves_of(store: Store, findings: Sequence[FinishedAttempt], chance: float = 0.5) -> list[Decision]:
    """What a worker would make of these outcomes, of those that are not stale."""
    standings = await store.executions.attempt_facts([finding.claimed for finding in findings])
    decided = [(f, standings[f.claimed.id]) for f in findings if f.claimed.id in standings]
    return [Decision(f, known, decide(known, f.outcome, f.finished_at, chance)) for f, known in decided]


# looking


STATE_TABLES = ("due", "ready", "blocked", "running", "finished")


async def table(store: Store, name: str) -> list[dict[str, Any]]:
    """All rows of a table, in the order of their first column, without the number of whatever transaction wrote them."""
    async with store.database.transaction() as connection:
        rows = await connection.fetch(f"SELECT * FROM timeball.{name} ORDER BY 1")
    return [{column: value for column, value in row.items() if column != "recorded"} for row in rows]


async def only_row(store: Store, name: str) -> dict[str, Any]:
    (row,) = await table(store, name)
    return row


async def put_row(store: Store, name: str, **columns: Any) -> None:
    """Write a row as it is, past every verb."""
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    async with store.database.transaction() as connection:
        await connection.execute(
            f"INSERT INTO timeball.{name} ({', '.join(columns)}) VALUES ({places})", *columns.values()
        )


async def tables_of(store: Store, execution_id: ExecutionId) -> list[str]:
    """The tables an execution is in: one, or something is wrong."""
    return [
        state_table
        for state_table in STATE_TABLES
        for row in await table(store, state_table)
        if row["id"] == execution_id
    ]


# alerts


async def make_alert(store: Store, name: str = "mail", **fields: Any) -> AlertId:
    """An open alert; those that were open before stay as they are."""
    values: dict[str, Any] = {
        "kind": "queue_unserved",
        "key": f"queue_unserved:{store.env.new_id()}",
        "severity": Severity.CRITICAL,
        "sentence": f"queue {name}: 3 waiting, no worker serves it",
        "advice": "start one",
        "command": f"timeball worker app:tb --queue {name}",
        "target": ("queue", name),
        "members": (AlertMember(name=name, queue=name),),
    }
    fact = AlertFact(**values | fields)
    present = [alert.fact for alert in await store.alerts.unresolved()]
    evaluation = AlertEvaluation(store.env.clock.now(), [*present, fact])
    transitions = await store.alerts.reconcile(evaluation)
    return next(one.alert.id for one in transitions if one.alert.fact.key == fact.key)
