"""A hot statement is planned once in a session, not each time: planning one takes as long as running it for many rows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.factories import (
    FROM_THE_FIRST,
    HANDLER,
    claim_all,
    enqueue,
    found,
    make_owner,
    make_recurring,
    promote_due,
)
from tests.support.servers import VERSIONS
from timeball.application.commands import Commands
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ClaimId, Incarnation
from timeball.store.db.pool import IDLE_CONNECTIONS, Connection
from timeball.store.db.statements import all_statements
from timeball.store.store import Store
from timeball.store.types import ClaimRequest
from timeball.testing import VirtualClock

# PostgreSQL plans a statement so often for its values, before it considers one plan for all values.
_TRIALS = 5
# Several connections of the pool take turns.
_ROUNDS = 5 * _TRIALS


async def plans_of(store: Store) -> dict[str, tuple[int, int]]:
    """How often each statement was planned for its values, and how often it ran with a plan for all values, in this session."""
    async with store.database.connection() as connection:
        return await plans_on(connection)


async def plans_on(connection: Connection) -> dict[str, tuple[int, int]]:
    names = {statement.numbered(): name for name, statement in all_statements().items()}
    rows = await connection.fetch("SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements")
    return {
        names[row["statement"]]: (row["custom_plans"], row["generic_plans"])
        for row in rows
        if row["statement"] in names
    }


async def enqueue_alike(store: Store, number: int) -> None:
    commands = Commands(store, store.env)
    prepared = commands.jobs.prepared_job(JobSpec(handler=HANDLER))
    assert prepared is not None
    await commands.jobs.enqueue(prepared, ["{}"] * number)


@pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)
@pytest.mark.parametrize("crowd", [1, 40])
async def test_a_hot_statement_is_planned_once(store: Store, clock: VirtualClock, crowd: int) -> None:
    """For one row or many: the number is hidden from the planner, which would otherwise plan for each number anew."""
    owner = await make_owner(store)
    for _ in range(crowd):
        await make_recurring(store, every=1)
    for _ in range(_ROUNDS):
        await enqueue(store)
        await enqueue_alike(store, 1)
        await enqueue_alike(store, crowd + 1)
        clock.advance(timedelta(seconds=1))
        assert len(await promote_due(store, owner)) == crowd
        claims = await claim_all(store)
        assert await store.executions.finish_succeeded([found(claimed) for claimed in claims]) == []
        assert len(claims) == crowd + 1 + 1 + crowd + 1

    planned = await plans_of(store)
    for name in ("create_jobs", "enqueue_one", "enqueue_alike", "promote", "claim", "finish_succeeded"):
        custom, generic = planned[name]
        assert custom <= _TRIALS, f"{name}: planned {custom} times"
        assert generic > 0, name


@pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)
async def test_after_a_warm_up_every_idle_connection_has_its_plans(store: Store) -> None:
    """The first claim does not wait for types and plans."""
    await store.executions.warm_up()

    planned: dict[int, dict[str, tuple[int, int]]] = {}

    async def look(connection: Connection) -> None:
        planned[await connection.fetchval("SELECT pg_backend_pid()")] = await plans_on(connection)

    await store.database.on_each_idle(look)
    assert len(planned) == IDLE_CONNECTIONS
    for plans in planned.values():
        assert plans["claim"] == plans["claim_by_id"] == plans["finish_succeeded"] == (_TRIALS, 3)


async def plans_for_ready(connection: Connection) -> set[str]:
    """The statements about `ready`, those inside of functions too, that have a plan for all values in this session."""
    rows = await connection.fetch("SELECT ident FROM pg_backend_memory_contexts WHERE name = 'CachedPlan'")
    return {row["ident"] for row in rows if "timeball.ready" in row["ident"]}


@pytest.mark.parametrize("fresh_database", VERSIONS, indirect=True)
async def test_after_a_warm_up_no_claim_plans_a_function(store: Store) -> None:
    await store.executions.warm_up()
    for _ in range(5):
        await enqueue(store)
        await enqueue(store, after=10)

    async with store.database.connection() as connection:
        before = await plans_for_ready(connection)
        for lanes, slots in ((1, 1), (1, 2), (2, 1), (2, 10)):
            marks = {("default", 50 + place): FROM_THE_FIRST for place in range(lanes)}
            request = ClaimRequest(Incarnation(store.env.new_id()), [HANDLER], slots, holds=1)
            claims = await store.executions.claim(request, marks, ClaimId(store.env.new_id()), connection)
            assert claims.executions

        assert await plans_for_ready(connection) == before
