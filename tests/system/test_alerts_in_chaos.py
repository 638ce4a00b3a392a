"""Nodes are killed at random while alerts open and are resolved, and while channels and outgoing webhooks are told of it.

Afterwards every event has arrived, and what arrived twice has the same id. `SOAK_MINUTES=60` (`make soak`) goes on for that long.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from tests.handlers.builtin.support import Request, RudeServer, answer, rude_server
from tests.system.cluster import LEASE_SECONDS, Cluster
from tests.system.faults import KILLS, MINUTES, NODES, SECONDS, SEED, Faults
from timeball.application.commands import Commands
from timeball.application.commands.webhooks import WebhookSpec
from timeball.domain.alerts import format_alert_id
from timeball.domain.change_event import EventFilter
from timeball.domain.job_fields import JobSpec
from timeball.domain.values.ids import format_execution_id, parse_id

pytestmark = pytest.mark.slow

# No more than have alerts of their own.
JOBS = 4
EXECUTIONS = ("execution.succeeded", "execution.dead")
PATIENT = {"max_lost": 1_000_000}


@asynccontextmanager
async def slow_receiver(rng: random.Random) -> AsyncIterator[RudeServer]:
    """Takes every message after a moment, in which its sender may die."""

    async def take(_request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(rng.choice((0, 0, 0.05, 0.3)))
        writer.write(answer())
        await writer.drain()

    async with rude_server() as server:
        for path in ("/channel", "/hook"):
            server.on(path, take)
        yield server


def bodies(server: RudeServer, path: str, id_header: str) -> dict[str, Any]:
    """What an address was sent, by the id of the message. Each id has one body, however often it came."""
    by_id: dict[str, Any] = {}
    for request in server.requests:
        if request.line.split()[1] == path:
            body = json.loads(request.body)
            about = by_id.setdefault(request.headers[id_header], body)
            assert (about["type"], _subject(about)) == (body["type"], _subject(body)), f"SOAK_SEED={SEED}"
    return by_id


def _subject(body: Any) -> str:
    data = body["data"]
    return str(data["alert"]["id"] if "alert" in data else data["subject"])


@pytest.mark.timeout(600 + 60 * MINUTES)
async def test_no_event_is_lost_while_nodes_die_and_what_comes_twice_has_the_same_id(cluster: Cluster) -> None:
    """Fault 4."""
    print(f"SOAK_SEED={SEED}")
    cluster.environment["TIMEBALL_HOUSEKEEPING__ALERT_SECONDS"] = "0.5"
    faults = Faults(cluster, random.Random(SEED), KILLS, pauses=(0.5, 2.5))
    async with slow_receiver(random.Random(SEED + 1)) as server, cluster.commands() as commands:
        cluster.environment["TIMEBALL_WEBHOOK_ALLOW"] = f"127.0.0.1:{server.port}"
        await commands.channels.create("ops", "webhook", {"url": server.url("/channel")})
        await commands.alert_routes.create({"name": "all", "channels": ["ops"]})
        await commands.webhooks.create(
            WebhookSpec(url=server.url("/hook"), filter=EventFilter(types=("alert.*", *EXECUTIONS)))
        )
        await faults.start_nodes()
        jobs = [await create_flapping(commands, number) for number in range(JOBS)]

        await faults.strike_until(time.monotonic() + SECONDS - LEASE_SECONDS)
        await faults.heal()

        for job in jobs:
            await commands.jobs.pause(job)
        await cluster.eventually(lambda: all_is_quiet(cluster), "every message is sent", 120 + 30 * MINUTES)
        print(f"struck: {dict(faults.struck)}")
        check_webhook(cluster, server)
        check_channel(cluster, server)
    check_was_hard(cluster)
    cluster.check_books()


async def create_flapping(commands: Commands, number: int) -> UUID:
    """A job whose alert opens and is resolved every other second: it dies in each odd one."""
    spec = JobSpec(
        name=f"flapping-{number}",
        handler="work",
        payload={"fails_on_odd_seconds": True, "label": "flapping"},
        interval_seconds=1,
        max_retries=0,
        expect={"max_failures_in_a_row": 0},
        **PATIENT,  # type: ignore[arg-type]
    )
    return (await commands.jobs.create(spec)).job_id


def all_is_quiet(cluster: Cluster) -> bool:
    """Nothing runs, waits or is to be sent; all that was recorded has been read."""
    waiting = sum(cluster.live().values()) - cluster.value(
        "SELECT count(*) FROM timeball.due WHERE job_id IN (SELECT id FROM timeball.job WHERE name IS NOT NULL)"
    )
    pending = cluster.value("SELECT count(*) FROM timeball.webhook_delivery WHERE state = 'pending'")
    behind = cluster.value(
        "SELECT count(*) FROM timeball.finished, timeball.webhook_position"
        " WHERE NOT pg_visible_in_snapshot(finished.recorded::text::xid8, webhook_position.seen)"
    )
    return not waiting and not pending and not behind


def check_webhook(cluster: Cluster, server: RudeServer) -> None:
    """Every event since the webhook was made has arrived, once by its id."""
    expected = Counter(
        (action, format_alert_id(UUID(subject.removeprefix("alert:"))))
        for action, subject in cluster.sql("SELECT action, subject FROM timeball.audit WHERE action LIKE 'alert.%'")
    )
    expected.update(
        (f"execution.{state}", format_execution_id(id_))
        for state, id_ in cluster.sql("SELECT state, id FROM timeball.finished WHERE state IN ('succeeded', 'dead')")
    )
    by_id = bodies(server, "/hook", "webhook-id")
    received = Counter((body["type"], _subject(body)) for body in by_id.values())
    number = sum(request.line.split()[1] == "/hook" for request in server.requests)
    print(f"events: {sum(expected.values())}; messages of the webhook: {number}, {number - len(by_id)} of them again")
    assert received == expected, f"SOAK_SEED={SEED}: lost {expected - received}, invented {received - expected}"


def check_channel(cluster: Cluster, server: RudeServer) -> None:
    """Every alert that has opened has its message, and each message has arrived or had nothing to tell any more."""
    rows = cluster.sql("SELECT id, event, alert_id, sent_at IS NOT NULL, left_out FROM timeball.alert_delivery")
    by_id = {parse_id("ald", id_): body for id_, body in bodies(server, "/channel", "idempotency-key").items()}
    opened = cluster.value("SELECT count(*) FROM timeball.audit WHERE action = 'alert.opened'")
    number = sum(request.line.split()[1] == "/channel" for request in server.requests)
    print(f"alerts opened: {opened}; messages of the channel: {number}, {number - len(by_id)} of them again")
    assert sum(event == "opened" for _, event, _, _, _ in rows) == opened
    assert set(by_id) <= {id_ for id_, *_ in rows}
    for id_, event, alert_id, is_sent, left_out in rows:
        assert is_sent or left_out, f"SOAK_SEED={SEED}: {event} of {alert_id} was given up"
        assert not is_sent or _subject(by_id[id_]) == format_alert_id(alert_id)


def check_was_hard(cluster: Cluster) -> None:
    """A run in which nothing went wrong, or nothing flowed, proves nothing."""
    lives = sum(len(process.events("node.started")) for process in cluster.processes)
    opened, resolved = (
        cluster.value("SELECT count(*) FROM timeball.audit WHERE action = %s", f"alert.{event}")
        for event in ("opened", "resolved")
    )
    print(f"lives: {lives}; alerts opened: {opened}, resolved: {resolved}")
    assert lives > 2 * NODES
    assert opened > JOBS
    assert resolved > 0
