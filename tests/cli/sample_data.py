"""A small world for commands to act on: jobs, executions of every kind, and nodes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.support.factories import (
    FAILURE,
    OPERATOR,
    claim_all,
    enqueue,
    found,
    make_alert,
    make_job,
    make_node,
    record,
)
from timeball.cli.session import CliSession
from timeball.config.settings import load_settings
from timeball.domain.alerts import format_alert_id
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.node import Lease
from timeball.domain.values.ids import format_execution_id, format_id
from timeball.env import Env
from timeball.store.access import ApiKeyStore
from timeball.store.store import Store

FOR_LONG = Lease(span=timedelta(days=1), interval=timedelta(seconds=5))


@dataclass(frozen=True)
class World:
    """What stands for the placeholders of examples."""

    waiting: str
    succeeded: str
    dead: str
    worker: str
    key: str
    freeze: str
    webhook: str
    delivery: str
    group: str
    alert: str
    known_alert: str


def make_world(dsn: str) -> World:
    """Fill an empty database."""
    with ThreadPoolExecutor(1) as aside:  # the loop of the test is none of our business
        return aside.submit(lambda: asyncio.run(_fill(dsn))).result()


async def _fill(dsn: str) -> World:
    store = Store(dsn, Env())
    await store.open(migrates=False)
    try:
        worker = await make_node(store, lease=FOR_LONG, slots=4, name="here/1", handlers=("test.echo",))
        await make_job(store, name="nightly", handler="test.echo", schedule="30 2 * * *", queue="mail", tags=["night"])
        await make_job(store, name="by-hand", handler="test.echo")
        ended = [await enqueue(store, handler="test.echo", max_retries=0, payload={"n": n}) for n in range(2)]
        claims = await claim_all(store, worker=worker, handlers=["test.echo"])
        outcomes = [Failed(FAILURE), Succeeded()]
        ids = sorted(ended)
        by_id = {claimed.id: claimed for claimed in claims}
        await record(store, [found(by_id[one], outcome) for one, outcome in zip(ids, outcomes, strict=True)])
        key, _ = await ApiKeyStore(store.database).create("viewer", "grafana", None, OPERATOR)
        alerts = [await make_alert(store, queue) for queue in ("mail", "slow")]
        waiting = await enqueue(store, after=86_400, handler="test.echo", queue="mail")
    finally:
        await store.close()
    async with CliSession().connected(load_settings(database_url=dsn, migrate=False)) as client:
        await client.calendars.create("holidays", ["12-25", "12-26"])
        await client.calendars.update("holidays", 1, description="the office is closed")
        await client.channels.create("on-call", "slack", {"url": {"$secret": "SLACK_URL"}})
        await client.channels.create("ops", "email", {"to": ["ops@example.com"]})
        await client.alert_routes.create("everything", ["on-call"])
        await client.alert_routes.create("billing", ["on-call"], queues=["billing"])
        await client.templates.create("welcome", {"handler": "test.echo", "payload": {"to": "{{to}}"}})
        group = await client.groups.create([{"handler": "test.echo"}, {"chain": [{"handler": "test.echo"}] * 2}])
        webhook = await client.webhooks.create("https://example.com/hook")
        delivery = await client.webhooks.test(webhook.id)
        known_alert = await client.alerts.acknowledge(format_alert_id(alerts[1]))
        freeze = await client.freezes.create(datetime.now(UTC) + timedelta(days=9), queue="frozen")
    dead, succeeded = ids
    return World(
        format_execution_id(waiting),
        format_execution_id(succeeded),
        format_execution_id(dead),
        format_id("wrk", worker),
        key.id,
        freeze.id,
        webhook.id,
        delivery.id,
        group.id,
        format_alert_id(alerts[0]),
        known_alert.id,
    )
