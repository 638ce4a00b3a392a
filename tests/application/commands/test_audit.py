"""Every command of a person writes one audit entry in the transaction of the change: a change that cannot be audited does not happen."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.support.factories import (
    FAILURE,
    HANDLER,
    STATE_TABLES,
    claim_all,
    enqueue,
    found,
    make_alert,
    make_node,
    record,
    table,
)
from timeball.application.commands import Commands
from timeball.application.commands.calendars import DaysRequest
from timeball.application.commands.requests import Actor
from timeball.domain.backfill import Backfill
from timeball.domain.bulk_operation import OperationAction, OperationSubject
from timeball.domain.execution import Failed
from timeball.domain.freeze import FreezeScope
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import ExecutionId
from timeball.domain.webhook import WebhookSpec
from timeball.store.access import ApiKeyStore
from timeball.store.search.listing import ListingStore
from timeball.store.store import Store
from timeball.store.types import AuditEntry
from timeball.testing import VirtualClock

on_one_server = pytest.mark.parametrize("fresh_database", ["pg15"], indirect=True)

ADA = Actor("ada", "because")
ENTRY = AuditEntry("ada", "because")
TABLES = (
    *STATE_TABLES,
    "job",
    "job_version",
    "skip_range",
    "running_limit",
    "live_key",
    "queue",
    "node",
    "template",
    "calendar",
    "calendar_version",
    "api_key",
    "channel",
    "alert_route",
    "alert_delivery",
    "alert",
    "settled",
    "operation",
    "operation_item",
    "queue_interval",
    "freeze_period",
    "webhook",
    "webhook_delivery",
)

BY_HAND = JobSpec(name="new", handler=HANDLER, schedule="manual")

# Commands that are audited, each with its action; a command that is not here has to be named below.
AUDITED: dict[str, tuple[str, Callable[[World], Awaitable[Any]]]] = {
    "jobs.create": ("job.create", lambda w: w.commands.jobs.create(JobSpec(name="new", handler=HANDLER), actor=ADA)),
    "jobs.create_all": (
        "job.create",
        lambda w: w.commands.jobs.create_all([JobSpec(name=name, handler=HANDLER) for name in "xy"], actor=ADA),
    ),
    "jobs.enqueue_many": (
        "job.create",
        lambda w: w.commands.jobs.enqueue_many(JobSpec(handler=HANDLER), ["{}"] * 3, ADA),
    ),
    "jobs.declare": ("job.create", lambda w: w.commands.jobs.declare(BY_HAND, "app")),
    "jobs.define": ("job.create", lambda w: w.commands.jobs.define(BY_HAND, ADA)),
    "jobs.define_all": ("job.create", lambda w: w.commands.jobs.define_all([BY_HAND], ADA)),
    "jobs.sync": (
        "job.create",
        lambda w: w.commands.jobs.sync([BY_HAND], "app", actor=ADA),
    ),
    "jobs.update": ("job.update", lambda w: w.commands.jobs.update(w.job_id, {"priority": 9}, ADA)),
    "jobs.pause": ("job.pause", lambda w: w.commands.jobs.pause(w.job_id, actor=ADA)),
    "jobs.resume": ("job.resume", lambda w: w.commands.jobs.resume(w.paused_id, ADA)),
    "jobs.delete": ("job.delete", lambda w: w.commands.jobs.delete(w.job_id, ADA)),
    "jobs.pause_all": ("job.pause", lambda w: w.commands.jobs.pause_all("row:1", actor=ADA)),
    "jobs.resume_all": ("job.resume", lambda w: w.commands.jobs.resume_all("row:2", ADA)),
    "jobs.delete_all": ("job.delete", lambda w: w.commands.jobs.delete_all("row:1", ADA)),
    "groups.create": (
        "group.create",
        lambda w: w.commands.groups.create({"group": [{"handler": HANDLER, "payload": {}}]}, ADA),
    ),
    "groups.cancel": ("execution.cancel", lambda w: w.commands.groups.cancel(w.group_id, ADA)),
    "jobs.skip_next": ("job.skip_next", lambda w: w.commands.jobs.skip_next(w.job_id, ADA)),
    "executions.trigger": ("job.trigger", lambda w: w.commands.executions.trigger(w.job_id, actor=ADA)),
    "executions.trigger_with_id": (
        "job.trigger",
        lambda w: w.commands.executions.trigger_with_id(ExecutionId(w.store.env.new_id()), w.job_id, actor=ADA),
    ),
    "executions.retry_with_id": (
        "execution.retry",
        lambda w: w.commands.executions.retry_with_id(ExecutionId(w.store.env.new_id()), w.dead, actor=ADA),
    ),
    "backfills.start": (
        "job.backfill",
        lambda w: w.commands.backfills.start(Backfill(job_id=w.job_id, since=w.now - 3 * MINUTE, until=w.now), ADA),
    ),
    "executions.retry": ("execution.retry", lambda w: w.commands.executions.retry(w.dead, actor=ADA)),
    "executions.cancel": ("execution.cancel", lambda w: w.commands.executions.cancel([w.waiting, w.running], ADA)),
    "operations.start": (
        "execution.cancel",
        lambda w: w.commands.operations.start(OperationAction.CANCEL, [w.waiting, w.running], ADA),
    ),
    "operations.pause": ("operation.pause", lambda w: w.commands.operations.pause(w.backfill_id, ADA)),
    "operations.resume": ("operation.resume", lambda w: w.commands.operations.resume(w.paused_backfill_id, ADA)),
    "operations.cancel": ("operation.cancel", lambda w: w.commands.operations.cancel(w.operation_id, ADA)),
    "queues.pause": ("queue.pause", lambda w: w.commands.queues.pause("q", ADA)),
    "queues.resume": ("queue.resume", lambda w: w.commands.queues.resume("shut", ADA)),
    "queues.limit": ("queue.limit", lambda w: w.commands.queues.limit("q", 3, ADA)),
    "queues.expect": ("queue.expect", lambda w: w.commands.queues.expect("q", ADA, must_be_served=True)),
    "alerts.acknowledge": ("alert.acknowledged", lambda w: w.commands.alerts.acknowledge(w.alert_id, actor=ADA)),
    "alerts.unacknowledge": ("alert.unacknowledged", lambda w: w.commands.alerts.unacknowledge(w.known_id, actor=ADA)),
    "queues.purge": ("queue.purge", lambda w: w.commands.queues.purge("default", ADA)),
    "freezes.add": (
        "freeze.create",
        lambda w: w.commands.freezes.add(FreezeScope.QUEUE, "q", until=w.now + MINUTE, actor=ADA),
    ),
    "freezes.end": ("freeze.end", lambda w: w.commands.freezes.end(w.freeze_id, ADA)),
    "nodes.drain": ("node.drain", lambda w: w.commands.nodes.drain(w.worker, ADA)),
    "templates.create": (
        "template.create",
        lambda w: w.commands.templates.create("new", {"handler": HANDLER}, actor=ADA),
    ),
    "templates.update": (
        "template.update",
        lambda w: w.commands.templates.update(w.template.id, {"description": "other"}, ADA),
    ),
    "templates.delete": ("template.delete", lambda w: w.commands.templates.delete(w.template.id, ADA)),
    "templates.use": ("job.create", lambda w: w.commands.templates.use(w.template, {"name": "made"}, actor=ADA)),
    "calendars.create": (
        "calendar.create",
        lambda w: w.commands.calendars.create("new", DaysRequest(days=["sat"]), actor=ADA),
    ),
    "calendars.update": (
        "calendar.update",
        lambda w: w.commands.calendars.update("closed", {"description": "other"}, DaysRequest(), ADA),
    ),
    "calendars.delete": ("calendar.delete", lambda w: w.commands.calendars.delete("closed", ADA)),
    "webhooks.create": (
        "webhook.create",
        lambda w: w.commands.webhooks.create(WebhookSpec(url="https://example.com/new"), actor=ADA),
    ),
    "webhooks.update": (
        "webhook.update",
        lambda w: w.commands.webhooks.update(w.webhook_id, {"state": "disabled"}, ADA),
    ),
    "webhooks.rotate": ("webhook.rotate", lambda w: w.commands.webhooks.rotate(w.webhook_id, actor=ADA)),
    "webhooks.delete": ("webhook.delete", lambda w: w.commands.webhooks.delete(w.webhook_id, ADA)),
    "webhooks.test": ("webhook.test", lambda w: w.commands.webhooks.test(w.webhook_id, ADA)),
    "webhooks.redeliver": (
        "webhook.redeliver",
        lambda w: w.commands.webhooks.redeliver(w.delivery_id, ADA),
    ),
    "channels.create": (
        "channel.create",
        lambda w: w.commands.channels.create("new", "email", {"to": ["a@example.com"]}, actor=ADA),
    ),
    "channels.update": (
        "channel.update",
        lambda w: w.commands.channels.update("unused", {"description": "other"}, ADA),
    ),
    "channels.delete": ("channel.delete", lambda w: w.commands.channels.delete("unused", ADA)),
    "channels.test": ("channel.test", lambda w: w.commands.channels.test("on-call", ADA)),
    "alert_routes.create": (
        "alert_route.create",
        lambda w: w.commands.alert_routes.create({"name": "new", "channels": ["on-call"]}, ADA),
    ),
    "alert_routes.update": (
        "alert_route.update",
        lambda w: w.commands.alert_routes.update("all", {"severity": "critical"}, ADA),
    ),
    "alert_routes.delete": ("alert_route.delete", lambda w: w.commands.alert_routes.delete("all", ADA)),
    # What fronts do without commands.
    "create_key": ("key.create", lambda w: w.keys.create("viewer", "new", None, ENTRY)),
    "revoke_key": ("key.revoke", lambda w: w.keys.revoke(w.key_id, ENTRY)),
    "settle": ("dead_letter.discarded", lambda w: w.listing.settle([w.dead], "discarded", ENTRY)),
}
# The enqueue of a one-off is work, not a change; an operation was audited when it was started; what an evaluation makes of alerts
# is audited as ours; the rest only reads.
UNAUDITED = {
    "alerts.reconcile",
    # Its transitions are audited by what announces them.
    "channels.announce",
    "jobs.enqueue",
    "jobs.aenqueue_direct",
    "jobs.make_sure",
    "jobs.existing",
    "jobs.undeclared",
    "jobs.plan_sync",
    "executions.exists",
    "backfills.preview",
    "backfills.step",
    "operations.claim",
    "operations.find_started",
    "operations.run",
    "operations.work",
    "groups.begin",
    "groups.status",
    "groups.results",
    "contracts.resolve_calls",
    "contracts.resolve_calls_of_each",
    "contracts.resolve_work",
    "operations.apply_to_job",
    "operations.retry_once",
    "contracts.resolve",
    "contracts.resolve_each",
    "contracts.fields_for_edit",
    "contracts.check_contract",
    "contracts.warn",
    "contracts.published",
    "jobs.calendars_of",
}
MINUTE = timedelta(minutes=1)


class World:
    """One of each thing that a command can change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commands = Commands(store, store.env)
        self.keys, self.listing = ApiKeyStore(store.database), ListingStore(store.database)
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
        self.job_id = (await commands.jobs.create(JobSpec(name="a", handler=HANDLER, interval_seconds=60))).job_id
        self.paused_id = (await commands.jobs.create(JobSpec(name="b", handler=HANDLER, interval_seconds=60))).job_id
        await commands.jobs.pause(self.paused_id)
        await commands.queues.pause("shut")
        later = self.store.env.clock.now() + timedelta(days=1)
        self.freeze_id = (await commands.freezes.add(FreezeScope.QUEUE, "frozen", until=later)).id
        for owner in ("row:1", "row:2"):
            await commands.jobs.create(JobSpec(handler=HANDLER, interval_seconds=60, owner=owner))
        await commands.jobs.pause_all("row:2")
        self.alert_id, self.known_id = await make_alert(store), await make_alert(store)
        await commands.alerts.acknowledge(self.known_id)
        self.group_id = await commands.groups.begin({"group": [{"handler": HANDLER, "payload": {}}]})
        self.template = await commands.templates.create("t", {"handler": HANDLER})
        await commands.calendars.create("closed", DaysRequest(days=["sat"]))
        self.webhook_id = (await commands.webhooks.create(WebhookSpec(url="https://example.com/"))).webhook.id
        self.delivery_id = (await commands.webhooks.test(self.webhook_id)).id
        for name in ("on-call", "unused"):
            await commands.channels.create(name, "email", {"to": ["a@example.com"]})
        await commands.alert_routes.create({"name": "all", "channels": ["on-call"]})
        self.key_id = (await self.keys.create("viewer", "old", None, ENTRY))[0].id
        past = Backfill(job_id=self.job_id, since=self.now - 3 * MINUTE, until=self.now)
        self.backfill_id = (await commands.backfills.start(past)).id
        self.paused_backfill_id = (await commands.backfills.start(past)).id
        await commands.operations.pause(self.paused_backfill_id)
        self.operation_id = (await commands.operations.start(OperationAction.CANCEL, [self.waiting])).id
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
    """Writes to the audit fail."""
    async with store.database.transaction() as connection:
        await connection.execute("ALTER TABLE timeball.audit ADD CONSTRAINT no_paper CHECK (false) NOT VALID")
    yield
    async with store.database.transaction() as connection:
        await connection.execute("ALTER TABLE timeball.audit DROP CONSTRAINT no_paper")


