"""Whatever a person does writes one line of audit, in the transaction of the deed: a deed that cannot be audited does not happen."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.factories import (
    FAILURE,
    HANDLER,
    ROOMS,
    claim_all,
    enqueue,
    found,
    make_node,
    record,
    table,
)
from timeball.commands import Actor, Commands
from timeball.domain.execution import Failed
from timeball.domain.job import JobSpec
from timeball.domain.operation import OperationAction, OperationSubject
from timeball.store.keys import Keys
from timeball.store.listing import Listing
from timeball.store.placing import AuditEntry
from timeball.store.postgres import Store
from timeball.testing import VirtualClock

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

ADA = Actor("ada", "because")
ENTRY = AuditEntry("ada", "because")
TABLES = (
    *ROOMS,
    "job",
    "job_version",
    "skip_range",
    "running_limit",
    "live_key",
    "queue",
    "node",
    "template",
    "api_key",
)
TABLES += ("settled", "operation", "operation_item")

# Deeds that are audited, each with the action it is called by; what a person may do, and is not here, has to be named below.
DEEDS: dict[str, tuple[str, Callable[[World], Awaitable[Any]]]] = {
    "create": ("job.create", lambda w: w.commands.create(JobSpec(name="new", handler=HANDLER), actor=ADA)),
    "create_all": (
        "job.create",
        lambda w: w.commands.create_all([JobSpec(name=name, handler=HANDLER) for name in "xy"], actor=ADA),
    ),
    "enqueue_many": ("job.create", lambda w: w.commands.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 3, ADA)),
    "declare": ("job.create", lambda w: w.commands.declare(JobSpec(name="new", handler=HANDLER), "app")),
    "sync": ("job.create", lambda w: w.commands.sync([JobSpec(name="new", handler=HANDLER)], "app", actor=ADA)),
    "update": ("job.update", lambda w: w.commands.update(w.job_id, {"priority": 9}, ADA)),
    "pause": ("job.pause", lambda w: w.commands.pause(w.job_id, actor=ADA)),
    "resume": ("job.resume", lambda w: w.commands.resume(w.paused_id, ADA)),
    "delete": ("job.delete", lambda w: w.commands.delete(w.job_id, ADA)),
    "skip_next": ("job.skip_next", lambda w: w.commands.skip_next(w.job_id, ADA)),
    "trigger": ("job.trigger", lambda w: w.commands.trigger(w.job_id, actor=ADA)),
    "backfill": ("job.backfill", lambda w: w.commands.backfill(w.job_id, w.now - 3 * MINUTE, w.now, ADA)),
    "retry": ("execution.retry", lambda w: w.commands.retry(w.dead, actor=ADA)),
    "cancel": ("execution.cancel", lambda w: w.commands.cancel([w.waiting, w.running], ADA)),
    "start_operation": (
        "execution.cancel",
        lambda w: w.commands.start_operation(OperationAction.CANCEL, [w.waiting, w.running], ADA),
    ),
    "cancel_operation": ("operation.cancel", lambda w: w.commands.cancel_operation(w.operation_id, ADA)),
    "pause_queue": ("queue.pause", lambda w: w.commands.pause_queue("q", ADA)),
    "resume_queue": ("queue.resume", lambda w: w.commands.resume_queue("shut", ADA)),
    "limit_queue": ("queue.limit", lambda w: w.commands.limit_queue("q", 3, ADA)),
    "purge_queue": ("queue.purge", lambda w: w.commands.purge_queue("default", ADA)),
    "drain_node": ("node.drain", lambda w: w.commands.drain_node(w.worker, ADA)),
    "create_template": (
        "template.create",
        lambda w: w.commands.create_template("new", {"handler": HANDLER}, actor=ADA),
    ),
    "update_template": (
        "template.update",
        lambda w: w.commands.update_template(w.template.id, {"description": "other"}, ADA),
    ),
    "delete_template": ("template.delete", lambda w: w.commands.delete_template(w.template.id, ADA)),
    "use_template": ("job.create", lambda w: w.commands.use_template(w.template, {"name": "made"}, actor=ADA)),
    # What fronts do past the commands.
    "create_key": ("key.create", lambda w: w.keys.create("viewer", "new", None, ENTRY)),
    "revoke_key": ("key.revoke", lambda w: w.keys.revoke(w.key_id, ENTRY)),
    "settle": ("dead_letter.discarded", lambda w: w.listing.settle([w.dead], "discarded", ENTRY)),
}
# The enqueue of a one-off is work, not a change; an operation was audited when it was begun; the rest only looks.
UNAUDITED = {
    "enqueue",
    "aenqueue_alone",
    "make_sure",
    "take_operation",
    "begun_operation",
    "work_off",
    "undeclared",
    "plan_sync",
    "complete",
    "complete_each",
    "warn",
    "published",
}
MINUTE = timedelta(minutes=1)


class World:
    """A little of everything that something can be done to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commands = Commands(store, store.env)
        self.keys, self.listing = Keys(store.database, store.jobs), Listing(store.database, store.jobs)
        self.now = store.env.clock.now()

    async def build(self) -> World:
        store, commands = self.store, self.commands
        self.worker = await make_node(store)
        await enqueue(store)
        (failed,) = await claim_all(store, worker=self.worker)
        await record(store, [found(failed, Failed(FAILURE, is_retryable=False))])
        self.dead = failed.id
        self.running = await enqueue(store)
        await claim_all(store, worker=self.worker)
        self.waiting = await enqueue(store)
        self.job_id = (await commands.create(JobSpec(name="a", handler=HANDLER, interval_seconds=60))).job_id
        self.paused_id = (await commands.create(JobSpec(name="b", handler=HANDLER, interval_seconds=60))).job_id
        await commands.pause(self.paused_id)
        await commands.pause_queue("shut")
        self.template = await commands.create_template("t", {"handler": HANDLER})
        self.key_id = (await self.keys.create("viewer", "old", None, ENTRY))[0].id
        self.operation_id = (await commands.start_operation(OperationAction.CANCEL, [self.waiting])).id
        return self

    async def everything(self) -> dict[str, Any]:
        return {name: await table(self.store, name) for name in TABLES}