@on_one_server
@pytest.mark.parametrize("name", AUDITED)
async def test_a_command_is_audited_once_or_not_done(world: World, name: str) -> None:
    action, do = AUDITED[name]
    before, audited = await world.everything(), await table(world.store, "audit")

    async with without_paper(world.store):
        with pytest.raises(Exception, match="no_paper"):
            await do(world)
    assert await world.everything() == before, "what could not be audited was not done"

    await do(world)

    assert await world.everything() != before
    known = {row["id"] for row in audited}
    (line,) = [row for row in await table(world.store, "audit") if row["id"] not in known]
    who, why = ("declaration", None) if name == "jobs.declare" else ("ada", "because")
    assert (line["action"], line["actor"], line["reason"]) == (action, who, why)


@on_one_server
async def test_a_definition_in_the_transaction_of_its_author_is_audited_there(world: World) -> None:
    for ends in (RuntimeError, None):
        try:
            async with world.store.database.transaction() as connection:
                await world.commands.jobs.create(JobSpec(name="theirs", handler=HANDLER), connection, ADA)
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
async def test_an_operation_on_jobs_is_audited_for_each_job(world: World, action: OperationAction) -> None:
    holder = world.store.env.new_id()
    ids = [world.job_id, world.paused_id]
    begun = await world.commands.operations.start(action, ids, ADA, subject=OperationSubject.JOB, holder=holder)

    async with without_paper(world.store):
        with pytest.raises(Exception, match="no_paper"):
            await world.commands.operations.run(begun, holder)
    again = await world.commands.operations.start(action, ids, ADA, subject=OperationSubject.JOB, holder=holder)
    await world.commands.operations.run(again, holder)

    lines = [row for row in await table(world.store, "audit") if row["actor"] == "ada"]
    told = [row["subject"] for row in lines if row["action"] == f"job.{action.value}"]
    assert sorted(told) == sorted(f"job:{job_id}" for job_id in ids)


def _is_public_command(group: object, name: str) -> bool:
    return not name.startswith("_") and inspect.iscoroutinefunction(getattr(group, name))


@on_one_server
def test_every_command_is_listed_as_audited_or_not(store: Store) -> None:
    """A new command has to say here how it is audited."""
    groups = vars(Commands(store, store.env)).items()
    commands = {f"{group}.{name}" for group, made in groups for name in dir(made) if _is_public_command(made, name)}

    assert commands - AUDITED.keys() == UNAUDITED