@pytest.fixture
async def world(store: Store, clock: VirtualClock) -> World:
    made = await World(store).build()
    clock.advance("150s")
    made.now = clock.now()
    return made


@asynccontextmanager
async def without_paper(store: Store) -> AsyncIterator[None]:
    """Nothing can be written into the audit."""
    async with store.database.transaction() as connection:
        await connection.execute("ALTER TABLE timeball.audit ADD CONSTRAINT no_paper CHECK (false) NOT VALID")
    yield
    async with store.database.transaction() as connection:
        await connection.execute("ALTER TABLE timeball.audit DROP CONSTRAINT no_paper")


@on_one_server
@pytest.mark.parametrize("name", DEEDS)
async def test_a_deed_is_audited_once_or_not_done(world: World, name: str) -> None:
    action, do = DEEDS[name]
    before, audited = await world.everything(), await table(world.store, "audit")

    async with without_paper(world.store):
        with pytest.raises(Exception, match="no_paper"):
            await do(world)
    assert await world.everything() == before, "what could not be audited was not done"

    await do(world)

    assert await world.everything() != before
    known = {row["id"] for row in audited}
    (line,) = [row for row in await table(world.store, "audit") if row["id"] not in known]
    who, why = ("declaration", None) if name == "declare" else ("ada", "because")
    assert (line["action"], line["actor"], line["reason"]) == (action, who, why)


@on_one_server
async def test_a_definition_in_the_transaction_of_its_author_is_audited_there(world: World) -> None:
    for ends in (RuntimeError, None):
        try:
            async with world.store.database.transaction() as connection:
                await world.commands.create(JobSpec(name="theirs", handler=HANDLER), connection, ADA)
                if ends is not None:
                    raise ends
        except RuntimeError:
            pass

    lines = [row for row in await table(world.store, "audit") if row["actor"] == "ada"]
    assert [(row["action"], row["reason"]) for row in lines if row["action"] == "job.create"] == [
        ("job.create", "because")
    ]


@on_one_server
@pytest.mark.parametrize("action", [OperationAction.PAUSE, OperationAction.TRIGGER, OperationAction.DELETE])
async def test_what_an_operation_does_to_jobs_is_audited_job_by_job(world: World, action: OperationAction) -> None:
    holder = world.store.env.new_id()
    ids = [world.job_id, world.paused_id]
    begun = await world.commands.start_operation(action, ids, ADA, subject=OperationSubject.JOB, holder=holder)

    async with without_paper(world.store):
        with pytest.raises(Exception, match="no_paper"):
            await world.commands.work_off(begun, holder)
    again = await world.commands.start_operation(action, ids, ADA, subject=OperationSubject.JOB, holder=holder)
    await world.commands.work_off(again, holder)

    lines = [row for row in await table(world.store, "audit") if row["actor"] == "ada"]
    told = [row["subject"] for row in lines if row["action"] == f"job.{action.value}"]
    assert sorted(told) == sorted(f"job:{job_id}" for job_id in ids)


def test_there_is_no_deed_besides_these() -> None:
    """Whoever gives people another thing to do has to say here how it is audited."""
    deeds = {
        name for name, made in inspect.getmembers(Commands, inspect.iscoroutinefunction) if not name.startswith("_")
    }

    assert deeds - DEEDS.keys() == UNAUDITED
